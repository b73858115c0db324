"""What every objective of the registry promises, on batches of its own pipeline.

Its gradient is that of its loss; replicas, micro-batches and padding change nothing; it
trains; a run of all objectives together logs each and resumes exactly. A new objective
is covered without a line here, unless it needs a setting of its own in `SETTINGS`, or
data of a new kind: a file in the fixture `data` and a branch in `configure`.
"""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import toys

from cmlm.common import distributed
from cmlm.common.keras import keras
from cmlm.config import experiment, loading, model_dir
from cmlm.data.bitext import BitextDataConfig
from cmlm.data.nli import NliDataConfig
from cmlm.data.scored import ScoredDataConfig
from cmlm.modeling import restoring
from cmlm.objectives import OBJECTIVES
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.word_pieces import WordPiece
from cmlm.training import building, engine, metrics_log, teachers
from cmlm.training.stages import Stage
from cmlm.training.start import Start
from cmlm.training.trainer import Trainer

BATCH, SEQ, LEARNING_RATE = 8, 32, 0.1
WORDS = "river boat water fish garden flower rain earth engine wheel road".split()
# What an objective needs beside its defaults; `{}` is the folder of the data.
_TEACHER = {
    "teacher": "vectors:{}/taught.txt:{}/taught.npy",
    "teacher_cache": "{}/teacher",
    "similarity_weight": 1.0,
}
SETTINGS = {
    "misad": {"ngrams_file": "{}/ngrams.tsv"},
    "distill": _TEACHER,
    # A map that the loss itself has; test_train.py has a teacher of the sources.
    "distill_bitext": {
        **_TEACHER,
        "projection": "linear",
        "teacher_side": "target",
        "retrieval_weight": 0.5,
    },
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Text, bitext with a hard negative and NLI in two languages, with a vocabulary."""
    directory = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)

    def sentence(language):
        chosen = random.choice(WORDS, random.integers(3, 12))
        return " ".join(f"{word}{language}" for word in chosen) + " ."

    for language, documents in (("en", 30), ("de", 10)):
        text = [
            "\n".join(sentence(language) for _ in range(8)) for _ in range(documents)
        ]
        (directory / f"{language}.txt").write_text("\n\n".join(text))
        nli = [
            f"{sentence(language)}\t{sentence(language)}\t{i % 3}" for i in range(60)
        ]
        (directory / f"{language}.tsv").write_text("\n".join(nli))
    rows = ["\t".join(map(sentence, ("en", "de", "de"))) for _ in range(60)]
    # Every pair twice: a batch holds texts that are not negatives of each other.
    (directory / "bitext.tsv").write_text("\n".join(rows * 2))
    # Some scores are equal: such pairs are not compared.
    scored = [f"{row.rpartition(chr(9))[0]}\t{i % 7 / 7}" for i, row in enumerate(rows)]
    (directory / "scored.tsv").write_text("\n".join(scored))
    ngrams = [f"{a}en {b}en\t1.5" for a, b in zip(WORDS, WORDS[1:])]
    (directory / "ngrams.tsv").write_text("\n".join([*ngrams, "riveren\t1.0"]))
    words = [f"{word}{language}" for word in WORDS for language in ("en", "de")]
    tokens = [*vocabulary_file.SPECIAL_TOKENS, ".", *words]
    (directory / "vocab.txt").write_text("\n".join(tokens))
    # A teacher of another width, for all lines and for the targets of the bitext.
    lines = [(directory / f"{name}.txt").read_text() for name in ("en", "de")]
    taught = dict.fromkeys("\n".join(lines).split("\n"))
    taught |= dict.fromkeys(row.split("\t")[1] for row in rows)
    taught.pop("", None)
    (directory / "taught.txt").write_text("".join(f"{text}\n" for text in taught))
    np.save(directory / "taught.npy", random.normal(size=[len(taught), 24]))
    return directory


def configure(config, name: str, data: Path, languages=("en", "de")) -> None:
    """Points an objective's configuration to its kind of data."""
    for key, value in SETTINGS.get(name, {}).items():
        if isinstance(value, str):
            value = value.replace("{}", str(data))
        setattr(config, key, value)
    reads = config.train_data
    if isinstance(reads, ScoredDataConfig):
        reads.input_path = f"{data}/scored.tsv"
    elif isinstance(reads, BitextDataConfig):
        reads.input_path = f"en-de={data}/bitext.tsv"
    else:
        ending = "tsv" if isinstance(reads, NliDataConfig) else "txt"
        paths = [f"{language}={data}/{language}.{ending}" for language in languages]
        reads.input_path = ",".join(paths)
    reads.global_batch_size, reads.seq_length = BATCH, SEQ
    reads.shuffle_buffer_size, reads.hold_out_fraction = 50, 0.2
    config.weight = 1.0


# A sum over words, a ranking of texts.
FAMILIES = ("cmlm", "bitext")
each_in_a_graph = pytest.mark.parametrize(
    "case",
    [
        name if name in FAMILIES else pytest.param(name, marks=pytest.mark.large)
        for name in OBJECTIVES
    ],
    indirect=True,
)


class Case:
    """An objective, two padded batches of its pipeline, and its first two steps.

    Attributes:
        batches, validation_batch: two and one of [BATCH, SEQ], as the pipeline gives
            them.
        trainer: one device, whole batches, after both steps.
        start, end: every weight by its name, before and after the steps.
        gradients: of the first step, by the name of the weight.
        metrics: of each step.
    """

    def __init__(self, name: str, data: Path, **settings):
        self.name = name
        self.config = OBJECTIVES[name].config_class(**settings)
        configure(self.config, name, data)
        self.tokenizer = WordPiece(str(data / "vocab.txt"))
        run = experiment.ExperimentConfig()
        run.model = toys.encoder_config()
        setattr(run.task, name, self.config)
        found = {name: self.config.load_data(str(data), True, name)}
        start = Start(Stage(run, str(data)), None)
        self.found = teachers.prepare(start, found, self.tokenizer)[name]
        whole = tf.distribute.InputContext(1, 0, 1)
        one_device = tf.distribute.OneDeviceStrategy("CPU:0")
        with one_device.scope():
            model = self.model()
            pipeline = self.make(OBJECTIVES[name], model, static_shapes=True)
        self.batches = list(pipeline.train_dataset(whole).take(2))
        (self.validation_batch,) = pipeline.validation_dataset(whole).take(1)
        self.trainer = self.build(one_device, model=model)
        self.objective = self.trainer.objectives[name]
        self.start = weights(self.trainer)
        self.metrics = [self.trainer.train(1)]
        middle = weights(self.trainer)
        self.gradients = {
            key: (old - middle[key]) / LEARNING_RATE for key, old in self.start.items()
        }
        self.metrics.append(self.trainer.train(1))
        self.end = weights(self.trainer)

    def model(self):
        return toys.model(
            num_layers=1,
            vocab_size=len(self.tokenizer.vocab),
            max_position_embeddings=2 * SEQ + 8,
        )

    def make(self, of, model, **values):
        """An objective of a class."""
        return of(
            name=self.name,
            config=self.config,
            model=model,
            tokenizer=self.tokenizer,
            data=self.found,
            **values,
        )

    def build(self, strategy, micro_batch_size: int = 0, model=None) -> Trainer:
        """A trainer on the batches, with plain SGD: its update is the gradient.

        Its model is a new one unless it is given.
        """
        with strategy.scope():
            in_memory = toys.in_memory(OBJECTIVES[self.name], self.batches)
            objective = self.make(in_memory, model or self.model())
            for part in objective.trained_parts:
                toys.randomize_part(objective.model.parts[part])
            return Trainer(
                objective.model,
                {self.name: objective},
                keras.optimizers.legacy.SGD(LEARNING_RATE),
                strategy,
                toys.trainer_config(micro_batch_size=micro_batch_size),
            )


def variables(trainer: Trainer) -> dict[str, tf.Variable]:
    """Every weight by its part and place in it; a shared one by the first part."""
    found = {}
    for part, layer in trainer.model.parts.items():
        for number, weight in enumerate(layer.weights):
            found.setdefault(weight.ref(), (f"{part}/{number} {weight.name}", weight))
    return dict(found.values())


def weights(trainer: Trainer) -> dict[str, np.ndarray]:
    return {name: weight.numpy() for name, weight in variables(trainer).items()}


@pytest.fixture(scope="module", params=list(OBJECTIVES))
def case(request, data) -> Case:
    # This fixture comes before `seeded`. From some seeds, a step brings all cosines so
    # close together that rounding decides the order of scored pairs.
    keras.utils.set_random_seed(3)
    # Its graphs are those of replicas and micro-batches.
    with toys.eagerly():
        return Case(request.param, data)


@pytest.fixture(scope="module")
def on_replicas(case, two_replicas) -> Trainer:
    """The case's trainer on two replicas, in micro-batches, before its first step."""
    return case.build(two_replicas, micro_batch_size=2)


def test_two_steps_train(case):
    for metrics in case.metrics:
        assert np.isfinite(list(metrics.values())).all()
        assert metrics[f"{case.name}/loss"] and metrics["gradient_norm"] > 1e-3
    moved = {
        name.partition("/")[0]
        for name, value in case.start.items()
        if (case.end[name] != value).any()
    }
    assert moved == set(case.objective.trained_parts)
    assert int(case.trainer.batches_seen[case.name]) == 2


def test_the_loss_reads_all_components_of_vectors(case):
    """`model.dimensions` concerns readers of the encoder alone."""
    encoder, batch = case.trainer.model.encoder, case.batches[0]
    losses = []
    for encoder.dimensions in (5, 0):
        losses.append(case.objective.compute(batch, training=False)[0].numpy())
    np.testing.assert_array_equal(*losses)


@pytest.mark.large
def test_gradient_is_that_of_the_loss(case):
    """For each weight along a direction, against the difference of two losses."""
    objective, batch = case.objective, case.batches[0]

    @tf.function(autograph=False)
    def loss():
        losses, _ = objective.compute(batch, training=True)
        return tf.reduce_sum(losses / objective.divisor(batch))

    found, random, step = variables(case.trainer), np.random.default_rng(0), 0.005
    for name, variable in found.items():
        variable.assign(case.start[name])
    for name, variable in found.items():
        gradient = case.gradients[name].astype(np.float64)
        norm = np.linalg.norm(gradient)
        # Mostly the gradient's own, so that the difference stands out from rounding.
        direction = random.normal(size=gradient.shape)
        direction /= np.linalg.norm(direction)
        direction = direction / 2 + gradient / norm if norm else direction
        losses = []
        for sign in (1, -1):
            variable.assign(case.start[name] + sign * step * direction)
            losses.append(float(loss()))
        variable.assign(case.start[name])
        # The room is for rounding, and for the corners of ReLU and |u - v|.
        np.testing.assert_allclose(
            (losses[0] - losses[1]) / (2 * step),
            np.sum(gradient * direction),
            rtol=0.02,
            atol=0.002,
            err_msg=name,
        )


@each_in_a_graph
def test_replicas_and_micro_batches_change_nothing(case, on_replicas):
    """In a graph; the case ran eagerly."""
    assert_two_steps_are_the_same(case, on_replicas)


@pytest.mark.large
def test_replicas_and_micro_batches_do_not_change_a_regression(data, two_replicas):
    """The loss of scored pairs that compares none."""
    with toys.eagerly():
        case = Case("scored", data, loss="cosine")
    trainer = case.build(two_replicas, micro_batch_size=2)
    assert_two_steps_are_the_same(case, trainer)


@pytest.mark.large
def test_replicas_and_micro_batches_do_not_change_nested_vectors(data, two_replicas):
    case = nested_case("bitext", data)
    trainer = case.build(two_replicas, micro_batch_size=2)
    assert_two_steps_are_the_same(case, trainer)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    "name, settings",
    [("scored", {}), ("mirror", {}), ("quickthought", {"encoders": "two"})],
)
def test_micro_batches_do_not_change_nested_vectors(name, settings, data, one_device):
    """Eagerly, so on one device; `bitext` has replicas above."""
    case = nested_case(name, data, **settings)
    assert_two_steps_are_the_same(case, case.build(one_device, micro_batch_size=2))


