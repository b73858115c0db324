"""Recipes and configurations: what they hold, and one clear line for a mistake."""

from pathlib import Path

import pytest

from cmlm.config import experiment, recipes
from cmlm.errors import UserError

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", recipes.names())
def test_recipes_are_valid_and_round_trip(name, tmp_path):
    config = recipes.load(name)
    for objective in config.task.enabled().values():
        objective.train_data.input_path = "given-by-the-user"
    config.validate()
    path = tmp_path / "params.yaml"
    path.write_text(experiment.to_yaml(config))
    assert experiment.from_yaml(str(path)).as_dict() == config.as_dict()


def test_english_cmlm_has_the_papers_numbers():
    config = recipes.load("cmlm/english")
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


def test_multilingual_cmlm_has_the_papers_numbers():
    config = recipes.load("cmlm/multilingual")
    bitext = config.task.bitext
    assert set(config.task.enabled()) == {"cmlm", "bitext"}
    assert (bitext.weight, bitext.margin, bitext.similarity) == (0.2, 0.3, "dot")
    assert bitext.train_data.global_batch_size == 2048
    assert config.vocabulary.size == 501_153 and not config.vocabulary.lower_case
    assert config.vocabulary.sampling_exponent == 0.3


def test_labse_has_the_papers_numbers():
    config = recipes.load("labse/pretrain")
    assert set(config.task.enabled()) == {"mlm", "tlm"}
    assert config.task.tlm.train_data.seq_length == 512
    assert config.task.mlm.masking.max_predictions == 80
    assert config.task.mlm.masking.rate == 0.2
    assert config.trainer.stacking_steps == (400_000, 800_000)
    assert config.trainer.train_steps == 1_800_000
    bitext = recipes.load("labse/dual_encoder").task.bitext
    assert (bitext.margin, bitext.scale, bitext.similarity) == (0.3, 100.0, "cosine")
    assert bitext.train_data.global_batch_size == 4096
    assert bitext.train_data.seq_length == 128


@pytest.mark.parametrize(
    "override, message",
    [
        ("trainer.stacking_steps=[10,0]", r"stacking_steps is \[10, 0\]"),
        ("trainer.stacking_steps=[1,1,1]", "num_layers is 12; .* multiples of 8"),
        ("trainer.schedule=both", "'both'; allowed: joint, interleaved"),
        ("trainer.best_checkpoint_metric=mlm/loss", "that takes part: cmlm"),
        ("task.cmlm.train_data.sampling_exponent=2", "allowed is 0 to 1"),
    ],
)
def test_what_does_not_fit_is_named(override, message):
    with pytest.raises(UserError, match=message):
        recipes.load("cmlm/english", (), [override]).validate()


def test_an_empty_value_is_an_empty_text():
    config = recipes.load("cmlm/english", (), ["trainer.best_checkpoint_metric="])
    config.validate()
    assert config.trainer.best_checkpoint_metric == ""


def test_later_overrides_win_and_files_come_first(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("trainer:\n  train_steps: 5\nmodel:\n  preset: tiny\n")
    config = recipes.load(
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
    config = recipes.load("cmlm/english", (), ["model.preset=tiny,model.num_layers=3"])
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
        recipes.load("cmlm/english", (), [override]).validate()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_recipes_and_files_are_named(tmp_path):
    with pytest.raises(UserError, match="'cmlm/klingon'; allowed: cmlm/english"):
        recipes.load("cmlm/klingon")
    with pytest.raises(UserError, match="nothere.yaml cannot be read"):
        recipes.load("cmlm/english", [str(tmp_path / "nothere.yaml")])
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1,\n")
    with pytest.raises(UserError, match="bad.yaml is not YAML"):
        recipes.load("cmlm/english", [str(bad)])
