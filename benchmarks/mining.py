"""Mining N vectors in N others: seconds and memory, beside LASER's algorithm.

    python benchmarks/mining.py --sentences=50000,100000 --index=ivf
    python benchmarks/mining.py --sentences=1000000 --arms=cmlm

Synthetic unit vectors in clusters; every other one has a partner on the other side.
Each arm is a process of its own:

    cmlm    what cmlm.mine does from vectors on disk to pairs
    laser   the algorithm of LASER's source/mine_bitexts.py (retrieval max, margin
            ratio), written anew: all vectors and a FAISS index of each side in memory,
            candidates scored one by one. Its index is of the kind that cmlm.mine has
            chosen, with the same centres and probes; LASER itself has the flat one only

Found are the partners among all pairs, right are those of the pairs that are partners.
"""

import functools
import json
import os
import resource
import sys
import tempfile
import time

import numpy as np
import workers
from absl import flags

from cmlm import cli
from cmlm.errors import UserError

_ARMS = ["cmlm", "laser"]

flags.DEFINE_list("sentences", ["50000"], "Numbers of sentences on each side.")
flags.DEFINE_integer("dim", 256, "Dimensions of a vector.")
flags.DEFINE_enum("index", "auto", ["auto", "flat", "ivf", "pq"], "As for cmlm.mine.")
flags.DEFINE_integer("probes", 32, "As for cmlm.mine.")
flags.DEFINE_float("max_memory_gb", 4.0, "As for cmlm.mine.")
flags.DEFINE_list("arms", _ARMS, "Arms to run.")
flags.DEFINE_integer("threads", os.cpu_count(), "Processors for each arm.")
flags.DEFINE_string(
    "work_dir", None, "Folder for the vectors; default: a temporary one."
)
flags.DEFINE_string("output", None, "The .json file to write.")
flags.DEFINE_string("worker", None, "Internal: the arm that a child process runs.")

FLAGS = flags.FLAGS
_K = 4
_SEED = 20
_SIDES = ("source", "target")
_LATENT = 64
_CLUSTER = 50


# --------------------------------------------------------------------- arms


