"""The arm of `training.py` that runs PyTorch: needs torch and transformers, not cmlm.

CMLM's step with Hugging Face's BertModel: both sentences, P(v), the tied masked-LM
head, clipping and AdamW; bfloat16 by autocast, as PyTorch trains it.
"""

import argparse
import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import workers
from torch import nn
from transformers import BertConfig, BertModel


class Cmlm(nn.Module):
    """s1 -> mean -> P(v) -> beside the tokens of s2 -> masked words of s2."""

    def __init__(self, flags: argparse.Namespace):
        super().__init__()
        hidden, self.views = flags.hidden, flags.views
        self.bert = BertModel(
            BertConfig(
                vocab_size=flags.vocab_size,
                num_hidden_layers=flags.layers,
                hidden_size=hidden,
                num_attention_heads=flags.heads,
                intermediate_size=flags.inner,
                hidden_dropout_prob=flags.dropout,
                attention_probs_dropout_prob=flags.dropout,
            ),
            add_pooling_layer=False,
        )
        self.projection = nn.ModuleList(
            nn.Sequential(
                nn.Linear(hidden, 2 * hidden),
                nn.ReLU(),
                nn.Linear(2 * hidden, 2 * hidden),
                nn.ReLU(),
                nn.Linear(2 * hidden, hidden),
            )
            for _ in range(flags.views - 1)
        )
        self.transform = nn.Sequential(
            nn.Linear(hidden, hidden), nn.GELU(), nn.LayerNorm(hidden, eps=1e-12)
        )
        self.output_bias = nn.Parameter(torch.zeros(flags.vocab_size))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        mask = batch["context_mask"]
        tokens = self.bert(
            input_ids=batch["context_word_ids"], attention_mask=mask
        ).last_hidden_state
        share = mask.unsqueeze(-1).to(tokens.dtype)
        vector = (tokens * share).sum(1) / share.sum(1)
        views = [vector, *(network(vector) for network in self.projection)]

        words = self.bert.embeddings.word_embeddings
        ids, mask = batch["input_word_ids"], batch["input_mask"]
        count, length = ids.shape
        rows = self.bert.config.max_position_embeddings
        positions = torch.cat(
            [torch.arange(length), torch.arange(rows - self.views, rows)]
        )
        dense = torch.stack(views, dim=1)
        sequence = self.bert(
            inputs_embeds=torch.cat([words(ids), dense.to(words.weight.dtype)], dim=1),
            attention_mask=torch.cat([mask, mask.new_ones(count, self.views)], dim=1),
            position_ids=positions.expand(count, -1),
        ).last_hidden_state
        found = sequence[torch.arange(count)[:, None], batch["positions"]]
        table = words.weight
        logits = nn.functional.linear(self.transform(found), table, self.output_bias)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), batch["labels"].flatten()
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("batch", "length", "predictions", "vocab_size", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("layers", "hidden", "heads", "inner", "views"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dropout", type=float, required=True)
    parser.add_argument("--precision", required=True)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    torch.manual_seed(0)
    model = Cmlm(flags).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)

    def tokens(columns):
        return torch.randint(5, flags.vocab_size, (flags.batch, columns))

    ones = torch.ones(flags.batch, flags.length, dtype=torch.long)
    batch = {
        "context_word_ids": tokens(flags.length),
        "context_mask": ones,
        "input_word_ids": tokens(flags.length),
        "input_mask": ones,
        "positions": torch.arange(1, flags.predictions + 1).expand(flags.batch, -1),
        "labels": tokens(flags.predictions),
    }

    def step():
        optimizer.zero_grad()
        with torch.autocast(
            "cpu", torch.bfloat16, enabled=flags.precision == "bfloat16"
        ):
            loss = model(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    workers.serve(run=lambda: workers.seconds(step))


if __name__ == "__main__":
    main()
