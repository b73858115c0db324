"""Writes all small whole inputs: those of `base`, test sets, runs, dumps, labels.

It runs in a fork of the warm process, because it computes with TensorFlow.
"""

import bz2
import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import model_dirs
import test_architectures
import test_foreign_weights
import test_sources
import testsets
import toys

from cmlm.training import building, engine
from cmlm.training.stages import Stage
from tests.campaign import base


def write(directory: Path) -> None:
    """Writes all but what `later.COMMANDS` make."""
    made = model_dirs.export(directory / "made")
    base.write(directory, made)
    shutil.rmtree(directory / "made")
    (directory / "sets").mkdir()
    testsets.write(directory / "sets")
    toys.write_corpus(directory / "other.txt", seed=1)
    config = toys.run_config(str(directory / "corpus.txt"))
    config.trainer.train_steps = config.trainer.checkpoint_interval = 4
    config.trainer.summary_interval = config.trainer.validation_interval = 2
    engine.train(building.build(Stage(config, str(directory / "resumed"))))
    (directory / "original").mkdir()
    test_foreign_weights.write_original(directory / "original")
    for name, make in (
        ("roberta", test_architectures.byte_level_roberta),
        ("xlmr", test_architectures.xlm_roberta),
    ):
        (directory / "made").mkdir()
        make(directory / "made").rename(directory / name)
        shutil.rmtree(directory / "made")
    (directory / "dumps").mkdir()
    (directory / "own" / "beir" / "qrels").mkdir(parents=True)
    lines = (directory / "lines.txt").read_text().splitlines()
    write_dumps(directory / "dumps", lines)
    write_own(directory / "own", lines)


def write_dumps(directory: Path, lines: list[str]) -> None:
    """Writes one file in each layout of `cmlm.prepare`."""
    rows = [json.dumps({"text": line}) for line in lines]
    (directory / "a.json.bz2").write_bytes(bz2.compress("\n".join(rows).encode()))
    test_sources.write_wet(directory / "a.wet.gz", ["\n".join(lines)] * 3)
    pages = [
        test_sources.PAGE % (n, 0, n, "", f"{line} {line}")
        for n, line in enumerate([*lines, test_sources.MARKUP], 1)
    ]
    (directory / "a.xml").write_text(test_sources.DUMP % "".join(pages))
    pairs = list(zip(lines, lines[1:], strict=False))
    (directory / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=utf-8\\n"\n\n'
    entries = [f'msgid "{a}"\nmsgstr "{b}"\n\n' for a, b in dict(pairs).items()]
    (directory / "a.po").write_text(head + "".join(entries))


def write_own(directory: Path, lines: list[str]) -> None:
    """Writes labels, scores, pairs and a collection, as users have them."""
    rows = list(zip(lines, lines[1:], range(len(lines)), strict=False))
    for name, head, row in (
        ("classes.tsv", "text\tlabel\n", "{0}\tc{2}\n"),
        ("labels.csv", "text1,text2,labels\n", '"{0}","{1}",c{2}|d\n'),
        ("numbers.tsv", "text\tscore\n", "{0}\t{2}.5\n"),
        ("pairs.tsv", "", "{0}\t{1}\t{2}\n"),
        ("scored.tsv", "", "{0}\t{1}\t{2}\n"),
        ("queries.tsv", "", "{0}\t{1}\n"),
    ):
        made = [row.format(first, second, n % 2) for first, second, n in 3 * rows]
        (directory / name).write_text(head + "".join(made))
    for name, letter in (("corpus", "d"), ("queries", "q")):
        made = [
            json.dumps({"_id": f"{letter}{n}", "text": line}) + "\n"
            for n, line in enumerate(lines)
        ]
        (directory / "beir" / f"{name}.jsonl").write_text("".join(made))
    judged = [f"q{n}\td{n}\t1\n" for n in range(len(lines))]
    head = "query-id\tcorpus-id\tscore\n"
    (directory / "beir" / "qrels" / "test.tsv").write_text(head + "".join(judged))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
