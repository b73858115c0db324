"""The peer of `gradient_caching.py`: needs torch and sentence-transformers, not cmlm.

One step of CachedMultipleNegativesRankingLoss on a randomly initialised BERT with mean
pooling, float32, AdamW; prints JSON with seconds and peak RSS.
"""

import argparse
import json
import resource
import statistics
import time

import torch
from sentence_transformers import SentenceTransformer, losses, models
from transformers import BertConfig, BertModel

SHAPES = {
    "tiny": (2, 128, 2, 512),
    "mini": (4, 256, 4, 1024),
    "small": (4, 512, 8, 2048),
    "base": (12, 768, 12, 3072),
}


class Body(torch.nn.Module):
    """What SentenceTransformer wants of a transformer, without a tokenizer."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, features, **_):
        output = self.model(
            input_ids=features["input_ids"], attention_mask=features["attention_mask"]
        )
        return {**features, "token_embeddings": output.last_hidden_state}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", default="base")
    for name in ("global_batch", "micro_batch", "length", "vocab_size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--warm_up", choices=["True", "False"], default="True")
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    torch.manual_seed(0)

    layers, hidden, heads, inner = SHAPES[flags.preset]
    bert = BertModel(
        BertConfig(
            vocab_size=flags.vocab_size,
            num_hidden_layers=layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            intermediate_size=inner,
        ),
        add_pooling_layer=False,
    )
    model = SentenceTransformer(
        modules=[Body(bert), models.Pooling(hidden, "mean")], device="cpu"
    )
    model.train()
    loss = losses.CachedMultipleNegativesRankingLoss(
        model, mini_batch_size=flags.micro_batch
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def side():
        shape = (flags.global_batch, flags.length)
        return {
            "input_ids": torch.randint(5, flags.vocab_size, shape),
            "attention_mask": torch.ones(shape, dtype=torch.long),
        }

    def step():
        optimizer.zero_grad()
        loss([side(), side()], labels=None).backward()
        optimizer.step()

    if flags.warm_up == "True":
        step()
    seconds = []
    for _ in range(flags.repeats):
        start = time.monotonic()
        step()
        seconds.append(time.monotonic() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps({"seconds": statistics.median(seconds), "peak_gb": peak}))


if __name__ == "__main__":
    main()
