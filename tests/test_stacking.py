"""Progressive stacking: layers are copies, stages follow each other and resume."""

import gc
import shutil
import types
import weakref
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import toys
from absl import flags
from absl.testing import flagsaver

from cmlm import train
from cmlm.common import distributed
from cmlm.config import model_dir
from cmlm.errors import UserError
from cmlm.modeling import restoring
from cmlm.modeling.stacking import stack
from cmlm.tokenization import vocabulary_file
from cmlm.training import agreement, building, engine, reporting, stages
from cmlm.training.stages import Stage
from cmlm.training.start import Start


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> str:
    return toys.write_corpus(tmp_path_factory.mktemp("text") / "corpus.txt")


def save(model, directory) -> str:
    checkpoint = tf.train.Checkpoint(model=model)
    return checkpoint.save(str(directory / "ckpt"))


@pytest.mark.parametrize("factor", [2, 4])
def test_upper_layers_are_copies_and_the_rest_is_taken(tmp_path, factor):
    shallow = toys.model(num_layers=2)
    deep = toys.model(num_layers=2 * factor)
    assert stack(deep, save(shallow, tmp_path)) == 2
    want = shallow.encoder.bert.transformer_layers
    for number, layer in enumerate(deep.encoder.bert.transformer_layers):
        for a, b in zip(
            layer.get_weights(), want[number % 2].get_weights(), strict=True
        ):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
        deep.encoder.embedding_table, shallow.encoder.embedding_table
    )
    for part in ("masked_lm", "projection"):
        for a, b in zip(
            deep.parts[part].get_weights(),
            shallow.parts[part].get_weights(),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b)


def test_a_stacked_encoder_begins_as_its_layers_twice(tmp_path):
    """Two equal layers in a row are one layer applied to its own output."""
    shallow, deep = toys.model(num_layers=1), toys.model(num_layers=2)
    stack(deep, save(shallow, tmp_path))
    batch = toys.pair_batch()
    outputs = shallow.encoder(batch)["encoder_outputs"]
    layer = shallow.encoder.bert.transformer_layers[0]
    mask = tf.cast(batch["input_mask"], tf.float32)
    attends = tf.ones_like(mask)[:, :, tf.newaxis] * mask[:, tf.newaxis]
    want = layer((outputs[0], attends))
    got = deep.encoder(batch)["sequence_output"]
    kept = batch["input_mask"].numpy() > 0
    np.testing.assert_allclose(got.numpy()[kept], want.numpy()[kept], atol=1e-4)


def test_layers_that_do_not_divide_are_named(tmp_path):
    path = save(toys.model(num_layers=2), tmp_path)
    with pytest.raises(UserError, match="2 layers; allowed: a number that divides 3"):
        stack(toys.model(num_layers=3), path)


@pytest.mark.parametrize("layers", [1, 4])
def test_a_start_with_other_layers_is_refused(tmp_path, layers):
    path = save(toys.model(num_layers=2), tmp_path)
    with pytest.raises(UserError, match=rf"2 layers; allowed: {layers}, the model's"):
        restoring.initialize(toys.model(num_layers=layers), path)


def test_a_start_without_the_relative_positions_of_its_source_is_refused(tmp_path):
    path = save(toys.model(relative_positions=True), tmp_path)
    said = "model.relative_positions is False; allowed: True, because .*ckpt-1 has"
    with pytest.raises(UserError, match=said):
        restoring.initialize(toys.model(), path)


@pytest.mark.parametrize("kept", [0, 100])
@pytest.mark.parametrize("part", ["index", "data"])
def test_a_damaged_stage_is_named(tmp_path, part, kept):
    path = save(toys.model(num_layers=1), tmp_path)
    (file,) = tmp_path.glob(f"*.{part}*")
    file.write_bytes(file.read_bytes()[:kept])
    said = f"{path} is (not a readable checkpoint: .|damaged, or does not fit)"
    with pytest.raises(UserError, match=said) as refused:
        stack(toys.model(num_layers=2), path)
    assert "\n" not in str(refused.value)


