"""`python -m cmlm.train`: every file in configs/ runs, every mistake is named."""

import os
import shutil
from pathlib import Path

import commands
import model_dirs
import pytest
import toys
import yaml
from absl import flags
from absl.testing import flagsaver

from cmlm import train
from cmlm.config import model_dir, overrides
from cmlm.data.nli import NliDataConfig
from cmlm.errors import UserError
from cmlm.training import building, engine, reporting, stages
from cmlm.training.stages import Stage

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.flags"))
# Made small, en_large is en_base again. What differs from these in the weights of its
# objectives only trains on one stack.
TRAINED = [path for path in CONFIGS if path.stem != "en_large"]
ON_BOTH_STACKS = {"quickstart", "labse"}


def configure(*arguments):
    with flagsaver.flagsaver():
        flags.FLAGS(["train", *map(str, arguments)])
        return train.configure(), flags.FLAGS.model_dir


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """What a second stage starts from: the run of a first one, at its first step."""
    directory = tmp_path_factory.mktemp("start")
    text = toys.write_corpus(directory / "corpus.txt")
    config = toys.run_config(text, **{"model.max_position_embeddings": 600})
    run = building.build(Stage(config, str(directory / "run")))
    run.manager.save(0)
    return str(directory / "run")


def kind(config, arguments: list[str]) -> tuple:
    """What makes a run another program, leaving out numbers that only tune it."""
    objectives = tuple(
        (
            name,
            *(
                str(value)
                for field, value in sorted(objective.as_dict().items())
                if isinstance(value, (str, bool)) and field != "validation_data"
            ),
        )
        for name, objective in config.task.enabled().items()
    )
    return (
        objectives,
        config.model.drophead_rate > 0,
        bool(config.trainer.stacking_steps),
        bool(config.init_layers),
        any("hard" in argument for argument in arguments),
    )


