"""docs/papers/ and configs/papers/: every printed command runs, at toy size.

The commands are taken as a reader finds them: from the fences of the pages and from the
headers of the flagfiles. Paths are replaced by toy data, and what costs time is made
small; all else stays. Training commands resolve to a checked configuration, and one of
each kind trains two steps. The other commands run as they are.
"""

import bz2
import collections
import functools
import os
import re
from pathlib import Path

import commands as warm
import printed_commands
import pytest
import test_prepare
import test_sources
import testsets
import toys
import wet_files
from absl import flags
from absl.testing import flagsaver
from test_train import kind

from cmlm import train
from cmlm.config import loading
from cmlm.training import building, engine, stages
from cmlm.training.stages import Stage

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
FLAGFILES = sorted((ROOT / "configs" / "papers").rglob("*.flags"))
# Trained by test_train.py.
MODELS = sorted((ROOT / "configs").glob("*.flags"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT / "configs" / "papers").with_suffix(""))


# ------------------------------------------------------------------------- reading


def of_page(path: Path) -> list[list[str]]:
    fences = re.findall(r"^```[^\n]*\n(.*?)^```", path.read_text("utf-8"), re.S | re.M)
    return [words for fence in fences for words in printed_commands.found_in(fence)]


def of_header(path: Path) -> list[list[str]]:
    return printed_commands.found_in(path.read_text("utf-8"))


PRINTED = [words for path in PAGES for words in of_page(path)]
PRINTED += [words for path in FLAGFILES for words in of_header(path)]
BY_MODULE = collections.defaultdict(list)
for _module, *_arguments in PRINTED:
    if _arguments not in BY_MODULE[_module]:
        BY_MODULE[_module].append(_arguments)


# ------------------------------------------------------------------------ toy data


def write_dumps(directory: Path) -> dict[str, str]:
    """The sources of cmlm.prepare, by layout; its `tsv` is the toy bitext."""
    crawl, wiki = directory / "crawl.wet.gz", directory / "wiki.xml.bz2"
    wet_files.write(crawl, [test_prepare.PAGE.format(n) for n in range(30)])
    article = test_sources.PAGE % (1, 0, 1, "", test_sources.MARKUP)
    wiki.write_bytes(bz2.compress((test_sources.DUMP % article).encode()))
    bitext = str(directory / "bitext.tsv")
    return {"wet": str(crawl), "wikipedia": str(wiki), "tsv": bitext}


@pytest.fixture(scope="module")
def toy(tmp_path_factory) -> dict[str, str]:
    """What stands for the paths of the page, by flag."""
    directory = tmp_path_factory.mktemp("toy")
    text = toys.write_corpus(directory / "corpus.txt", documents=30, sentences=12)
    lines = [line for line in Path(text).read_text().splitlines() if line]
    columns = [lines, lines[7:], lines[11:], lines[13:], lines[17:]]
    for name, width, last in (
        ("bitext", 2, ""),
        ("hard", 5, ""),
        ("nli", 2, "neutral"),
    ):
        rows = [[*row, last] if last else row for row in zip(*columns[:width])]
        path = directory / f"{name}.tsv"
        path.write_text("\n".join("\t".join(row) for row in rows) + "\n")
    marked = [f"{line}\t{' '.join(line.split()[:2])}" if line else "" for line in lines]
    (directory / "marked.txt").write_text("\n".join(marked) + "\n")
    (directory / "target.txt").write_text("\n".join(reversed(lines)) + "\n")
    (directory / "names.txt").write_text("river boat\nold bridge\nsmall\n")
    config = toys.run_config(text, **{"model.max_position_embeddings": 600})
    run = building.build(Stage(config, str(directory / "run")))
    run.manager.save(0)
    values = {"model.max_position_embeddings": 600}
    values["task.quickthought.weight"], values["task.cmlm.weight"] = 1, 0
    values["task.quickthought.encoders"] = "two"
    values["task.quickthought.train_data.input_path"] = text
    values["task.quickthought.train_data.seq_length"] = 16
    values["task.quickthought.train_data.global_batch_size"] = 8
    values["trainer.best_checkpoint_metric"] = ""
    building.build(
        Stage(toys.run_config(text, **values), str(directory / "two"))
    ).manager.save(0)
    return {
        "text": text,
        "bitext": str(directory / "bitext.tsv"),
        "hard": str(directory / "hard.tsv"),
        "nli": str(directory / "nli.tsv"),
        "marked": str(directory / "marked.txt"),
        "target": str(directory / "target.txt"),
        "names": str(directory / "names.txt"),
        "vocab": str(directory / "run" / "vocab.txt"),
        "run": str(directory / "run"),
        "two": str(directory / "two"),
        "testsets": testsets.write(directory / "testsets"),
        **write_dumps(directory),
        "directory": str(directory),
    }