def test_stages_double_the_layers(text, tmp_path):
    config = toys.run_config(
        text, **{"model.num_layers": 8, "trainer.stacking_steps": "[3,4]"}
    )
    config.validate()
    planned = stages.plan(config, str(tmp_path / "run"))
    assert [stage.config.model.num_layers for stage in planned] == [2, 4, 8]
    assert [stage.config.trainer.train_steps for stage in planned] == [3, 4, 20]
    assert [stage.stacked_on for stage in planned] == [
        None,
        planned[0].directory,
        planned[1].directory,
    ]
    assert planned[-1].directory == str(tmp_path / "run")
    assert {stage.shared_directory for stage in planned} == {planned[-1].directory}
    assert planned[0].directory == str(tmp_path / "run" / "stages" / "2-layers")


def test_without_stacking_a_run_is_its_only_stage(text, tmp_path):
    config = toys.run_config(text)
    (stage,) = stages.plan(config, str(tmp_path))
    assert stage.config.as_dict() == config.as_dict() and stage.stacked_on is None


def test_an_objective_that_a_stage_does_not_reach_is_told(text, tmp_path, caplog):
    settings = {
        "model.num_layers": 2,
        "trainer.stacking_steps": "[5]",
        "task.mlm.weight": 1,
        "task.mlm.train_data.seq_length": 16,
        "task.cmlm.start_step": 10,
    }
    stages.plan(toys.run_config(text, **settings), str(tmp_path / "run"))
    (told,) = caplog.messages
    assert told == (
        f"task.cmlm.start_step is 10, and the run in {tmp_path}/run/stages/1-layers "
        "has 5 steps: it does not train cmlm"
    )
    # Each stage needs an objective in each of its steps.
    settings |= {"trainer.stacking_steps": "[30]", "task.mlm.end_step": 20}
    settings["task.cmlm.end_step"] = 20
    config = toys.run_config(text, **settings)
    with pytest.raises(UserError, match="no objective is active at step 20 of 30"):
        stages.plan(config, str(tmp_path / "run"))


def test_worker_0_names_the_checkpoint_of_the_stage_before(one_device, monkeypatch):
    paths = []
    monkeypatch.setattr(building.workers, "on_chief", lambda *_: "before/ckpt-7")
    monkeypatch.setattr(
        building.stacking, "stack", lambda model, path: paths.append(path) or 1
    )
    building._set_weights(
        types.SimpleNamespace(model=None, objectives={}),
        types.SimpleNamespace(latest_checkpoint=None),
        Start(Stage(None, "run", "before"), one_device),
    )
    assert paths == ["before/ckpt-7"]


def test_a_stage_owes_its_validation_until_the_next_one_begins(text, tmp_path):
    config = toys.run_config(
        text, **{"model.num_layers": 2, "trainer.stacking_steps": "[1]"}
    )
    first, last = planned = stages.plan(config, str(tmp_path / "run"))

    def save(stage, step):
        manager = tf.train.CheckpointManager(tf.train.Checkpoint(), stage.directory, 1)
        manager.save(checkpoint_number=step)

    save(first, 1)
    assert stages.count_done(planned, validates=True) == 0
    # Unless the command does not validate, or nothing is held out.
    assert stages.count_done(planned, validates=False) == 1
    first.config.task.cmlm.train_data.hold_out_fraction = 0.0
    assert stages.count_done(planned, validates=True) == 1
    first.config.task.cmlm.train_data.hold_out_fraction = 0.1
    metrics = Path(first.directory) / model_dir.METRICS
    metrics.write_text('{"step": 1, "validation/cmlm/loss": 2.0}\n')
    assert stages.count_done(planned, validates=True) == 1
    metrics.unlink()
    save(last, 1)
    assert stages.count_done(planned, validates=True) == 1


