"""Recipes and configurations: what they hold, and one clear line for a mistake."""

import time
from pathlib import Path

import pytest
from campaign import mutations

from cmlm.config import loading, overrides, recipes
from cmlm.errors import UserError
from cmlm.modeling import optimization
from cmlm.objectives import OBJECTIVES

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", recipes.names())
def test_recipes_are_valid_and_round_trip(name, tmp_path):
    config = loading.load(name)
    for objective in config.task.enabled().values():
        objective.train_data.input_path = "given-by-the-user"
    config.validate()
    path = tmp_path / "params.yaml"
    path.write_text(overrides.to_yaml(config))
    assert overrides.from_yaml(str(path)).as_dict() == config.as_dict()


def test_english_cmlm_has_the_papers_numbers():
    config = loading.load("cmlm/english")
    config.validate()
    cmlm, optimizer = config.task.cmlm, config.trainer.optimizer
    assert config.model.num_layers == 12 and config.model.hidden_size == 768
    assert config.model.num_views == 15 and config.model.pooling == "mean"
    assert cmlm.train_data.global_batch_size == 2048
    assert cmlm.train_data.seq_length == 256
    assert cmlm.masking.predictions(256) == 80
    assert round(cmlm.masking.rate * 256) == 80
    assert cmlm.passages
    assert optimizer.type == "lamb" and optimizer.learning_rate == 1e-3
    assert (optimizer.beta_1, optimizer.beta_2) == (0.9, 0.999)
    assert optimizer.warmup_steps == 10_000
    assert config.trainer.train_steps == 1_000_000
    # Not the held-out share, which is 1 % of billions.
    assert config.trainer.validation_examples == 16_384
    assert config.vocabulary.lower_case


def test_multilingual_cmlm_has_the_papers_numbers():
    config = loading.load("cmlm/multilingual")
    bitext = config.task.bitext
    assert set(config.task.enabled()) == {"cmlm", "bitext"}
    assert (bitext.weight, bitext.margin, bitext.similarity) == (0.2, 0.3, "dot")
    assert bitext.train_data.global_batch_size == 2048
    assert config.vocabulary.size == 501_153 and not config.vocabulary.lower_case
    assert config.vocabulary.sampling_exponent == 0.3
    assert config.trainer.train_steps == 2_000_000
    english = loading.load("cmlm/english")
    assert config.trainer.optimizer.as_dict() == english.trainer.optimizer.as_dict()
    assert config.task.cmlm.masking.predictions(256) == 80


def test_labse_has_the_papers_numbers():
    config = loading.load("labse/pretrain")
    assert set(config.task.enabled()) == {"mlm", "tlm"}
    assert config.task.tlm.train_data.seq_length == 512
    assert config.task.mlm.masking.max_predictions == 80
    assert config.task.mlm.masking.rate == 0.2
    assert config.trainer.stacking_steps == (400_000, 800_000)
    assert config.trainer.train_steps == 1_800_000
    # One batch of 8192 over both objectives.
    batches = [
        each.train_data.global_batch_size for each in config.task.enabled().values()
    ]
    assert sum(batches) == 8192
    optimizer = config.trainer.optimizer
    assert (optimizer.type, optimizer.learning_rate) == ("lamb", 1e-3)
    dual = loading.load("labse/dual_encoder")
    assert dual.model.pooling == "cls"
    assert highest_rate(dual.trainer) == pytest.approx(1e-3)
    bitext = dual.task.bitext
    assert (bitext.margin, bitext.scale, bitext.similarity) == (0.3, 100.0, "cosine")
    assert bitext.train_data.global_batch_size == 4096
    assert bitext.train_data.seq_length == 128


