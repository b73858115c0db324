"""SentEval's classifier of its PyTorch mode beside `cmlm.evaluation.perceptron`.

    ENV/bin/python benchmarks/perceptron_torch.py --vectors=trec.npy \\
        --labels=trec.txt --hidden=50

ENV has torch and this project's requirements except TensorFlow. The labels are the
classes of the vectors, one a line; the last 500 are predicted. Both programs start from
the same weights and see the examples in the same order. The loop is that of
facebookresearch/SentEval, senteval/tools/classifier.py.
"""

import argparse
import copy
import itertools
import os
import sys
import time

import numpy as np
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from cmlm.evaluation import perceptron

TESTED = 500


def toolkit(x, y, train, dev, hidden, strength, random):
    """The toolkit's training loop; `random` draws weights and orders as ours does."""
    widths = [x.shape[1], *([hidden] if hidden else []), int(y.max()) + 1]
    layers = [torch.nn.Linear(*ends) for ends in itertools.pairwise(widths)]
    for layer in layers:
        bound = 1 / np.sqrt(layer.in_features)
        drawn = [
            random.uniform(-bound, bound, shape).astype(np.float32)
            for shape in (layer.weight.T.shape, (1, layer.out_features))
        ]
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(drawn[0]).T)
            layer.bias.copy_(torch.from_numpy(drawn[1][0]))
    model = torch.nn.Sequential(layers[0])
    for layer in layers[1:]:
        model.extend([torch.nn.Sigmoid(), layer])
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=strength)
    cross_entropy = torch.nn.CrossEntropyLoss()
    best, early_stops, epoch, stops = -1.0, 0, 0, False
    while not stops and epoch <= 200:
        for _ in range(4):
            order = random.permutation(len(train))
            for start in range(0, len(train), 64):
                batch = train[order[start : start + 64]]
                loss = cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        epoch += 4
        with torch.no_grad():
            accuracy = (model(x[dev]).argmax(1) == y[dev]).float().mean().item()
        if accuracy > best:
            best, kept = accuracy, copy.deepcopy(model)
        else:
            stops = early_stops >= 5
            early_stops += 1
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vectors", required=True, help=".npy file [n, dim]")
    parser.add_argument("--labels", required=True, help="a class a line")
    parser.add_argument("--hidden", type=int, default=50)
    parser.add_argument("--strength", type=float, default=1e-5, help="weight decay")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    x = np.load(chosen.vectors, allow_pickle=False).astype(np.float32)
    with open(chosen.labels, encoding="utf-8") as file:
        _, y = np.unique(file.read().split("\n")[: len(x)], return_inverse=True)
    rows, test = np.split(np.arange(len(x)), [len(x) - TESTED])
    for seed in range(1, chosen.seeds + 1):
        start = time.process_time()
        ((ours,),) = perceptron.fit_path(
            (x[rows], y[rows]),
            None,
            [x[test]],
            int(y.max()) + 1,
            [chosen.strength],
            seed,
            chosen.hidden,
        )
        took = time.process_time() - start
        random = np.random.default_rng(seed)
        order = rows[random.permutation(len(rows))]
        dev, train = np.split(order, [int(0.05 * len(rows))])
        start = time.process_time()
        model = toolkit(
            *(torch.from_numpy(x), torch.from_numpy(y), train, dev),
            *(chosen.hidden, chosen.strength, random),
        )
        with torch.no_grad():
            theirs = model(torch.from_numpy(x[test])).argmax(1).numpy()
        print(
            f"seed {seed}: ours {np.mean(ours == y[test]):.3f} in {took:.1f} s, torch "
            f"{np.mean(theirs == y[test]):.3f} in {time.process_time() - start:.1f} s, "
            f"equal classes {np.mean(ours == theirs):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