def nested_case(name: str, data: Path, **settings) -> Case:
    """A case whose loss reads whole vectors and their first components."""
    # As for `case`.
    keras.utils.set_random_seed(3)
    with toys.eagerly():
        return Case(name, data, dimensions=(16, 5), **settings)


def assert_two_steps_are_the_same(case: Case, trainer: Trainer) -> None:
    for name, variable in variables(trainer).items():
        variable.assign(case.start[name])
    for want in case.metrics:
        got = trainer.train(1)
        assert got.keys() == want.keys()
        for key in want:
            np.testing.assert_allclose(got[key], want[key], rtol=1e-4, err_msg=key)
    got = weights(trainer)
    for name, want in case.end.items():
        np.testing.assert_allclose(got[name], want, atol=5e-6, err_msg=name)


def few_rows(case: Case, count: int) -> tf.data.Dataset:
    """A validation of one short batch, in the form of the objective's pipeline."""
    whole = tf.distribute.InputContext(1, 0, 1)
    # The objective itself has its batches in memory.
    batches = OBJECTIVES[case.name].validation_dataset(case.objective, whole)
    rows = {key: value[:count] for key, value in next(iter(batches)).items()}
    assert {len(value) for value in rows.values()} == {count}
    return tf.data.Dataset.from_generator(
        lambda: [rows], output_signature=batches.element_spec
    )


