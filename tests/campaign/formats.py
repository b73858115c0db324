"""The inputs that commands read: what is damaged, how, and by which command read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

from . import judge, later, mutations

_ENCODE = ("cmlm.encode", "--input=lines.txt", "--output=out/o.npy")
_VECTORS = ("lines.txt", "vectors.npy")
_TRAIN = (
    "cmlm.train",
    "--config_file=params.yaml",
    "--model_dir=out/run",
    "--params_override=trainer.train_steps=1,trainer.validation_interval=1",
    "--params_override=model.num_layers=1",
    "--params_override=trainer.best_checkpoint_metric=,model.vocab_size=0",
    "--params_override=vocabulary.max_unknown_share=1",
)
# The model has 37 positions for tokens.
_SHORT = "train_data.seq_length=16"


@dataclasses.dataclass(frozen=True)
class Format:
    """An input of some commands.

    Attributes:
        damaged: the files of which one is damaged, in the folder of `whole.write`.
        mutations: the kinds of damage.
        commands: the commands that read it, one of them for a case.
        needs: the other files and folders that a case copies.
        weight: how often it is drawn; commands that train are dear.
        may_write: prefixes of paths outside `out/` that the command may write.
        right: checks the output after exit code 0, given the folder of the case.
    """

    damaged: tuple[str, ...]
    mutations: tuple
    commands: tuple[tuple[str, ...], ...]
    needs: tuple[str, ...] = ()
    weight: int = 10
    may_write: tuple[str, ...] = ()
    right: Callable[[Path], str] | None = None


def _vectors(folder: Path) -> str:
    return judge.whole_vectors(folder / "out" / "o.npy")


def _encoding(model: str, *damaged: str, mutations, weight=10, needs=()) -> Format:
    """An encoder of which a file is damaged: `cmlm.encode` reads it."""
    return Format(
        damaged=tuple(f"{model.partition('/')[0]}/{name}" for name in damaged),
        mutations=mutations,
        commands=((*_ENCODE, f"--model={model}"),),
        needs=("lines.txt", *needs),
        weight=weight,
        right=_vectors,
    )


def _later(command: tuple[str, ...], made: str, output: str, needs, weight) -> Format:
    """What an earlier run of a command has left."""
    return Format(
        damaged=(made,),
        mutations=(*mutations.BYTES, *mutations.JSON[-4:], *mutations.NPY[-4:]),
        commands=((*command, output),),
        needs=needs,
        weight=weight,
        may_write=(made,),
    )


def _labels(name: str) -> Format:
    return Format(
        (f"own/{name}",),
        mutations.TEXT,
        (
            (
                *("cmlm.finetune", "--model=run", f"--task=file:own/{name}"),
                *("--epochs=1", "--output=out/tuned"),
            ),
        ),
        needs=("run",),
        weight=2,
    )


def _own(task: str, damaged: str, made) -> Format:
    return Format(
        (damaged,),
        made,
        (
            (
                *("cmlm.evaluate", "--model=run", f"--tasks={task}"),
                "--output=out/report.json",
            ),
        ),
        needs=("run",),
    )


def _objective(file: str, objective: str, data: str) -> Format:
    """A file that one objective trains on.

    Args:
        file: its path.
        objective: the only one of the run.
        data: the flag of the data.
    """
    return Format(
        (file,),
        mutations.TEXT,
        (
            (
                *(*_TRAIN, data, "--vocab_file=run/vocab.txt"),
                f"--params_override=task.cmlm.weight=0,task.{objective}.weight=1",
                f"--params_override=task.{objective}.train_data.global_batch_size=8",
                f"--params_override=task.{objective}.{_SHORT}",
            ),
        ),
        needs=("params.yaml", "run"),
        weight=2,
    )


def _dump(name: str, layout: str, made, language: str = "en") -> Format:
    return Format(
        (f"dumps/{name}",),
        made,
        (
            (
                *("cmlm.prepare", f"--input=dumps/{name}", f"--layout={layout}"),
                *("--output=out/corpus", f"--language={language}"),
            ),
        ),
        weight=2,
    )


_CORPUS_READERS = (
    ("cmlm.vocab", "--size=200", "--output=out/vocab.txt"),
    ("cmlm.ngrams", "--min_count=2", "--output=out/ngrams.tsv"),
)

FORMATS = {
    "text": Format(
        ("corpus.txt",),
        mutations.TEXT,
        tuple((*row, "--input=corpus.txt") for row in _CORPUS_READERS),
        weight=20,
    ),
    "text to encode": Format(
        ("lines.txt",),
        mutations.TEXT,
        ((*_ENCODE, "--model=export"),),
        needs=("export",),
        right=_vectors,
    ),
    "gz": Format(
        ("corpus.txt.gz",),
        mutations.GZIP,
        tuple((*row, "--input=corpus.txt.gz") for row in _CORPUS_READERS),
        weight=20,
    ),
    "text to train on": Format(
        ("corpus.txt",),
        mutations.TEXT,
        ((*_TRAIN, "--train_data=corpus.txt"),),
        needs=("params.yaml",),
        weight=2,
    ),
    "flagfile": Format(
        ("f.flags",),
        mutations.FLAGS,
        (("cmlm.train", "--flagfile=f.flags", "--print_config"),),
        weight=20,
    ),
    "params": Format(
        ("params.yaml",),
        mutations.YAML,
        (("cmlm.train", "--config_file=params.yaml", "--print_config"),),
        weight=25,
    ),
    "model_dir": _encoding(
        *("run", "params.yaml", "vocab.txt"),
        mutations=mutations.YAML[:-17] + mutations.TEXT,
    ),
    "params of a run": _encoding("run", "params.yaml", mutations=mutations.YAML),
    "checkpoint": _encoding(
        *("run", "checkpoint", "ckpt-3.index", "ckpt-3.data-00000-of-00001"),
        mutations=mutations.BYTES,
        weight=15,
    ),
    "bitext": Format(
        ("bitext.tsv",),
        mutations.TEXT,
        (
            (
                *("cmlm.mine", "--model=export", "--bitext=bitext.tsv", "--score"),
                *("--threshold=-1", "--output=out/o.tsv"),
            ),
        ),
        needs=("export",),
    ),
    "bitext to train on": _objective(
        "bitext.tsv", "bitext", "--bitext_data=en-de=bitext.tsv"
    ),
    "nli": _objective("nli.tsv", "nli", "--nli_data=en=nli.tsv,de=nli.tsv"),
    "ngrams": Format(
        ("ngrams.tsv",),
        mutations.TEXT,
        (
            (
                *(*_TRAIN, "--train_data=corpus.txt"),
                "--params_override=task.cmlm.weight=0,task.misad.weight=1",
                "--params_override=task.misad.ngrams_file=ngrams.tsv",
                "--params_override=task.misad.train_data.global_batch_size=8",
                f"--params_override=task.misad.{_SHORT}",
            ),
        ),
        needs=("params.yaml", "corpus.txt"),
        weight=2,
    ),
    "config.json": _encoding("hf", "config.json", mutations=mutations.JSON, weight=20),
    "tokenizer.json": _encoding(
        *("hf", "tokenizer.json", "tokenizer_config.json", "modules.json"),
        *("sentence_bert_config.json", "1_Pooling/config.json"),
        mutations=mutations.JSON,
        weight=20,
    ),
    "hf vocab.txt": _encoding("hf", "vocab.txt", mutations=mutations.TEXT),
    "safetensors": _encoding(
        "hf", "model.safetensors", mutations=mutations.SAFETENSORS, weight=15
    ),
    "export": _encoding(
        *("export", "serving/1/saved_model.pb", "serving/1/variables/variables.index"),
        *("serving/1/variables/variables.data-00000-of-00001",),
        *(
            "serving/1/assets.extra/export.json",
            "serving/1/assets.extra/checksums.json",
        ),
        mutations=mutations.BYTES,
        weight=15,
    ),
    "export.json": _encoding(
        *("export", "serving/1/assets.extra/export.json"),
        *("serving/1/assets.extra/checksums.json",),
        mutations=mutations.JSON,
    ),
    "hub": _encoding(
        *("export/encoder", "encoder/saved_model.pb", "encoder/assets/vocab.txt"),
        *("encoder/variables/variables.index", "export.json", "checksums.json"),
        mutations=mutations.BYTES,
    ),
    "hub without checksums": Format(
        (
            *("export/encoder/saved_model.pb", "export/encoder/assets/vocab.txt"),
            "export/encoder/variables/variables.index",
        ),
        mutations.BYTES,
        ((*_ENCODE, "--model=export/encoder"),),
        needs=("lines.txt", "-export/checksums.json"),
        right=_vectors,
    ),
    "pcr": Format(
        ("pcr.npz",),
        mutations.NPZ,
        (
            (
                *("cmlm.evaluate", "--model=run", "--pcr=pcr.npz", "--data_dir=sets"),
                *("--tasks=tatoeba", "--output=out/report.json"),
            ),
        ),
        needs=("run", "sets"),
        weight=15,
    ),
    "pcr to export": Format(
        ("pcr.npz",),
        mutations.NPZ,
        (("export.tfhub", "--model_dir=run", "--export_dir=out/e", "--pcr=pcr.npz"),),
        needs=("run",),
        weight=2,
    ),
    "vectors": Format(
        _VECTORS,
        mutations.NPY,
        ((*_ENCODE, "--model=vectors:lines.txt:vectors.npy"),),
        right=_vectors,
        weight=15,
    ),
    "vectors for pcr": Format(
        ("vectors.npy",),
        mutations.NPY,
        (
            (
                *("cmlm.pcr", "--model=export", "--vectors=de=vectors.npy"),
                "--output=out/pcr.npz",
            ),
        ),
        needs=("export",),
    ),
    "test sets": Format(
        ("sets",),
        mutations.TEXT,
        (
            (
                *("cmlm.evaluate", "--model=export", "--data_dir=sets"),
                *("--tasks=sts,tatoeba,trec,mr,bucc,pawsx", "--output=out/report.json"),
            ),
        ),
        needs=("export",),
        weight=6,
    ),
    "metrics": Format(
        ("resumed/metrics.jsonl", "resumed/checkpoint", "resumed/vocab.txt"),
        mutations.JSON_LINES,
        (
            (
                *("cmlm.train", "--config_file=resumed/params.yaml"),
                *("--train_data=corpus.txt", "--model_dir=resumed"),
                "--params_override=trainer.train_steps=5",
            ),
        ),
        needs=("corpus.txt",),
        weight=4,
        may_write=("resumed",),
    ),
    "classes": _own(
        "classification:own/classes.tsv", "own/classes.tsv", mutations.TEXT
    ),
    "labelled pairs": _own("pairs:own/pairs.tsv", "own/pairs.tsv", mutations.TEXT),
    "own scores": _own("sts:own/scored.tsv", "own/scored.tsv", mutations.TEXT),
    "beir": _own("retrieval:own/beir", "own/beir", mutations.JSON_LINES),
    "labels": _labels("classes.tsv"),
    "several labels": _labels("labels.csv"),
    "numbers as labels": _labels("numbers.tsv"),
    "queries to train on": _objective(
        "own/queries.tsv", "pairs", "--pair_data=own/queries.tsv"
    ),
    "scores to train on": _objective(
        "own/scored.tsv", "scored", "--scored_data=own/scored.tsv"
    ),
    "json dump": _dump("a.json.bz2", "json", mutations.BZIP2),
    "wet dump": _dump("a.wet.gz", "wet", mutations.GZIP),
    "wikipedia dump": _dump("a.xml", "wikipedia", mutations.TEXT),
    "pairs to prepare": _dump("a.tsv", "tsv", mutations.TEXT, "en-de"),
    "gettext": _dump("a.po", "gettext", mutations.TEXT, "en-de"),
    "quality model": Format(
        ("quality.npz",),
        mutations.NPZ,
        (
            (
                *("cmlm.prepare", "--input=corpus.txt", "--quality_model=quality.npz"),
                "--output=out/corpus",
            ),
        ),
        needs=("corpus.txt",),
        weight=2,
    ),
    "bert checkpoint": _encoding(
        *("original", "bert_config.json", "vocab.txt", "bert_model.ckpt.index"),
        "bert_model.ckpt.data-00000-of-00001",
        mutations=mutations.JSON,
    ),
    "byte pairs": _encoding(
        "roberta", "tokenizer.json", "config.json", mutations=mutations.JSON
    ),
    "unigrams": _encoding(
        "xlmr", "tokenizer.json", "config.json", mutations=mutations.JSON
    ),
    "kept scores": _later(
        *(later.KEPT_SCORES, "cache", "--output=out/report.json", ("run", "sets"), 4),
    ),
    "work_dir": _later(
        *(later.WORK_DIR, "work", "--output=out/m.tsv", ("run", "lines.txt"), 8),
    ),
    "teacher cache": _later(
        *(later.TEACHER_CACHE, "teacher", "--model_dir=out/student"),
        *(("run", "corpus.txt"), 2),
    ),
}
