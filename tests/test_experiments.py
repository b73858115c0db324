"""Recipes and configurations: what they hold, and one clear line for a mistake."""

from pathlib import Path

import pytest

from cmlm import experiments
from cmlm.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", experiments.names())
def test_recipes_are_valid_and_round_trip(name, tmp_path):
    config = experiments.load(name)
    config.validate()
    path = tmp_path / "params.yaml"
    path.write_text(experiments.to_yaml(config))
    assert experiments.from_yaml(str(path)).as_dict() == config.as_dict()


def test_english_cmlm_has_the_papers_numbers():
    config = experiments.load("cmlm/english")
    config.validate()
    cmlm, optimizer = config.task.cmlm, config.trainer.optimizer
    assert config.model.num_layers == 12 and config.model.hidden_size == 768
    assert config.model.num_views == 15 and config.model.pooling == "mean"
    assert cmlm.train_data.global_batch_size == 2048
    assert cmlm.train_data.seq_length == 256
    assert cmlm.masking.max_predictions == 80
    assert round(cmlm.masking.rate * 256) == 80
    assert optimizer.type == "lamb" and optimizer.learning_rate == 1e-3
    assert (optimizer.beta_1, optimizer.beta_2) == (0.9, 0.999)
    assert optimizer.warmup_steps == 10_000
    assert config.trainer.train_steps == 1_000_000
    assert config.vocabulary.lower_case


def test_later_overrides_win_and_files_come_first(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("trainer:\n  train_steps: 5\nmodel:\n  preset: tiny\n")
    config = experiments.load(
        "cmlm/english",
        [str(path)],
        [
            "trainer.train_steps=6,trainer.optimizer.learning_rate=1e-4",
            "trainer.train_steps=7",
        ],
    )
    config.validate()
    assert config.trainer.train_steps == 7
    assert config.trainer.optimizer.learning_rate == 1e-4
    assert config.model.num_layers == 2


def test_a_size_beside_a_preset_wins():
    config = experiments.load(
        "cmlm/english", (), ["model.preset=tiny,model.num_layers=3"]
    )
    config.validate()
    assert (config.model.num_layers, config.model.hidden_size) == (3, 128)


@pytest.mark.parametrize(
    "override, message",
    [
        ("model.presett=tiny", "model has no 'presett'; it has: preset, "),
        ("task.bitex.weight=1", "task has no 'bitex'; it has: cmlm, mlm"),
        ("model.preset=huge", "model.preset is 'huge'; allowed: tiny, "),
        ("model.pooling=first", "model.pooling is 'first'; allowed: mean, max, cls"),
        ("model.num_layers=two", "model.num_layers is 'two'; it must be int or null"),
        ("model.num_layers=0", "model.num_layers is 0; at least 1"),
        ("model.num_attention_heads=5", "it must divide model.hidden_size, 768"),
        ("model.num_views=0", "model.num_views is 0; allowed: 1 to below"),
        ("model.dropout_rate=1.0", "model.dropout_rate is 1.0; allowed: 0 to below 1"),
        ("trainer.train_steps=1.5", "trainer.train_steps is 1.5; it must be int"),
        ("trainer.train_steps=0", "trainer.train_steps is 0; at least 1"),
        ("trainer.optimizer.type=sgd", "type is 'sgd'; allowed: lamb, adamw"),
        ("trainer.optimizer.learning_rate=abc", "is 'abc'; it must be float"),
        ("trainer.micro_batch_size=-1", "micro_batch_size is -1; at least 0"),
        ("task.cmlm.weight=-1", "task.cmlm.weight is -1.0; at least 0"),
        ("task.cmlm.weight=0", "every objective has weight 0"),
        ("task.cmlm.end_step=0", "task.cmlm.end_step is 0; it must be above start"),
        ("task.cmlm.skip=maybe", "task.cmlm.skip is 'maybe'; it must be bool"),
        ("task.cmlm.masking.rate=1.5", "task.cmlm: masking rate=1.5"),
        ("task.cmlm.train_data.seq_length=500", "seq_length is 500; at most 497"),
        ("nonsense", "is not of the form a.b.c=value"),
    ],
)
def test_mistakes_are_named(override, message):
    with pytest.raises(UserError) as error:
        experiments.load("cmlm/english", (), [override]).validate()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_recipes_and_files_are_named(tmp_path):
    with pytest.raises(UserError, match="'cmlm/klingon'; allowed: cmlm/english"):
        experiments.load("cmlm/klingon")
    with pytest.raises(UserError, match="nothere.yaml cannot be read"):
        experiments.load("cmlm/english", [str(tmp_path / "nothere.yaml")])
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1,\n")
    with pytest.raises(UserError, match="bad.yaml is not YAML"):
        experiments.load("cmlm/english", [str(bad)])