def make(directory, count, dim):
    """Writes the vectors of both sides."""
    from cmlm.mining import vectors

    fixed = np.random.default_rng(_SEED)
    basis = fixed.normal(size=[_LATENT, dim]).astype(np.float32)
    centres = fixed.normal(size=[-(-count // _CLUSTER), _LATENT]).astype(np.float32)

    def drawn(key, rows):
        random = np.random.default_rng(key)
        chosen = random.integers(len(centres), size=rows)
        return centres[chosen] + random.standard_normal([rows, _LATENT], np.float32)

    def rows_of(side, start, stop):
        latent = drawn([_SEED, start], stop - start)
        if side:
            latent[1::2] = drawn([_SEED + 1, start], stop - start)[1::2]
        random = np.random.default_rng([_SEED, start, side])
        rows = latent @ basis
        rows += 3 * random.standard_normal(rows.shape, np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    about = {"shape": [count, dim], "shard_rows": vectors.SHARD_ROWS, "seed": _SEED}
    for side, name in enumerate(_SIDES):
        vectors.fill(
            os.path.join(directory, name),
            about,
            lambda side=side: functools.partial(rows_of, side),
            name,
        )
    return {}


def cmlm_arm(directory, index, probes, memory):
    """From vectors on disk to pairs."""
    from cmlm.mining import neighbours, pairs, vectors
    from cmlm.mining.index import SearchSettings

    clock = Clock()
    sides = [vectors.ShardedVectors(os.path.join(directory, name)) for name in _SIDES]
    settings = SearchSettings(index, 0, probes, memory)
    searcher = neighbours.Searcher(
        *sides, os.path.join(directory, "neighbours"), settings
    )
    found = {name: searcher.find(name, _K) for name in _SIDES}
    clock.lap("search")
    mined = pairs.mine(found, pairs.PairRule("ratio", "max"))
    clock.lap("pairs")
    return clock.report(searcher.kind, mined["source"], mined["target"], len(sides[0]))


def laser_arm(directory, index, probes, memory):
    """LASER's algorithm with an index of the same kind."""
    import faiss

    from cmlm.mining import vectors

    clock = Clock()
    x, y = (
        side.read(0, len(side))
        for side in (
            vectors.ShardedVectors(os.path.join(directory, name)) for name in _SIDES
        )
    )
    near_x, near_y = (
        _laser_search(faiss, directory, pool, queries, index, probes)
        for pool, queries in ((y, x), (x, y))
    )
    clock.lap("search")
    mean_x, mean_y = near_x[0].mean(axis=1), near_y[0].mean(axis=1)
    scores_x = _laser_scores(x, y, near_x[1], mean_x, mean_y)
    scores_y = _laser_scores(y, x, near_y[1], mean_y, mean_x)
    best_y = near_x[1][np.arange(len(x)), scores_x.argmax(axis=1)]
    best_x = near_y[1][np.arange(len(y)), scores_y.argmax(axis=1)]
    source = np.concatenate([np.arange(len(x)), best_x])
    target = np.concatenate([best_y, np.arange(len(y))])
    scores = np.concatenate([scores_x.max(axis=1), scores_y.max(axis=1)])
    mined, used_x, used_y = [], set(), set()
    for row in np.argsort(-scores):
        a, b = source[row], target[row]
        if a not in used_x and b not in used_y:
            used_x.add(a)
            used_y.add(b)
            mined.append((a, b))
    clock.lap("pairs")
    return clock.report(index, *np.array(mined).T, len(x))


def _laser_search(faiss, directory, pool, queries, kind, probes):
    dim = pool.shape[1]
    index = faiss.IndexFlatIP(dim)
    if kind != "flat":
        centres = np.load(os.path.join(directory, "neighbours", "centres.npy"))
        index.add(centres)
        if kind == "ivf":
            index = faiss.IndexIVFFlat(
                index, dim, len(centres), faiss.METRIC_INNER_PRODUCT
            )
        else:
            index = faiss.IndexIVFPQFastScan(
                index, dim, len(centres), dim // 4, 4, faiss.METRIC_INNER_PRODUCT
            )
            index.by_residual = False
        index.train(pool[:65_536])
        index.nprobe = min(probes, len(centres))
    index.add(pool)
    return index.search(queries, _K)


def _laser_scores(x, y, candidates, mean_x, mean_y):
    scores = np.zeros(candidates.shape)
    for row in range(len(x)):
        for column, other in enumerate(candidates[row]):
            usual = (mean_x[row] + mean_y[other]) / 2
            scores[row, column] = x[row].dot(y[other]) / usual
    return scores


class Clock:
    """Seconds by stage, and the pairs found."""

    def __init__(self):
        self._last, self._laps = time.monotonic(), {}
        self._processor = time.process_time()

    def lap(self, name):
        now = time.monotonic()
        self._laps[name], self._last = now - self._last, now

    def report(self, kind, source, target, count):
        right = (source == target) & (source % 2 == 0)
        return {
            "index": kind,
            **self._laps,
            "seconds": sum(self._laps.values()),
            "processor": time.process_time() - self._processor,
            "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "found": float(right.sum() / ((count + 1) // 2)),
            "right": float(right.mean()),
        }


# -------------------------------------------------------------------- rounds


def main(_):
    if FLAGS.worker:
        workers.serve(make=make, cmlm=cmlm_arm, laser=laser_arm)
        return
    if not FLAGS.arms or not set(FLAGS.arms) <= set(_ARMS):
        raise UserError(
            f"--arms is {','.join(FLAGS.arms)!r}; allowed: {', '.join(_ARMS)}"
        )
    if "cmlm" not in FLAGS.arms and FLAGS.index != "flat":
        raise UserError(
            f"--arms=laser takes the centres of cmlm with --index={FLAGS.index}; "
            "allowed: --arms=cmlm,laser or --index=flat"
        )
    results = []
    for count in map(int, FLAGS.sentences):
        with tempfile.TemporaryDirectory(dir=FLAGS.work_dir) as directory:
            ask("make", directory=directory, count=count, dim=FLAGS.dim)
            kind = FLAGS.index
            # cmlm first: it makes the centres that the other takes too.
            for arm in sorted(FLAGS.arms, key=_ARMS.index):
                answer = ask(
                    arm,
                    directory=directory,
                    index=kind,
                    probes=FLAGS.probes,
                    memory=int((FLAGS.max_memory_gb - 1) * 2**30),
                )
                kind = answer["index"]
                results.append({"arm": arm, "sentences": count, **answer})
                print(line(results[-1]), flush=True)
    if FLAGS.output:
        with open(FLAGS.output, "w") as file:
            json.dump(results, file, indent=1)


def ask(question, **arguments):
    """Runs one arm in a process of its own."""
    child = workers.Worker([sys.executable, __file__, "--worker=on"], FLAGS.threads)
    try:
        return child.ask(question, **arguments)
    finally:
        child.close()


def line(result):
    return (
        "{arm:6} {sentences:>9,} x {sentences:,}  {index}  {seconds:7.1f} s (search "
        "{search:.1f}, pairs {pairs:.1f})  processor {processor:.1f} s  peak "
        "{peak_gb:.2f} GB  found {found:.1%}, right {right:.1%}".format(**result)
    )


if __name__ == "__main__":
    cli.run(main)