@each_in_a_graph
def test_a_replica_without_rows_changes_no_validation(case, on_replicas):
    """In a graph; the case runs eagerly."""
    rows = few_rows(case, 3)
    for one in (case.trainer, on_replicas):
        for name, variable in variables(one).items():
            variable.assign(case.start[name])
        objective = one.objectives[case.name]
        objective.validation_dataset = lambda context: rows
    with toys.eagerly():
        want = case.trainer.evaluate(-1)
    assert np.isfinite(want[f"{case.name}/loss"])
    got = on_replicas.evaluate(-1)
    assert got.keys() == want.keys()
    for key in want:
        # Which sentence is whose wrong neighbour depends on the micro-batch.
        if "shuffled" not in key and "gain" not in key:
            np.testing.assert_allclose(got[key], want[key], rtol=1e-4, err_msg=key)


def in_one_program(function, *inputs):
    """Compiles a function as a TPU does: one program of XLA, which needs all shapes."""
    return tf.function(function, jit_compile=True, autograph=False)(*inputs)


@each_in_a_graph
def test_a_tpu_can_compile_it(case, monkeypatch):
    """A step and a validation, in micro-batches; the case ran eagerly."""
    monkeypatch.setattr(distributed, "is_tpu", lambda strategy: True)
    one_device = tf.distribute.OneDeviceStrategy("CPU:0")
    trainer = case.build(one_device, micro_batch_size=4)
    objective = trainer.objectives[case.name]
    objective.static_shapes = True
    for name, variable in variables(trainer).items():
        variable.assign(case.start[name])
    batch = case.validation_batch
    want = trainer.validator._metrics(objective, batch)
    got = in_one_program(
        lambda batch: trainer.validator._metrics(objective, batch), batch
    )
    assert got.keys() == want.keys()
    for key in want:
        # CMLM's gain is a small difference of two losses.
        np.testing.assert_allclose(got[key], want[key], 1e-4, 1e-4, err_msg=key)

    trainer.model.reset_dropout(trainer.optimizer.iterations)
    in_one_program(
        lambda batch: trainer._replica_step({case.name: batch}), case.batches[0]
    )
    got = weights(trainer)
    for name, start in case.start.items():
        want = start - LEARNING_RATE * case.gradients[name]
        np.testing.assert_allclose(got[name], want, atol=5e-6, err_msg=name)


