"""The arm of `inference.py` that runs sentence-transformers, in its own environment.

python benchmarks/inference_torch.py MODEL SENTENCES.json THREADS PRECISION LIMIT
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import workers
from sentence_transformers import SentenceTransformer


def main() -> None:
    path, sentences, threads, precision, limit = sys.argv[1:]
    torch.set_num_threads(int(threads))
    with open(sentences, encoding="utf-8") as file:
        texts = json.load(file)
    model = SentenceTransformer(path, device="cpu").to(getattr(torch, precision))
    # The folder's own limit may be another than that of our exports.
    model.max_seq_length = int(limit)

    def encode(batch_size, count):
        return model.encode(texts[:count], batch_size=batch_size)

    workers.serve(
        run=lambda batch_size, count: workers.seconds(
            lambda: encode(batch_size, count)
        ),
        one=lambda text, times: workers.latencies(lambda: model.encode([text]), times),
        save=lambda path: np.save(path, encode(32, None).astype(np.float32)),
    )


if __name__ == "__main__":
    main()