def shrink(config) -> None:
    """As `toys.shrink`, with two steps and sentences in place of passages."""
    toys.shrink(config)
    config.vocabulary.size = 200
    config.trainer.train_steps, config.trainer.validation_steps = 2, 1
    config.task.cmlm.passages = False
    for objective in config.task.enabled().values():
        objective.start_step = min(objective.start_step, 1)
        if objective.end_step is not None:
            objective.end_step = min(objective.end_step, 1)
    config.validate()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Text, pairs, scored pairs, NLI and n-grams."""
    directory = tmp_path_factory.mktemp("data")
    text = toys.write_corpus(directory / "corpus.txt")
    sentences = [line for line in Path(text).read_text().splitlines() if line]
    for name, last in (("bitext", ""), ("nli", "\tneutral")):
        rows = [f"{a}\t{b}{last}" for a, b in zip(sentences, sentences[7:])]
        (directory / f"{name}.tsv").write_text("\n".join(rows))
    scored = [
        f"{a}\t{b}\t{n % 5}" for n, (a, b) in enumerate(zip(sentences, sentences))
    ]
    (directory / "scored.tsv").write_text("\n".join(scored))
    (directory / "ngrams.tsv").write_text("the river\t1\nold boat\t1\nand small\t1\n")
    return directory


def data_flags(data: Path, config: Path) -> list[str]:
    text = data / "corpus.txt"
    found = {
        "train_data": f"en={text},de={text}",
        "bitext_data": f"en-de={data}/bitext.tsv",
        "nli_data": f"en={data}/nli.tsv,de={data}/nli.tsv",
        "pair_data": f"{data}/bitext.tsv",
        "scored_data": f"{data}/scored.tsv",
    }
    return [
        f"--params_override=task.misad.ngrams_file={data}/ngrams.tsv",
        # Data that nothing reads is refused.
        *(
            f"--{flag}={value}"
            for flag, value in found.items()
            if f"--{flag}" in config.read_text()
        ),
    ]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_whole(path, data, start, tmp_path):
    header, *settings = path.read_text().split("\n--")
    assert any(line.startswith("model_dir=") for line in settings)
    # The folder that a flagfile names may hold a run of the user.
    given = [f"--flagfile={path}", f"--model_dir={tmp_path}/run"]
    assert f"--flagfile=configs/{path.name}" in header
    second_stage = any(line.startswith("init_checkpoint") for line in settings)
    assert "--init_checkpoint" in header or not second_stage
    if any(line.startswith("train_data") for line in settings):
        config, _ = configure(*given)
        for objective in config.task.enabled().values():
            assert objective.train_data.input_path == "builtin:python-docs"
    else:
        given += [f"--init_checkpoint={start}"] if second_stage else []
        # An adaptation is complete without weights only to be printed.
        config, _ = configure(*given, "--print_config", *data_flags(data, path))
    # The steps of all objectives together cover the run.
    total = config.trainer.train_steps
    borders = {0, total - 1}
    for objective in config.task.enabled().values():
        borders |= {objective.start_step, (objective.end_step or total) - 1}
    for step in borders:
        assert any(task.is_active(step) for task in config.task.enabled().values())


@pytest.fixture(scope="module")
def trained() -> dict[tuple, str]:
    """The kinds of run that are trained already."""
    return {}


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[] if path.stem in ON_BOTH_STACKS else pytest.mark.large,
        )
        for path in TRAINED
    ],
)
def test_every_configuration_trains(path, data, start, trained, tmp_path):
    """Two steps of each kind of run, from the user's flags to the last checkpoint.

    With CMLM_EVERY_FLAGFILE=1 in the environment, of every flagfile.
    """
    run_dir = str(tmp_path / "run")
    arguments = [f"--flagfile={path}", f"--model_dir={run_dir}"]
    arguments += data_flags(data, path)
    if "--init_checkpoint" in path.read_text():
        arguments.append(f"--init_checkpoint={start}")
    if "--teacher" in path.read_text():
        arguments.append(f"--teacher={start}")
    if "init_layers" in path.read_text():
        arguments.append("--params_override=init_layers=[0]")
    config, _ = configure(*arguments)
    if not config.init_checkpoint and path.stem != "quickstart":
        config.vocabulary.file = f"{start}/vocab.txt"
    found = kind(config, arguments)
    if found in trained and os.environ.get("CMLM_EVERY_FLAGFILE") != "1":
        pytest.skip(f"trains as {trained[found]} does")
    trained[found] = path.stem
    shrink(config)
    planned = stages.plan(config, run_dir)
    for stage in planned:
        run = building.build(stage)
        engine.train(run, validate=stage is planned[-1])
    assert run.trainer.step == 2
    seen = {name: count.numpy() for name, count in run.trainer.batches_seen.items()}
    assert all(seen.values())


def test_a_second_stage_takes_the_shape_of_the_first(start, tmp_path):
    config, _ = configure(
        f"--flagfile={ROOT}/configs/mirror_sentence.flags",
        f"--model_dir={tmp_path}/run",
        f"--init_checkpoint={start}",
        "--train_data=a.txt",
    )
    assert config.model.hidden_size == 16 and config.model.num_layers == 1
    assert config.model.num_views == 3
    # How it is trained is not taken over.
    assert config.model.dropout_rate == 0.1


def test_cmlm_from_a_run_with_other_views_is_told(start, caplog):
    """P(v) belongs to the weights; the recipe of CMLM has the paper's 15 views."""
    data = ["--train_data=a.txt", "--experiment=cmlm/english"]
    config, _ = configure(f"--init_checkpoint={start}", *data)
    assert config.model.num_views == 3
    begun = config.model.max_position_embeddings
    said = f"model.num_views is 3, as in {start}; the recipe has 15 (--params_override="
    assert said in caplog.text
    caplog.clear()
    for views in (3, 15):
        given = f"--params_override=model.num_views={views}"
        config, _ = configure(f"--init_checkpoint={start}", *data, given)
        assert "num_views" not in caplog.text
        # Tokens keep their positions.
        assert config.model.max_position_embeddings == begun - 3 + views
    given += f",model.max_position_embeddings={begun}"
    said = f"is {begun}; allowed: {begun + 12} .{begun - 3} and model.num_views., as "
    with pytest.raises(UserError, match=said):
        configure(f"--init_checkpoint={start}", *data, given)


