"""The arm of `inference.py` that runs OpenVINO, in an environment with openvino, torch
and sentence-transformers: a plain conversion of the same weights, batches by length.

python benchmarks/inference_openvino.py MODEL SENTENCES.json THREADS PRECISION LIMIT
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import openvino
import torch
import workers
from sentence_transformers import SentenceTransformer

NAMES = ("input_ids", "attention_mask", "token_type_ids")


def compile_model(model: SentenceTransformer, threads: int, precision: str):
    """Converts and compiles the Transformer of a SentenceTransformer."""
    example = {name: torch.ones([2, 8], dtype=torch.int64) for name in NAMES}
    network = model[0].auto_model.eval()
    converted = openvino.convert_model(network, example_input=example)
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "PERFORMANCE_HINT": "LATENCY",
    }
    return openvino.Core().compile_model(converted, "CPU", settings)


def main() -> None:
    path, sentences, threads, precision, limit = sys.argv[1:]
    torch.set_num_threads(int(threads))
    with open(sentences, encoding="utf-8") as file:
        texts = json.load(file)
    model = SentenceTransformer(path, device="cpu")
    compiled = compile_model(model, int(threads), precision)
    tokenizer = model.tokenizer
    pooling = model[1].pooling_mode
    if pooling != "mean":
        raise SystemExit(f"{path} pools by {pooling}; this arm knows mean")

    def encode(texts, batch_size):
        order = np.argsort([-len(text) for text in texts], kind="stable")
        vectors = None
        for start in range(0, len(texts), batch_size):
            rows = order[start : start + batch_size]
            inputs = tokenizer(
                [texts[row] for row in rows],
                padding=True,
                truncation=True,
                max_length=int(limit),
                return_tensors="np",
            )
            tokens = compiled({name: inputs[name] for name in NAMES})[0]
            mask = inputs["attention_mask"][:, :, None].astype(np.float32)
            pooled = (tokens * mask).sum(axis=1) / mask.sum(axis=1)
            if vectors is None:
                vectors = np.empty([len(texts), pooled.shape[1]], np.float32)
            vectors[rows] = pooled
        return vectors

    workers.serve(
        run=lambda batch_size, count: workers.seconds(
            lambda: encode(texts[:count], batch_size)
        ),
        one=lambda text, times: workers.latencies(lambda: encode([text], 1), times),
        save=lambda path: np.save(path, encode(texts, 32)),
    )


if __name__ == "__main__":
    main()