def test_the_start_of_a_stage_is_known_without_its_checkpoints(text, tmp_path):
    config = toys.run_config(
        text, **{"model.num_layers": 2, "trainer.stacking_steps": "[1]"}
    )
    first, _ = stages.plan(config, str(tmp_path / "run"))
    model_dir.write_config(first.directory, first.config)
    (Path(first.directory) / "checkpoint").write_text(
        'model_checkpoint_path: "ckpt-1"\n'
    )
    agreement.check_done(first)
    first.config.init_checkpoint = "bert"
    with pytest.raises(UserError, match="started without --init_checkpoint"):
        agreement.check_done(first)


def test_a_later_stage_of_an_earlier_version_has_the_start_of_the_first(text, tmp_path):
    """It named none itself, nor the stage before."""
    config = toys.run_config(
        text, **{"model.num_layers": 4, "trainer.stacking_steps": "[1,1]"}
    )
    config.init_checkpoint = "bert"
    first, middle, last = planned = stages.plan(config, str(tmp_path / "run"))
    for stage in planned:
        start = "bert" if stage is first else ""
        begun = stage.config.replace(init_checkpoint=start)
        model_dir.write_config(stage.directory, begun)
    agreement.check_done(middle)
    middle.config.init_checkpoint = "other"
    with pytest.raises(
        UserError, match="started from bert, but this command names other"
    ):
        agreement.check_done(middle)
    for stage in planned:
        begun = model_dir.read_config(stage.directory)
        assert begun.stacked_on == (stage.stacked_on or "")
        assert begun.init_checkpoint == "bert"
    # Without the first stage, the start is not known.
    shutil.rmtree(first.directory)
    assert model_dir.read_config(last.directory).init_checkpoint == ""
    # Stages that are known to be stacked named their start.
    for stage in (first, last):
        begun = stage.config.replace(stacked_on=stage.stacked_on or "")
        begun.init_checkpoint = "" if stage is last else "bert"
        model_dir.write_config(stage.directory, begun)
    assert model_dir.read_config(last.directory).init_checkpoint == ""


def two_stages(text):
    """A run of a step with one layer and of two steps with two."""
    return toys.run_config(
        text,
        **{
            "model.num_layers": 2,
            "trainer.stacking_steps": "[1]",
            "trainer.train_steps": 2,
            "trainer.checkpoint_interval": 1,
        },
    )


@pytest.mark.usefixtures("eager")
@pytest.mark.large
def test_a_stage_is_gone_when_the_next_one_begins(
    text, tmp_path, one_device, monkeypatch
):
    models, build = [], building.build

    def watched(*arguments, **settings):
        assert not [model for model in models if model() is not None]
        built = build(*arguments, **settings)
        models.append(weakref.ref(built.trainer.model))
        return built

    monkeypatch.setattr(building, "build", watched)
    planned = stages.plan(two_stages(text), str(tmp_path / "run"))
    # Keras' layers form cycles.
    gc.disable()
    try:
        with flagsaver.flagsaver():
            flags.FLAGS(["train", f"--model_dir={tmp_path}/run", "--mode=train"])
            assert train._train_stages(planned, one_device) is None
    finally:
        gc.enable()
    assert len(models) == 2