def test_a_second_stage_on_short_texts_does_not_shorten_the_encoder(start, tmp_path):
    begun = overrides.from_yaml(f"{start}/params.yaml").task.longest_sequence()
    for own in (begun - 3, begun + 3):
        config, _ = configure(
            f"--flagfile={ROOT}/configs/mirror_sentence.flags",
            f"--model_dir={tmp_path}/run",
            f"--init_checkpoint={start}",
            "--train_data=a.txt",
            f"--params_override=task.mirror.train_data.seq_length={own}",
        )
        assert config.longest_sentence == max(begun, own)


def test_labse_cuts_texts_at_128_tokens_after_a_longer_pre_training(start, tmp_path):
    longer = str(tmp_path / "longer")
    shutil.copytree(start, longer)
    begun = model_dir.read_config(longer)
    begun.model.max_position_embeddings = begun.model.seq_length = 512
    model_dir.write_config(longer, begun)
    config, _ = configure(
        f"--flagfile={ROOT}/configs/labse.flags",
        f"--init_checkpoint={longer}",
        "--bitext_data=en-de=a.tsv",
    )
    assert begun.longest_sentence > config.longest_sentence == 128


def test_a_second_stage_resolves_without_a_directory(start):
    config, model_dir = configure(f"--init_checkpoint={start}")
    assert model_dir is None
    assert config.model.hidden_size == 16 and config.model.num_layers == 1


def test_a_resumed_run_needs_its_start_no_more(start, tmp_path, monkeypatch):
    """Neither the weights nor the flag; the flag may name them in another form."""
    run, gone = str(tmp_path / "run"), str(tmp_path / "gone")
    shutil.copytree(start, run)
    begun = model_dir.read_config(run)
    begun.init_checkpoint = gone
    model_dir.write_config(run, begun)
    monkeypatch.chdir(tmp_path)
    for given, taken in (([], gone), (["--init_checkpoint=./gone/"], "./gone/")):
        config, _ = configure(
            f"--flagfile={ROOT}/configs/mirror_sentence.flags",
            *(f"--model_dir={run}", "--train_data=a.txt", *given),
        )
        assert config.model.hidden_size == 16 and config.model.num_layers == 1
        assert config.init_checkpoint == taken
    said = f"preset is 'large', which has num_layers=24; allowed: .*, as {run} says"
    with pytest.raises(UserError, match=said):
        configure(
            f"--flagfile={ROOT}/configs/mirror_sentence.flags",
            *(f"--model_dir={run}", "--train_data=a.txt"),
            "--params_override=model.preset=large",
        )


def test_a_warm_start_fills_the_first_stage_of_stacking(start, tmp_path):
    def layers(number, *flags):
        config, _ = configure(
            f"--init_checkpoint={start}",
            f"--params_override=model.num_layers={number},trainer.stacking_steps=[5]",
            *flags,
        )
        return config.model.num_layers

    assert layers(2) == 2
    with pytest.raises(
        UserError, match="has 1 layer, but the first stage of .* 2; allowed"
    ):
        layers(4)
    # The last stage, once it has begun, needs the weights no more.
    begun = model_dir.read_config(shutil.copytree(start, tmp_path / "run"))
    begun.model.num_layers, begun.init_checkpoint = 4, ""
    model_dir.write_config(str(tmp_path / "run"), begun)
    gone = f"--init_checkpoint={tmp_path}/gone"
    assert layers(4, f"--model_dir={tmp_path}/run", gone) == 4
    # Nor the flag.
    config, _ = configure(
        f"--model_dir={tmp_path}/run",
        "--params_override=trainer.stacking_steps=[5]",
    )
    assert config.model.num_layers == 4
    assert config.model.hidden_size == 16


@pytest.mark.parametrize(
    "setting, said",
    [
        ("num_layers=3", "num_layers is 3; allowed: multiples of 2, as trainer.stack"),
        ("preset=huge", "model.preset is 'huge'; allowed: tiny, "),
        (
            "preset=base",
            "has 1 layer, but the first stage of trainer.stacking_steps has 6; ",
        ),
        # Its layers are those of the last stage.
        ("preset=tiny", "preset is 'tiny', which has hidden_size=128; allowed: "),
    ],
)
def test_the_stages_divide_the_layers_of_flags_or_preset(start, setting, said):
    with pytest.raises(UserError, match=said):
        configure(
            f"--init_checkpoint={start}",
            f"--params_override=model.{setting},trainer.stacking_steps=[5]",
        )