@pytest.mark.large
def test_padding_changes_nothing(case):
    batch = case.batches[0]
    trimmed = case.objective.trim(batch)
    assert all(len(trimmed[key]) == BATCH for key in batch)
    narrower = {key for key in batch if trimmed[key].shape != batch[key].shape}
    assert any(key.endswith("_word_ids") for key in narrower)
    for key in narrower:
        if key.endswith("_word_ids"):
            assert not batch[key][..., trimmed[key].shape[-1] :].numpy().any(), key
    want, want_metrics = case.objective.compute(batch, training=True)
    got, metrics = case.objective.compute(trimmed, training=True)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    for key in want_metrics:
        np.testing.assert_allclose(metrics[key], want_metrics[key], rtol=1e-5)


def run_config(data: Path, names, **values):
    """A run of some objectives on the English data; dropout is on."""
    settings = {
        "model.preset": "tiny",
        "model.num_layers": 1,
        "model.hidden_size": 16,
        "model.intermediate_size": 32,
        "model.max_position_embeddings": 2 * SEQ + 8,
        "model.num_views": 2,
        "model.dropout_rate": 0.2,
        "vocabulary.file": f"{data}/vocab.txt",
        "task.cmlm.passages": "false",
        "runtime.distribution_strategy": "one_device",
        "trainer.checkpoint_interval": 1,
        "trainer.summary_interval": 1,
        "trainer.best_checkpoint_metric": "",
        "trainer.optimizer.warmup_steps": 2,
        **values,
    }
    config = loading.load(
        "cmlm/multilingual", (), [f"{key}={value}" for key, value in settings.items()]
    )
    for name in OBJECTIVES:
        getattr(config.task, name).weight = 0.0
    for name in names:
        # The cases have several languages; here they would double the pipelines.
        configure(getattr(config.task, name), name, data, ["en"])
    config.validate()
    return config