def _files(value: str, path: str, toy: dict[str, str]) -> str:
    """`en=...,de=...` with toy files of the kind that the printed name tells."""
    path = toy["marked"] if "marked" in value else path
    parts = [part.partition("=") for part in value.split(",")]
    return ",".join(
        f"{name}={toy['hard'] if 'hard' in pattern else path}" if pattern else path
        for name, _, pattern in parts
    )


def made_small(module: str, arguments: list[str], toy: dict[str, str], output: Path):
    """The arguments of a printed command, with toy data and little work."""
    path_of = {
        "train_data": toy["text"],
        "bitext_data": toy["bitext"],
        "nli_data": toy["nli"],
        "bitext": toy["bitext"],
        "source": toy["text"],
        "target": toy["target"],
        "input": toy["text"],
    }
    found = []
    if module == "cmlm.prepare":
        layouts = [each for each in arguments if each.startswith("--layout=")]
        path_of["input"] = toy[layouts[0].partition("=")[2]]
    for argument in arguments:
        flag, _, value = argument.removeprefix("--").partition("=")
        if flag in path_of:
            value = _files(value, path_of[flag], toy)
        elif flag in ("init_checkpoint", "model"):
            prefix = re.match(r"(best|untrained|bow|both):|", value).group()
            value = prefix + toy["two" if prefix == "both:" else "run"]
        elif flag == "vocab_file":
            value = toy["vocab"]
        elif flag == "data_dir":
            value = toy["testsets"]
        elif flag in ("output", "model_dir", "marked_output"):
            value = str(output / (os.path.basename(value) or flag))
        elif flag == "tasks":
            value = value.replace("sentences.txt", toy["text"])
        elif flag == "size":
            value = "200"
        elif flag in ("seeds", "repeats"):
            # The seeds of cmlm.finetune are a list.
            value = "0" if module == "cmlm.finetune" else "2"
        elif flag == "params_override":
            value = re.sub(r"(entities_file)=[^,]+", rf"\1={toy['names']}", value)
        found.append(f"--{flag}={value}" if "=" in argument else argument)
    if "--flagfile=configs/distill_layers.flags" in arguments:
        # The toy encoder has one layer.
        found.append("--params_override=init_layers=[0]")
    return found


# ------------------------------------------------------------------------- the pages


@pytest.mark.parametrize("path", FLAGFILES, ids=_name)
def test_a_flagfile_stands_on_the_page_of_its_paper(path):
    page = ROOT / "docs" / "papers" / f"{path.parent.name}.md"
    assert f"(../../{path.relative_to(ROOT)})" in page.read_text("utf-8")


@pytest.mark.parametrize("path", FLAGFILES, ids=_name)
def test_a_flagfile_opens_with_its_row_and_its_command(path):
    header = path.read_text("utf-8").split("\n--")[0]
    said = " ".join(header.replace("#", " ").split())
    papers = {"cmlm": "CMLM", "labse": "LaBSE", "mirror_bert": "Mirror", "ulr": "ULR"}
    assert said.startswith(papers[path.parent.name])
    own = f"--flagfile={path.relative_to(ROOT)}"
    assert any(own in words for words in of_header(path))
    assert "The paper:" in said or "Hardware and time: not printed" in said
    assert "Expected:" in said or "pretrain" in path.stem
    assert "Not run yet." in said


def test_a_printed_run_names_its_vocabulary_or_its_start():
    # Otherwise each row would learn a vocabulary of its own.
    flagfiles = {argument for words in PRINTED for argument in words[1:2]}
    headers = [words for path in MODELS for words in of_header(path)]
    headers = [words for words in headers if words[1] in flagfiles]
    for words in PRINTED + headers:
        if words[0] == "cmlm.train":
            given = {word.partition("=")[0] for word in words}
            assert given & {"--vocab_file", "--init_checkpoint"}, words