@pytest.mark.usefixtures("eager")
@pytest.mark.large
def test_stages_run_and_resume_in_the_middle_of_one(text, tmp_path):
    config = two_stages(text)

    def run(directory):
        planned = stages.plan(config, str(directory))
        for stage in planned[stages.count_done(planned, validates=False) :]:
            built = building.build(stage)
            engine.train(built, validate=False)
        return built

    straight = run(tmp_path / "straight")
    # Both stages; the last one has made one of its two steps.
    toys.rewind(tmp_path / "straight", tmp_path / "stopped", step=1)
    planned = stages.plan(config, str(tmp_path / "stopped"))
    assert stages.count_done(planned, validates=False) == 1
    assert stages.count_done(planned[:1], validates=False) == 1
    resumed = run(tmp_path / "stopped")
    for a, b in zip(
        straight.trainer.model.encoder.get_weights(),
        resumed.trainer.model.encoder.get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    vocabularies = {
        (path / vocabulary_file.FILE_NAME).read_text()
        for path in (tmp_path / "stopped", tmp_path / "stopped" / "stages" / "1-layers")
    }
    assert len(vocabularies) == 1
    # A stage before the last does not go on with more steps.
    first = building.build(planned[0])
    assert first.is_over and reporting.remark(first, planned[0]) is None
    # A finished run needs its stages no more.
    shutil.rmtree(tmp_path / "stopped" / "stages")
    assert stages.count_done(planned, validates=False) == 2
    last = planned[-1]
    again = building.build(last)
    assert again.is_over
    said = (
        "finished its 2 steps; a larger trainer.train_steps continues it on this text"
    )
    assert said in reporting.remark(again, last)


@pytest.mark.usefixtures("eager")
@pytest.mark.large
@pytest.mark.parametrize("source", ["vocab_file", "init_checkpoint"])
def test_a_stage_takes_tokenizer_json_and_precision_from_the_stage_before(
    text, tmp_path, monkeypatch, source
):
    words = sorted(set(open(text).read().lower().split()))
    tokens = [*vocabulary_file.SPECIAL_TOKENS, *words]
    ids = {token: number for number, token in enumerate(tokens)}
    values = {
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "cls": ["[CLS]", ids["[CLS]"]],
            "sep": ["[SEP]", ids["[SEP]"]],
        },
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": ids},
    }
    config = toys.run_config(
        text, **{"model.num_layers": 2, "trainer.stacking_steps": "[1]"}
    )
    config.vocabulary.file = vocabulary_file.write_json(values, str(tmp_path))
    first, last = stages.plan(config, str(tmp_path / "run"))
    if source == "init_checkpoint":
        # The vocabulary comes with the weights, and no setting names it.
        begun = building.build(Stage(first.config.replace(), str(tmp_path / "begun")))
        engine.train(begun, validate=False)
        config.init_checkpoint, config.vocabulary.file = begun.directory, ""
        first, last = stages.plan(config, str(tmp_path / "run"))
    engine.train(building.build(first), validate=False)
    # A run does not change its precision between two stages.
    last.config.runtime.mixed_precision_dtype = distributed.AUTO
    monkeypatch.setattr(distributed, "fast_precision", lambda runtime: "bfloat16")
    built = building.build(last)
    assert built.config.runtime.mixed_precision_dtype == "float32"
    assert built.config.vocabulary.file == f"{first.directory}/tokenizer.json"
    assert [path.name for path in (tmp_path / "run").glob("*.json")] == [
        "tokenizer.json"
    ]
    assert built.config.model.vocab_size == len(tokens)
    if source == "vocab_file":
        return
    # The last stage is known to start from these weights, also without the first.
    start, asked = config.init_checkpoint, last.config.replace(init_checkpoint="bert")
    built.manager.save(0)
    with pytest.raises(UserError, match=f"started from {start}, .* names bert"):
        building.build(Stage(asked, last.directory, last.stacked_on))
    # In an earlier version, it named none.
    begun = model_dir.read_config(last.directory)
    assert begun.stacked_on == first.directory
    begun = begun.replace(init_checkpoint="", stacked_on="")
    model_dir.write_config(last.directory, begun)
    building.build(last)
    begun = model_dir.read_config(last.directory)
    assert begun.init_checkpoint == start and begun.stacked_on == first.directory
    shutil.rmtree(first.directory)
    model_dir.write_config(last.directory, begun.replace(init_checkpoint=""))
    with pytest.raises(UserError, match="started without --init_checkpoint, .* names"):
        building.build(last)
    # Without the stages before, one of an earlier version may have started anywhere.
    begun = begun.replace(init_checkpoint="", stacked_on="")
    model_dir.write_config(last.directory, begun)
    # A build fills in the vocabulary of the stage before, which is gone.
    *_, last = stages.plan(config, str(tmp_path / "run"))
    building.build(last)
    begun = model_dir.read_config(last.directory)
    assert begun.init_checkpoint == start and begun.stacked_on == first.directory