@pytest.mark.large
def test_the_steps_of_an_objective_are_told(tmp_path, one_device):
    text = toys.write_corpus(tmp_path / "corpus.txt")
    settings = {
        "task.mlm.weight": 1,
        "task.mlm.train_data.input_path": text,
        "task.mlm.train_data.global_batch_size": 4,
        "task.mlm.train_data.seq_length": 16,
        "task.mlm.train_data.hold_out_fraction": 0.2,
        "task.mlm.end_step": 5,
        "task.cmlm.start_step": 5,
        "task.cmlm.end_step": 20,
        "trainer.micro_batch_size": 4,
        "runtime.mixed_precision_dtype": "float32",
    }
    config = toys.run_config(text, **settings)
    run = building.build(Stage(config, str(tmp_path / "run")), strategy=one_device)
    assert reporting.describe(run).splitlines()[1] == (
        "steps 0 to 20: cmlm 8 a step from step 5 in 2 micro-batches, "
        "mlm 4 a step until step 5; 1 replica, lamb 0.001, float32"
    )


@pytest.mark.parametrize(
    "name",
    [
        *("adapt_mirror", "adapt_cmlm", "adapt_distill", "adapt_pairs"),
        *("adapt_scored", "distill_layers", "mirror_sentence", "mirror_word"),
    ],
)
def test_an_adaptation_without_weights_is_refused(name, tmp_path):
    given = [f"--flagfile={ROOT}/configs/{name}.flags", f"--model_dir={tmp_path}/run"]
    said = "^--init_checkpoint is not given; allowed: weights to start from, because "
    if name.startswith("adapt"):
        # Another pooling would not give Mirror-BERT its weights.
        said += "model.pooling=source takes their pooling$"
    with pytest.raises(UserError, match=said):
        configure(*given)
    config, _ = configure(*given, "--print_config")
    assert config.init_checkpoint == ""


def test_flags_win_over_the_flagfile(tmp_path):
    vocab = tmp_path / "v.txt"
    vocab.write_text("\n".join(model_dirs.VOCAB) + "\n")
    config, model_dir = configure(
        f"--flagfile={ROOT}/configs/en_base.flags",
        "--model_dir=/elsewhere",
        "--train_data=a.txt,b.txt",
        "--validation_data=c.txt",
        f"--vocab_file={vocab}",
        "--distribution_strategy=mirrored",
        "--params_override=trainer.train_steps=3",
    )
    assert model_dir == "/elsewhere"
    assert config.task.cmlm.train_data.input_path == "a.txt,b.txt"
    assert config.task.cmlm.validation_data == "c.txt"
    assert config.vocabulary.file == str(vocab)
    assert config.runtime.distribution_strategy == "mirrored"
    assert config.trainer.train_steps == 3


@pytest.mark.parametrize(
    "flag, readers",
    {
        "bitext_data": ("tlm", "bitext", "distill_bitext"),
        "pair_data": ("pairs",),
        "scored_data": ("scored",),
        "nli_data": ("nli",),
        "pair_validation_data": ("pairs",),
        "scored_validation_data": ("scored",),
        "nli_validation_data": ("nli",),
        "teacher": ("distill", "distill_bitext"),
        "teacher_cache": ("distill", "distill_bitext"),
    }.items(),
)
def test_data_that_no_objective_reads_is_refused(flag, readers):
    arguments = [
        *(f"--flagfile={ROOT}/configs/en_small.flags", f"--{flag}=x"),
        "--model_dir=/elsewhere",
        "--params_override=model.max_position_embeddings=512",
    ]
    weights = [f"task.{name}.weight" for name in readers]
    with pytest.raises(UserError) as raised:
        configure(*arguments)
    assert str(raised.value) == (
        f"--{flag} is x, and no objective of the run reads it; allowed: with one of "
        f"these above 0: {', '.join(weights)}"
    )
    for weight in weights:
        configure(*arguments, f"--params_override={weight}=1")