def trained_rows(directory: Path) -> list[dict]:
    rows = metrics_log.read_metrics(str(directory / model_dir.METRICS))
    return [row for row in rows if "train/gradient_norm" in row]


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_a_run_of_all_logs_each_and_a_checkpoint_has_all(data, tmp_path):
    """The graph of all would take minutes to build.

    `test_a_replica_without_rows_changes_no_validation` validates each.
    """
    # The projection is a part that only the teacher's width makes.
    values = {"task.distill.projection": "linear", "trainer.train_steps": 1}
    run = building.build(Stage(run_config(data, OBJECTIVES, **values), str(tmp_path)))
    trainer = run.trainer
    begun = weights(trainer)
    engine.train(run, validate=False)
    (row,) = trained_rows(tmp_path)
    for name in OBJECTIVES:
        assert row[f"train/{name}/loss"] > 0
        assert row[f"train/{name}/gradient_norm"] > 0

    state = [*trainer.optimizer.variables(), *trainer.batches_seen.values()]
    ended, ended_state = weights(trainer), [variable.numpy() for variable in state]
    for name, variable in variables(trainer).items():
        variable.assign(begun[name])
    for variable in state:
        variable.assign(tf.zeros_like(variable))
    restoring.restore(
        str(tmp_path / "ckpt-1"),
        model=trainer.model,
        optimizer=trainer.optimizer,
        batches_seen=trainer.batches_seen,
    )
    for name, value in weights(trainer).items():
        np.testing.assert_array_equal(value, ended[name], err_msg=name)
    for variable, value in zip(state, ended_state):
        np.testing.assert_array_equal(variable, value, err_msg=variable.name)


@pytest.mark.usefixtures("eager")
def test_an_interleaved_run_on_two_replicas_resumes(data, tmp_path):
    """The last of its steps again, bit for bit: dropout and skipped batches repeat.

    Eagerly; `test_workers` has a resumed run in graphs on two replicas.
    """
    names = ("cmlm", "tlm")
    values = {
        "runtime.distribution_strategy": "mirrored",
        "trainer.schedule": "interleaved",
        "trainer.micro_batch_size": 2,
        "trainer.train_steps": 3,
        # Draws each of them, and the last one twice.
        "trainer.seed": 1,
    }
    config = run_config(data, names, **values)
    straight = tmp_path / "straight"
    engine.train(building.build(Stage(config, str(straight))), validate=False)
    rows = trained_rows(straight)
    assert [row["step"] for row in rows] == [1, 2, 3]
    drawn = [{name for name in names if row.get(f"train/{name}/loss")} for row in rows]
    assert set.union(*drawn) == set(names)
    assert drawn[-1] in drawn[:-1], "a batch must be skipped"

    resumed = toys.rewind(straight, tmp_path / "resumed", step=2)
    run = building.build(Stage(config, str(resumed)))
    assert run.trainer.step == 2
    engine.train(run, validate=False)
    toys.assert_equal_checkpoints(straight / "ckpt-3", resumed / "ckpt-3")
    # What came after the checkpoint was not logged twice.
    assert [row["step"] for row in trained_rows(resumed)] == [1, 2, 3]
