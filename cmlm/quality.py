"""Trains a classifier that `cmlm.prepare` uses to drop bad documents.

    python -m cmlm.quality --good='books/*.txt.gz' --bad='spam/*.txt.gz' --output=q.npz
    python -m cmlm.prepare --quality_model=q.npz --min_quality=0.3 ...

Examples are documents, separated by blank lines. The command first tests a model on a
fifth of the examples, then trains the final model on all of them.
"""

import os
import shlex
import sys

from absl import flags

from cmlm import cli
from cmlm.common.counts import counted
from cmlm.errors import UserError, naming

flags.DEFINE_string("good", None, "Files or globs of good documents.")
flags.DEFINE_string("bad", None, "Files or globs of bad documents.")
flags.DEFINE_string("output", None, "The .npz file to write.")
flags.DEFINE_bool("overwrite", False, "Replace an existing output file.")
flags.DEFINE_integer(
    "max_examples",
    50_000,
    "Train on at most this many documents of each kind, drawn from all files.",
    10,
)
flags.DEFINE_integer(
    "seed",
    0,
    "Seed of the choice of examples, and of the held-out ones among them.",
    0,
    2**32 - 1,
)

FLAGS = flags.FLAGS

# A smaller area under the ROC curve gets a warning.
_LOW_AREA = 0.6


def main(_) -> None:
    text = "text: files, globs or a list of them"
    cli.require(good=text, bad=text)
    cli.require_npz("output")
    with cli.quiet_imports("corpus"):
        import numpy as np
        from sklearn import metrics

        from cmlm.common import atomic, files, outputs
        from cmlm.preparation import quality

    outputs.check(
        {"--output": FLAGS.output},
        {"--good": FLAGS.good, "--bad": FLAGS.bad},
        FLAGS.overwrite,
    )

    # ------------------------------------------------------------------ examples
    paths = {}
    for name in ("good", "bad"):
        with naming(f"--{name}"):
            paths[name] = files.expand(FLAGS[name].value)
    both = {os.path.realpath(path) for path in paths["good"]}.intersection(
        map(os.path.realpath, paths["bad"])
    )
    if both:
        raise UserError(
            f"--good and --bad name {min(both)}; allowed: each file on one side"
        )
    examples = {}
    for name in ("good", "bad"):
        texts, n_read, share = quality.read_examples(
            paths[name], FLAGS.max_examples, FLAGS.seed
        )
        examples[name] = texts
        print(
            f"--{name}: {len(texts):,} of {counted(n_read, 'document')} of"
            f" {counted(len(paths[name]), 'file')}"
            + (f", from the first {share:.2%} of each file" if share < 1 else "")
        )
        if len(texts) < 10:
            raise UserError(
                f"--{name} has {counted(len(texts), 'document')}; allowed: at least 10"
            )

    # ------------------------------------------------------------------ held out
    good, bad = quality.held_out_scores(examples["good"], examples["bad"], FLAGS.seed)
    is_good = np.repeat([1, 0], [len(good), len(bad)])
    area = metrics.roc_auc_score(is_good, np.concatenate([good, bad]))
    print(
        f"held out: {np.mean(good >= 0.5):.1%} of {len(good):,} good documents score"
        f" 0.5 or more, {np.mean(bad >= 0.5):.1%} of {len(bad):,} bad ones;"
        f" area under the ROC curve {area:.4f}"
    )
    if area < _LOW_AREA:
        print(
            f"warning: the area under the ROC curve is below {_LOW_AREA}, hardly "
            "better than chance (0.5): the scores say little",
            file=sys.stderr,
        )
    print("documents kept, good and bad, by --min_quality:")
    for minimum in (0.1, 0.3, 0.5, 0.7, 0.9):
        print(
            f"  {minimum}  {np.mean(good >= minimum):6.1%}"
            f"  {np.mean(bad >= minimum):6.1%}"
        )

    # ------------------------------------------------------------------ all
    with atomic.file(FLAGS.output) as path:
        quality.fit(examples["good"], examples["bad"], FLAGS.seed).save(path)
    model = shlex.quote(FLAGS.output)
    print(f"use it with python -m cmlm.prepare --quality_model={model}")


if __name__ == "__main__":
    cli.run(main)