# The settings of each row, under `task.`, `model.` or `trainer.`. The papers print most
# of them. Of CMLM's baselines, the share of masked tokens, the optimizer and the steps
# are our choice.
_BASE = {"model.preset": "base", "trainer.train_steps": 1_000_000}
_MIRROR = {
    "model.dropout_rate": 0.1,
    "task.mirror.scale": 25.0,
    "task.mirror.span.length": 5,
    "trainer.epochs": 1,
    "trainer.optimizer.learning_rate": 2e-5,
}
_NO_DROPOUT = {"model.dropout_rate": 0.0, "model.attention_dropout_rate": 0.0}
_WORD = {"model.pooling": "cls", "trainer.epochs": 2}
_DUAL = {
    "task.bitext.margin": 0.3,
    "task.bitext.train_data.global_batch_size": 4096,
    # Of bitext that is cut to 100 M pairs a language (section 3.1).
    "task.bitext.train_data.sampling_exponent": 1.0,
}
_PRETRAIN = {
    "task.mlm.weight": 1.0,
    "task.tlm.weight": 1.0,
    "task.tlm.train_data.sampling_exponent": 1.0,
}
_PRE_TRAINED = {"trainer.train_steps": 50_000, "model.seq_length": 128}
_FROM_SCRATCH = {"trainer.train_steps": 500_000}
_ULR = {"trainer.train_steps": 156_250, "trainer.optimizer.learning_rate": 5e-5}
SETTINGS = {
    **{
        f"papers/cmlm/en_views_{n}": {**_BASE, "model.num_views": n}
        for n in (1, 5, 10, 20)
    },
    **{
        f"papers/cmlm/en_masks_{n}": {
            **_BASE,
            "task.cmlm.masking.rate": n / 256,
            "task.cmlm.masking.max_predictions": n,
        }
        for n in (40, 60, 100)
    },
    **{
        f"papers/cmlm/en_pooling_{how}": {**_BASE, "model.pooling": how}
        for how in ("max", "cls")
    },
    "papers/cmlm/en_skip": {**_BASE, "task.cmlm.skip": True},
    "papers/cmlm/en_bert_base": {**_BASE, "task.mlm.masking.rate": 0.15},
    "papers/cmlm/en_bert_large": {
        "model.preset": "large",
        "task.mlm.masking.rate": 0.15,
    },
    "papers/cmlm/en_bert_nsp": {**_BASE, "task.nsp.masking.rate": 0.15},
    "papers/cmlm/en_quickthought": {
        **_BASE,
        "task.quickthought.encoders": "two",
        "task.quickthought.similarity": "dot",
        "task.quickthought.scale": 1.0,
        "task.quickthought.margin": 0.0,
    },
    "papers/cmlm/f_mbert": {"task.bitext.weight": 0.2, "task.cmlm.weight": 1.0},
    "papers/cmlm/multilingual_cmlm_only": {"trainer.train_steps": 2_000_000},
    "papers/cmlm/multilingual_mlm": {
        "task.mlm.masking.rate": 0.15,
        "trainer.train_steps": 2_000_000,
    },
    # Section 4.4: joint training, then the stages of S2 and S3.
    "multilingual_s1": {"task.bitext.weight": 0.2, "trainer.train_steps": 2_000_000},
    "multilingual_cmlm": {"trainer.train_steps": 1_500_000},
    "multilingual_s2": {"task.bitext.margin": 0.3, "trainer.train_steps": 1_000_000},
    "multilingual_s3": {"task.bitext.weight": 0.2, "trainer.train_steps": 1_000_000},
    "labse": {**_DUAL, **_PRE_TRAINED},
    "labse_pretrain": {**_PRETRAIN, "trainer.train_steps": 1_800_000},
    "papers/labse/custom_vocab_ams": {**_DUAL, **_FROM_SCRATCH},
    "papers/labse/mbert_vocab": {**_DUAL, **_FROM_SCRATCH, "task.bitext.margin": 0.0},
    "papers/labse/mbert_vocab_ams": {**_DUAL, **_FROM_SCRATCH},
    "papers/labse/mbert_vocab_ams_pt": {**_DUAL, **_PRE_TRAINED},
    "papers/labse/mbert_vocab_pt": {**_DUAL, **_PRE_TRAINED, "task.bitext.margin": 0.0},
    **{
        f"papers/labse/margin_{name}": {
            **_DUAL,
            **_PRE_TRAINED,
            "task.bitext.margin": margin,
        }
        for name, margin in (("0", 0.0), ("0_1", 0.1), ("0_2", 0.2))
    },
    "papers/labse/hard_negatives": {
        **_DUAL,
        "task.bitext.train_data.global_batch_size": 32 * 32,
    },
    # The shape is that of the pre-training.
    "papers/labse/large": {**_DUAL, **_PRE_TRAINED},
    "papers/labse/large_pretrain": {
        **_PRETRAIN,
        "model.preset": "large",
        "trainer.stacking_steps": (),
        "trainer.train_steps": 1_000_000,
    },
    "papers/labse/pretrain_mbert_vocab": {
        **_PRETRAIN,
        "trainer.stacking_steps": (400_000, 800_000),
        "trainer.train_steps": 1_800_000,
    },
    "papers/labse/scale_1": {**_DUAL, "task.bitext.scale": 1.0},
    "papers/labse/released": {
        "model.pooling": "pooler",
        "model.seq_length": 32,
        "task.bitext.scale": 100.0,
        "task.bitext.train_data.seq_length": 32,
        "task.bitext.cross_replica_negatives": False,
        "trainer.train_steps": 500_000,
        "trainer.optimizer.learning_rate": 1e-4,
        "trainer.optimizer.warmup_steps": 5_000,
        "trainer.optimizer.weight_decay_rate": 0.0,
        "trainer.optimizer.epsilon": 1e-5,
        "trainer.optimizer.clip_norm": 100.0,
    },
    "papers/mirror_bert/sentence_roberta": {**_MIRROR, "model.pooling": "cls"},
    "papers/mirror_bert/sentence_bert_drophead": {
        **_MIRROR,
        **_NO_DROPOUT,
        "model.drophead_rate": 0.2,
    },
    "papers/mirror_bert/sentence_roberta_drophead": {
        **_MIRROR,
        **_NO_DROPOUT,
        "model.drophead_rate": 0.05,
        "model.pooling": "cls",
    },
    "papers/mirror_bert/no_dropout": {**_MIRROR, **_NO_DROPOUT},
    "papers/mirror_bert/no_span": {**_MIRROR, "task.mirror.span.length": 0},
    "papers/mirror_bert/no_augmentation": {
        **_MIRROR,
        **_NO_DROPOUT,
        "task.mirror.span.length": 0,
    },
    "papers/mirror_bert/controlled_dropout": {
        **_MIRROR,
        "model.pooling": "cls",
        "task.mirror.controlled_dropout": True,
        "task.mirror.span.length": 0,
    },
    "papers/mirror_bert/biomedical": {
        **_MIRROR,
        **_WORD,
        "task.mirror.span.length": 2,
        "task.mirror.train_data.seq_length": 25,
    },
    "papers/mirror_bert/random_strings": {
        **_WORD,
        "task.mirror.scale": 5.0,
        "task.mirror.span.length": 0,
        "trainer.optimizer.learning_rate": 5e-5,
    },
    "papers/ulr/mlm": {**_ULR, "task.mlm.masking.rate": 0.15},
    "papers/ulr/nsp": {**_ULR, "task.nsp.masking.rate": 0.15},
    "papers/ulr/sop": {**_ULR, "task.sop.masking.rate": 0.15},
    "papers/ulr/random_spans": {**_ULR, "task.misad.candidates": "spans"},
    "papers/ulr/entities": {**_ULR, "task.misad.candidates": "entities"},
    "papers/ulr/released": {
        "task.misad.choice": "random",
        "task.misad.form": "released",
        "trainer.optimizer.learning_rate": 3e-6,
        "trainer.optimizer.warmup_steps": 0,
        "trainer.optimizer.weight_decay_rate": 0.0,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_flagfile_has_the_settings_of_its_row(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    with flagsaver.flagsaver():
        flags.FLAGS(["train", f"--flagfile=configs/{name}.flags"])
        given = flags.FLAGS.experiment, (), flags.FLAGS.params_override
        config = loading.load(*given)
    config.validate()
    found = {
        key: functools.reduce(getattr, key.split("."), config) for key in SETTINGS[name]
    }
    assert found == SETTINGS[name]
    # An objective with a setting of the row is on.
    tasks = {key.split(".")[1] for key in SETTINGS[name] if key.startswith("task.")}
    assert tasks <= set(config.task.enabled())


def test_every_flagfile_of_a_row_has_settings():
    assert {f"papers/{_name(path)}" for path in FLAGFILES} <= SETTINGS.keys()


def test_commands_are_found():
    """A change of layout must not empty the walk."""
    assert len(BY_MODULE["cmlm.train"]) > len(FLAGFILES)
    assert len(BY_MODULE["cmlm.evaluate"]) > 20
    known = {f"cmlm.{path.stem}" for path in (ROOT / "cmlm").glob("*.py")}
    assert set(BY_MODULE) <= known


# -------------------------------------------------------------------------- training


def configure(arguments):
    with flagsaver.flagsaver():
        flags.FLAGS(["train", *arguments])
        return train.configure()


def flagfile_of(arguments: list[str]) -> str:
    return next(a.partition("=")[2] for a in arguments if a.startswith("--flagfile="))


@pytest.mark.parametrize(
    "number",
    range(len(BY_MODULE["cmlm.train"])),
    ids=lambda n: f"{n}-{Path(flagfile_of(BY_MODULE['cmlm.train'][n])).stem}",
)
def test_a_training_command_resolves(number, toy, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    printed = BY_MODULE["cmlm.train"][number]
    config = configure(made_small("cmlm.train", printed, toy, tmp_path))
    assert config.task.enabled()
    for objective in config.task.enabled().values():
        assert os.path.exists(objective.train_data.input_path.split("=")[-1])


@pytest.fixture(scope="module")
def trained(toy, tmp_path_factory) -> dict[tuple, str]:
    """The kinds of run that are trained already; first those of test_train.py."""
    found = {}
    for path in MODELS:
        for module, *printed in of_header(path):
            if module == "cmlm.train":
                output = tmp_path_factory.mktemp(path.stem)
                arguments = made_small(module, printed, toy, output)
                found.setdefault(kind(configure(arguments), arguments), path.name)
    return found


@pytest.mark.usefixtures("eager")
@pytest.mark.large
@pytest.mark.parametrize("path", FLAGFILES, ids=_name)
def test_a_flagfile_trains(path, toy, trained, tmp_path, monkeypatch):
    """One step of each kind of run that no other test trains.

    With CMLM_EVERY_FLAGFILE=1 in the environment, one step of every flagfile.
    """
    monkeypatch.chdir(ROOT)
    own = f"--flagfile={path.relative_to(ROOT)}"
    printed = next(words for words in of_header(path) if own in words)[1:]
    arguments = made_small("cmlm.train", printed, toy, tmp_path)
    config = configure(arguments)
    if not config.vocabulary.file and not config.init_checkpoint:
        config.vocabulary.file = toy["vocab"]
    found = kind(config, arguments)
    if found in trained and os.environ.get("CMLM_EVERY_FLAGFILE") != "1":
        pytest.skip(f"trains as {trained[found]} does")
    trained[found] = _name(path)
    toys.shrink(config)
    config.validate()
    for stage in stages.plan(config, str(tmp_path / "run")):
        run = building.build(stage)
        engine.train(run, validate=False)
    assert run.trainer.step == 1
    assert all(count.numpy() for count in run.trainer.batches_seen.values())


# ---------------------------------------------------------------- all other commands

# What makes a command small that its flags do not.
SMALLER = {
    "cmlm.evaluate": f"""
{warm.OPEN_ONCE}
# Figures are made and not drawn: test_evaluate.py looks for them in a report.
from matplotlib.figure import Figure
Figure.savefig = lambda *args, **kwargs: None
from cmlm.evaluation import classifier
classifier.FOLDS, classifier.GRID = 2, (1.0,)
""",
}
MORE_FLAGS = {
    "cmlm.finetune": ["--epochs=1", "--batch_size=8"],
    "cmlm.prepare": ["--workers=1"],
}
NEEDS = {"cmlm.mine": "faiss", "cmlm.evaluate": "sklearn"}


@pytest.mark.large
@pytest.mark.parametrize("module", sorted(BY_MODULE.keys() - {"cmlm.train"}))
def test_commands_run(module, toy, tmp_path):
    if module in NEEDS:
        pytest.importorskip(NEEDS[module])
    # What differs in the names of models and outputs only is one command.
    cases, scored = {}, set()
    for number, arguments in enumerate(BY_MODULE[module]):
        output = tmp_path / str(number)
        output.mkdir()
        case = made_small(module, arguments, toy, output)
        case += MORE_FLAGS.get(module, [])
        # The collection is scored once; after that, one task of it.
        if any("--tasks=senteval" in other for other in cases):
            case = [a.replace("--tasks=senteval", "--tasks=trec") for a in case]
        # Nor are tasks scored again that were, with all the other flags of this case.
        rest = tuple(a for a in case if not a.startswith(("--output", "--tasks")))
        tasks = {
            (rest, task)
            for argument in case
            if argument.startswith("--tasks=")
            for task in argument.partition("=")[2].split(",")
        }
        if tasks and tasks <= scored:
            continue
        scored |= tasks
        cases[tuple(a for a in case if not a.startswith("--output"))] = case
    answers = warm.repeatedly(module, list(cases.values()), SMALLER.get(module, ""))
    failed = [
        (case, said[-1500:])
        for case, (code, _, said) in zip(cases.values(), answers, strict=True)
        if code
    ]
    assert not failed