def highest_rate(trainer) -> float:
    optimizer = optimization.build_optimizer(trainer.optimizer, trainer.train_steps)
    rates = []
    for step in range(0, trainer.train_steps, max(trainer.train_steps // 1000, 1)):
        optimizer.iterations.assign(step)
        rates.append(float(optimizer._decayed_lr("float32")))
    return max(rates)


@pytest.mark.parametrize("name", recipes.names())
def test_every_rate_reaches_what_its_recipe_says(name):
    trainer = loading.load(name).trainer
    want = trainer.optimizer.learning_rate
    assert highest_rate(trainer) == pytest.approx(want, rel=2e-3)


def test_mirror_bert_has_the_papers_numbers():
    sentence, word = (loading.load(f"mirror/{name}") for name in ("sentence", "word"))
    for config in (sentence, word):
        optimizer = config.trainer.optimizer
        assert (optimizer.type, optimizer.learning_rate) == ("adamw", 2e-5)
        # As released: a constant rate, no clipping, all weights decay.
        assert (optimizer.decay, optimizer.warmup_steps) == ("constant", 0)
        assert (optimizer.clip_norm, optimizer.epsilon) == (0.0, 1e-8)
        assert optimizer.weight_decay_rate == 0.01
        assert optimizer.decay_norms_and_biases
        assert config.task.mirror.train_data.global_batch_size == 200
        assert config.task.mirror.train_data.hold_out_fraction == 0
        assert config.model.dropout_rate == 0.1
    assert (sentence.model.pooling, word.model.pooling) == ("mean", "cls")
    assert sentence.task.mirror.scale == pytest.approx(1 / 0.04)
    assert word.task.mirror.scale == pytest.approx(1 / 0.2)
    assert sentence.task.mirror.span.length == 5 and word.task.mirror.span.length == 0
    lengths = [c.task.mirror.train_data.seq_length for c in (sentence, word)]
    assert lengths == [50, 25]
    # 10,000 strings, once and twice.
    assert [c.trainer.train_steps * 200 for c in (sentence, word)] == [10_000, 20_000]


def test_ulr_has_the_papers_numbers():
    config = loading.load("ulr/misad")
    trainer, misad = config.trainer, config.task.misad
    assert trainer.train_steps * misad.train_data.global_batch_size == 10_000_000
    assert trainer.optimizer.warmup_steps == trainer.train_steps // 10
    assert trainer.optimizer.learning_rate == 5e-5
    assert trainer.optimizer.weight_decay_rate == 0
    assert misad.masking.rate == 0.15 and misad.train_data.seq_length == 128
    assert config.model.pooling == "pooler"


@pytest.mark.parametrize(
    "override, message",
    [
        ("trainer.stacking_steps=[10,0]", r"stacking_steps is \[10, 0\]"),
        ("trainer.stacking_steps=[10.5]", "stacking_steps is 10.5; allowed: an inte"),
        ("trainer.evals=[2024]", "an item of trainer.evals is 2024; allowed: text"),
        ("trainer.stacking_steps=[1,1,1]", "num_layers is 12; allowed: multiples of 8"),
        ("trainer.schedule=both", "'both'; allowed: joint, interleaved"),
        ("trainer.best_checkpoint_metric=mlm/loss", "empty, or a metric of cmlm"),
        ("task.cmlm.train_data.sampling_exponent=2", "allowed: 0 to 1"),
    ],
)
def test_what_does_not_fit_is_named(override, message):
    with pytest.raises(UserError, match=message):
        loading.load("cmlm/english", (), [override]).validate()


@pytest.mark.parametrize(
    "override, said",
    [
        (
            "trainer.best_checkpoint_comparison=higher",
            "comparison is 'higher'; allowed: lower, as lower values of cmlm/loss are",
        ),
        (
            "trainer.best_checkpoint_metric=cmlm/conditioning_gain",
            "is 'lower'; allowed: higher, as higher values of cmlm/conditioning_gain",
        ),
        (
            "task.nli.weight=1,trainer.best_checkpoint_metric=nli/accuracy_en_de",
            "is 'lower'; allowed: higher",
        ),
    ],
)
def test_a_comparison_that_keeps_the_worst_checkpoint_is_refused(override, said):
    config = loading.load("cmlm/english", (), [override])
    config.validate()
    with pytest.raises(UserError, match=said):
        config.check_comparison()


@pytest.mark.parametrize("metric", ["scored/cosine", "cmlm/shuffled_loss"])
@pytest.mark.parametrize("comparison", ["lower", "higher"])
def test_a_metric_without_a_better_direction_takes_both(metric, comparison):
    settings = [f"task.scored.weight=1,trainer.best_checkpoint_metric={metric}"]
    settings.append(f"trainer.best_checkpoint_comparison={comparison}")
    loading.load("cmlm/english", (), settings).check_comparison()


def test_a_run_that_chose_the_worst_checkpoint_still_opens(tmp_path):
    settings = ["trainer.best_checkpoint_comparison=higher"]
    path = tmp_path / "params.yaml"
    path.write_text(overrides.to_yaml(loading.load("cmlm/english", (), settings)))
    opened = overrides.from_yaml(str(path))
    assert opened.trainer.best_checkpoint_comparison == "higher"


def test_an_empty_value_is_an_empty_text():
    config = loading.load("cmlm/english", (), ["trainer.best_checkpoint_metric="])
    config.validate()
    assert config.trainer.best_checkpoint_metric == ""


@pytest.mark.parametrize("number", [40, 60, 80, 100])
def test_a_number_of_masks_takes_effect_or_is_refused(number):
    """CMLM's appendix B: so many of 256; the limit alone would mask 80 of them."""
    name, rate = "task.cmlm.masking.max_predictions", number / 256
    if number == 80:
        config = loading.load("cmlm/english", (), [f"{name}={number}"])
    else:
        with pytest.raises(UserError, match=f"masking.rate={rate:g} masks {number} of"):
            loading.load("cmlm/english", (), [f"{name}={number}"])
        config = loading.load(
            "cmlm/english", (), [f"{name}={number},task.cmlm.masking.rate={rate}"]
        )
    assert config.task.cmlm.masking.predictions(256) == number
    # LaBSE's limit stays a limit, and a file that is read back is not refused.
    old = loading.load("cmlm/english")
    old.task.cmlm.masking.max_predictions, old.task.cmlm.train_data.seq_length = 80, 64
    assert old.task.cmlm.masking.predictions(64) == 20
    assert loading.load("labse/pretrain").task.mlm.masking.predictions(512) == 80


def test_steps_or_epochs_whichever_is_named(tmp_path):
    assert loading.load("mirror/sentence").trainer.epochs == 1
    steps = loading.load("mirror/sentence", (), ["trainer.train_steps=70"]).trainer
    assert (steps.epochs, steps.train_steps) == (0, 70)
    assert loading.load("mirror/sentence", (), ["trainer.epochs=2"]).trainer.epochs == 2
    # The later source wins.
    first = ["trainer.train_steps=9", "trainer.epochs=2"]
    later = loading.load("mirror/sentence", (), [*first, "trainer.train_steps=50"])
    assert (later.trainer.epochs, later.trainer.train_steps) == (0, 50)
    later = loading.load("mirror/sentence", (), ["trainer.train_steps=5", *first])
    assert later.trainer.epochs == 2
    # One source gives one of them; the file of a run has both.
    for text in (
        "trainer.train_steps=5,trainer.epochs=2",
        "trainer: {epochs: 2, train_steps: 5}",
    ):
        said = f"{text} sets trainer.train_steps and trainer.epochs; allowed: one of"
        with pytest.raises(UserError, match=said):
            loading.load("mirror/sentence", (), [text])
    off = loading.load(
        "mirror/sentence", (), ["trainer.train_steps=5,trainer.epochs=0"]
    )
    assert (off.trainer.epochs, off.trainer.train_steps) == (0, 5)
    path = tmp_path / "params.yaml"
    path.write_text(overrides.to_yaml(later))
    assert loading.load("mirror/sentence", [str(path)]).trainer.epochs == 2
    both = ["trainer.epochs=2", "task.mlm.weight=1"]
    with pytest.raises(UserError, match="trainer.epochs is 2; allowed: 0"):
        loading.load("mirror/sentence", (), both).validate()
    # Each stage of stacking would have the epochs, and not its steps.
    both = ["trainer.epochs=2", "trainer.stacking_steps=[5]"]
    with pytest.raises(UserError, match="trainer.epochs is 2; allowed: 0"):
        loading.load("mirror/sentence", (), both).validate()


@pytest.mark.parametrize(
    "steps, step",
    [
        ("task.cmlm.start_step=3", 0),
        ("task.cmlm.end_step=9", 9),
        ("task.mlm.weight=1,task.mlm.end_step=4,task.cmlm.start_step=5", 4),
    ],
)
def test_a_step_without_an_objective_is_refused(steps, step):
    settings = [steps, "trainer.train_steps=10"]
    said = f"no objective is active at step {step} of 10; allowed: task.NAME.start_step"
    with pytest.raises(UserError, match=said):
        loading.load("cmlm/english", (), settings).validate()
    loading.load("cmlm/english", (), ["task.cmlm.end_step=10", settings[1]]).validate()


def test_marked_text_is_for_misad_alone():
    settings = ["task.misad.train_data.input_path=marked/*"]
    loading.load("ulr/misad", (), settings).require_data()
    settings += ["task.mlm.weight=1", "task.mlm.train_data.input_path=marked/*"]
    said = (
        r"task.mlm.train_data.input_path is 'marked/\*'; allowed: text without marked"
    )
    with pytest.raises(UserError, match=said):
        loading.load("ulr/misad", (), settings).require_data()
    # Random spans need no marks.
    settings += ["task.misad.candidates=spans"]
    loading.load("ulr/misad", (), settings).require_data()


def test_later_overrides_win_and_files_come_first(tmp_path):
    path = tmp_path / "settings.yaml"
    path.write_text("trainer:\n  train_steps: 5\nmodel:\n  preset: tiny\n")
    config = loading.load(
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
    config = loading.load("cmlm/english", (), ["model.preset=tiny,model.num_layers=3"])
    config.validate()
    assert (config.model.num_layers, config.model.hidden_size) == (3, 128)


@pytest.mark.parametrize(
    "override, message",
    [
        ("model.presett=tiny", "model has no 'presett'; did you mean model.preset? it"),
        ("task.bitex.weight=1", "did you mean task.bitext? it has: cmlm, mlm"),
        ("learning_rate=1", "did you mean trainer.optimizer.learning_rate? it has: mo"),
        ("learning_rate=1", "init_layers; see `cmlm settings learning_rate`"),
        ("model.preset=huge", "model.preset is 'huge'; allowed: tiny, "),
        ("model.pooling=first", "model.pooling is 'first'; allowed: mean, "),
        (
            "model.num_layers=two",
            "model.num_layers is 'two'; allowed: an integer or null",
        ),
        ("model.num_layers=0", "model.num_layers is 0; allowed: 1 to 1000"),
        ("model.num_attention_heads=5", "allowed: a divisor of model.hidden_size, 768"),
        ("model.num_views=0", "model.num_views is 0; allowed: at least 1"),
        ("model.prompts=query", "model.prompts is 'query'; allowed: a list"),
        ("model.prompts=[query]", "model.prompts is 'query'; allowed: NAME=TEXT"),
        ("model.dropout_rate=1.0", "model.dropout_rate is 1.0; allowed: 0 to below 1"),
        ("trainer.train_steps=1.5", "trainer.train_steps is 1.5; allowed: an integer"),
        ("trainer.train_steps=0", "trainer.train_steps is 0; allowed: at least 1"),
        ("trainer.optimizer.type=sgd", "type is 'sgd'; allowed: lamb, adamw"),
        ("trainer.optimizer.learning_rate=abc", "is 'abc'; allowed: a number"),
        ("trainer.micro_batch_size=-1", "micro_batch_size is -1; allowed: at least 0"),
        (
            "model.type_vocab_size=1,task.tlm.weight=1",
            "model.type_vocab_size is 1; allowed: at least 2 for task.tlm",
        ),
        (
            "model.type_vocab_size=1,task.sop.weight=1",
            "model.type_vocab_size is 1; allowed: at least 2 for task.sop",
        ),
        ("task.cmlm.weight=-1", "task.cmlm.weight is -1.0; allowed: at least 0"),
        ("task.cmlm.weight=0", "every objective has weight 0"),
        (
            "task.cmlm.end_step=0",
            "end_step is 0; allowed: above task.cmlm.start_step, 0",
        ),
        ("task.cmlm.skip=maybe", "task.cmlm.skip is 'maybe'; allowed: true or false"),
        (
            "task.cmlm.masking.rate=1.5",
            "task.cmlm.masking.rate is 1.5; allowed: above 0 to 1",
        ),
        (
            "task.cmlm.train_data.seq_length=500",
            "seq_length is 500; allowed: at most 497",
        ),
        ("nonsense", "is not of the form a.b.c=value"),
        ("'trainer.seed=1'", "c=value; remove the quotes, which only a shell removes"),
        ("trainer.optimizer.learning_rate=nan", "is nan; allowed: above 0"),
        ("trainer.optimizer.clip_norm=.inf", "is inf; allowed: at least 0"),
        ("task.bitext.scale=.nan", "task.bitext.scale is nan"),
        ("trainer.seed=-1", "trainer.seed is -1; allowed: 0 to below 4294967296"),
        (
            "trainer.validation_steps=0",
            "is 0; allowed: -1 (by examples), or at",
        ),
        (
            "model: {pooling: 2020-01-01}",
            "model.pooling is '2020-01-01'; allowed: mean",
        ),
        ("model.num_layers=!!int x", "not YAML: invalid literal for int() with base"),
        ("model: {num_layers: !!int x}", "has a value that is not YAML: invalid lit"),
        ("model: !!python/object/apply:os.getcwd []", "could not determine a constr"),
        ("task.cmlm=", "task.cmlm is None; allowed: settings, such as task."),
        (
            "task.cmlm.train_data=5",
            "task.cmlm.train_data is 5; allowed: settings, such as task.cmlm.train_",
        ),
        ("task=x", "task is 'x'; allowed: settings, such as task."),
        ("trainer.seed={}", "trainer.seed is {}; allowed: an integer"),
        ("vocabulary: {file: {a: 1}}", "vocabulary.file is {'a': 1}; allowed: text"),
        ("model: &a [*a]", "has a value that is not YAML: line 1 has an alias"),
        ("trainer.seed=1,trainer.seed=2", ": line 1 sets 'seed' twice; allowed: once"),
    ],
)
def test_mistakes_are_named(override, message):
    with pytest.raises(UserError) as error:
        loading.load("cmlm/english", (), [override]).validate()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_value_in_the_place_of_settings_is_named_at_once(tmp_path):
    # The override would meet a number where it looks for settings.
    path = tmp_path / "part.yaml"
    path.write_text("trainer:\n  optimizer: 5\n")
    message = "trainer.optimizer is 5; allowed: settings, such as trainer.optimizer."
    with pytest.raises(UserError, match=message):
        loading.load("cmlm/english", [str(path)], ["trainer.optimizer.type=adamw"])


def test_a_recipe_with_changes_names_the_changed_settings(tmp_path):
    path = tmp_path / "part.yaml"
    path.write_text("model: {preset: tiny}\ntask: {cmlm: {masking: {rate: 0.2}}}\n")
    settings = ["trainer.seed=1,model.num_views=2", "{trainer: {evals: [stsb-dev]}}"]
    config, given = loading.load_given("cmlm/english", [str(path)], settings)
    assert given == {
        "model.preset",
        "model.num_views",
        "task.cmlm.masking.rate",
        "trainer.evals",
        "trainer.seed",
    }
    same = loading.load("cmlm/english", [str(path)], settings)
    assert config.as_dict() == same.as_dict()


def test_unknown_recipes_and_files_are_named(tmp_path):
    with pytest.raises(UserError, match="'cmlm/klingon'; allowed: cmlm/english"):
        loading.load("cmlm/klingon")
    with pytest.raises(UserError, match="^--config_file: .*nothere.yaml cannot be"):
        loading.load("cmlm/english", [str(tmp_path / "nothere.yaml")])
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [1,\n")
    with pytest.raises(UserError, match="^--config_file: .*bad.yaml is not YAML"):
        loading.load("cmlm/english", [str(bad)])
    bad.write_text("a\n")
    with pytest.raises(UserError, match="hold a YAML mapping; allowed: settings, such"):
        loading.load("cmlm/english", [str(bad)])


@pytest.mark.parametrize(
    "text, message",
    [
        ("trainer: {train_steps: 5}\nmodel: {}\ntrainer:\n  seed: 1\n", "1 and 3 both"),
        ("trainer: {seed: 5, seed: 5}\n", "line 1 sets 'seed' twice; allowed: once"),
    ],
)
def test_a_setting_that_stands_twice_in_a_file_is_refused(tmp_path, text, message):
    """The first value would be lost, with all settings below it."""
    path = tmp_path / "twice.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=f"twice.yaml is not YAML: .*{message}"):
        loading.load("cmlm/english", [str(path)])


def test_data_is_asked_for_by_its_flag():
    config = loading.load("cmlm/multilingual", (), ["task.nli.weight=1"])
    config.validate()
    config.task.cmlm.train_data.input_path = "a.txt"
    message = "task.bitext.train_data.input_path is ''; allowed: .*--bitext_data"
    with pytest.raises(UserError, match=message):
        config.require_data()
    config.task.bitext.train_data.input_path = "a.tsv"
    with pytest.raises(UserError, match="nli.train_data.input_path .*--nli_data"):
        config.require_data()


def test_recipes_are_registered_where_model_garden_looks():
    from official.core import exp_factory

    for name in recipes.names():
        assert (
            exp_factory.get_exp_config(name).as_dict() == loading.load(name).as_dict()
        )


@pytest.mark.parametrize("recipe", recipes.names())
def test_every_objective_has_its_place_in_every_recipe(recipe):
    task = loading.load(recipe).task
    (length,) = {
        objective.train_data.seq_length for objective in task.enabled().values()
    }
    for name, objective in OBJECTIVES.items():
        config = getattr(task, name)
        assert type(config) is objective.config_class
        assert config.train_data.global_batch_size > 0
        assert config.train_data.seq_length == length


def test_a_file_that_is_no_plain_yaml_ends_in_one_line(tmp_path):
    path = tmp_path / "bad.yaml"
    tags = ("!!float xyz", "!!int x", "!!bool x", "!!timestamp x", '"\\UFFFFFFFF"')
    for text in ("a: &x [1]\nb: *x\n", "[" * 100_000, *(f"a: {tag}" for tag in tags)):
        path.write_text(text)
        with pytest.raises(UserError, match="bad.yaml is not YAML: ") as error:
            loading.load("cmlm/english", [str(path)])
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "override, said",
    [
        ("model.num_layers=100000", "model.num_layers is 100000; allowed: 1 to 1000"),
        ("model.num_layers=1.0e+5", "model.num_layers is 100000; allowed: 1 to 1000"),
        (
            "model.hidden_size=1200000",
            "GB of weights .*model.hidden_size 1200000.* mem",
        ),
        ("model.intermediate_size=1000000000", "GB of weights"),
        ("model.max_position_embeddings=1000000000", "GB of weights"),
        ("model.vocab_size=10000000000", "GB of weights"),
        (
            f"trainer.train_steps=0x{'f' * 5000}",
            "an integer of 20000 bits; allowed: below 2",
        ),
        (f"trainer.train_steps={'9' * 5000}", "not YAML: Exceeds the limit"),
        ("trainer.seed=-1", "trainer.seed is -1; allowed: 0 to below 4294967296"),
        ("trainer.seed=4294967296", "trainer.seed is 4294967296; allowed"),
        ("trainer.seed=2024-01-01", "trainer.seed is '2024-01-01'; allowed"),
    ],
)
def test_what_no_memory_holds_is_refused_before_anything_is_built(override, said):
    start = time.process_time()
    with pytest.raises(UserError, match=said) as error:
        loading.load("cmlm/english", (), [override]).validate()
    assert time.process_time() - start < 1
    assert "\n" not in str(error.value)


def test_a_short_file_of_aliases_does_not_fill_the_memory(tmp_path):
    path = tmp_path / "bomb.yaml"
    path.write_text(mutations.BOMB)
    start = time.process_time()
    with pytest.raises(UserError, match="has an alias .*; allowed: plain values"):
        loading.load("cmlm/english", [str(path)])
    assert time.process_time() - start < 1