def test_a_kind_of_data_without_its_flag_is_named(monkeypatch):
    monkeypatch.setattr(NliDataConfig, "flag", "labelled_data")
    said = (
        "^NliDataConfig of task.nli names the flag --labelled_data; allowed: the flags "
        "that cmlm/train.py defines$"
    )
    with pytest.raises(UserError, match=said):
        configure(f"--flagfile={ROOT}/configs/en_small.flags", "--train_data=x")


def test_text_of_a_flagfile_that_no_objective_reads_is_refused():
    arguments = [
        *(f"--flagfile={ROOT}/configs/quickstart.flags", "--bitext_data=x"),
        "--model_dir=/elsewhere",
        "--params_override=task.quickthought.weight=0,task.bitext.weight=1",
        "--params_override=trainer.best_checkpoint_metric=",
        "--params_override=model.max_position_embeddings=512",
    ]
    with pytest.raises(UserError, match="python-docs, and no objective of"):
        configure(*arguments)
    config, _ = configure(*arguments, "--train_data=")
    assert list(config.task.enabled()) == ["bitext"]


def test_print_config_prints_what_would_run_and_needs_no_data(capsys):
    arguments = ["--experiment=labse/pretrain", "--print_config"]
    with flagsaver.flagsaver():
        flags.FLAGS(["train", *arguments, "--params_override=trainer.train_steps=7"])
        assert train.main([]) is None
    printed = yaml.safe_load(capsys.readouterr().out)
    config, _ = configure(*arguments, "--params_override=trainer.train_steps=7")
    assert printed == yaml.safe_load(overrides.to_yaml(config))
    assert printed["trainer"]["train_steps"] == 7
    assert printed["model"]["num_layers"] == 12
    assert printed["task"]["tlm"]["train_data"]["input_path"] == ""


def test_without_data_the_flag_is_named():
    with flagsaver.flagsaver():
        flags.FLAGS(["train", "--experiment=labse/dual_encoder", "--model_dir=/x"])
        with pytest.raises(UserError, match=r"source<TAB>target \(--bitext_data\)"):
            train.main([])


def test_tpu_implies_its_strategy():
    config, _ = configure("--tpu=local")
    assert config.runtime.distribution_strategy == "tpu"
    # TensorFlow takes an empty name for the TPU that TPU_NAME names.
    assert config.runtime.tpu == "local"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


SENTENCES = b"One sentence here.\nAnother sentence there.\n\n" * 20


@pytest.mark.parametrize(
    "name, data, flag, message",
    [
        ("none", None, "--train_data={}/*.md", "*.md"),
        ("empty", b"", "--train_data={}/text.txt", "text.txt"),
        ("utf16", "Olá\n".encode("utf-16") * 9, "--train_data={}/text.txt", "text.txt"),
        ("long", b"a " * 2_000_000, "--train_data={}/text.txt", "line 1"),
        ("vocab", SENTENCES, "--vocab_file={}/text.txt", "[PAD]"),
        ("file", SENTENCES, "--model_dir={}/text.txt", "is a file"),
        ("pattern", SENTENCES, "--model_dir={}/lr?", "a path without *, ?, [ and"),
        ("start", SENTENCES, "--init_checkpoint={}/nothing", "nothing"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalnum() else "",
)
@pytest.mark.large
def test_mistakes_are_one_line_and_leave_no_checkpoint(
    name, data, flag, message, tmp_path
):
    if data is not None:
        write(tmp_path / "text.txt", data)
    good = write(tmp_path / "good.txt", SENTENCES)
    done = commands.run(
        "cmlm.train",
        f"--model_dir={tmp_path}/run",
        f"--train_data={good}",
        "--params_override=model.preset=tiny,vocabulary.size=200",
        flag.format(tmp_path),
    )
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("error: ") and message in lines[-1]
    assert "Traceback" not in done.stderr and not done.stdout
    assert not list(tmp_path.glob("run/ckpt*"))
    assert not list(tmp_path.glob("run/params.yaml"))
