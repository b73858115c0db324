"""Small real objects for tests: a model of two layers, a corpus, a vocabulary."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from cmlm.common import fields, iterators
from cmlm.common.keras import keras
from cmlm.config import experiment, loading
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import OBJECTIVES, Objective
from cmlm.training.trainer import Trainer

VOCAB_SIZE = 50


def encoder_config(**values) -> EncoderConfig:
    """Two layers of width 16, no dropout unless asked for."""
    config = EncoderConfig(
        num_layers=2,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
        num_views=3,
        vocab_size=VOCAB_SIZE,
        dropout_rate=0.0,
        attention_dropout_rate=0.0,
        # Large, so that no path through the network is lost in rounding.
        initializer_range=0.3,
    )
    for field, value in values.items():
        setattr(config, field, value)
    fields.check(config, "model.")
    return config


def model(**values) -> SentenceModel:
    """A model whose biases and norms are not the zeros and ones it starts with."""
    made = SentenceModel(encoder_config(**values))
    made.projection()
    made.masked_lm()
    randomize(made)
    return made


def trainer_config(**values) -> experiment.TrainerConfig:
    """Gradients are not clipped, and a validation takes all examples."""
    config = experiment.TrainerConfig(validation_examples=-1, **values)
    config.optimizer.clip_norm = 0.0
    return config


def trainer(
    strategy: tf.distribute.Strategy,
    made: SentenceModel,
    *objectives: Objective,
    **settings,
) -> Trainer:
    """A trainer with plain SGD, whose update shows the gradient itself."""
    by_name = {each.name: each for each in objectives}
    optimizer = keras.optimizers.legacy.SGD(0.1)
    return Trainer(made, by_name, optimizer, strategy, trainer_config(**settings))


def copy_weights(source: SentenceModel, target: SentenceModel) -> None:
    for name, part in source.parts.items():
        target.parts[name].set_weights(part.get_weights())


def randomize(made: SentenceModel) -> None:
    for part in made.parts.values():
        randomize_part(part)


def randomize_part(part) -> None:
    random = np.random.default_rng(7)
    for weight in part.weights:
        if weight.dtype.is_floating and len(weight.shape) == 1:
            noise = random.normal(0, 0.2, weight.shape).astype(np.float32)
            weight.assign_add(noise)


def pair_batch(batch=4, seq=7, predictions=3, seed=0) -> dict[str, tf.Tensor]:
    """A batch of `masked_pipelines.conditional_pairs`, with texts of every length."""
    random = np.random.default_rng(seed)

    def sentences():
        lengths = random.integers(3, seq + 1, batch)
        lengths[0] = seq
        mask = (np.arange(seq) < lengths[:, None]).astype(np.int32)
        return (random.integers(5, VOCAB_SIZE, [batch, seq]) * mask), mask

    context, context_mask = sentences()
    words, mask = sentences()
    counts = random.integers(1, predictions + 1, batch)
    weights = (np.arange(predictions) < counts[:, None]).astype(np.float32)
    positions = np.stack(
        [np.sort(random.choice(np.arange(1, 3), predictions)) for _ in range(batch)]
    )
    labels = random.integers(5, VOCAB_SIZE, [batch, predictions])
    return {
        "context_word_ids": tf.constant(context, tf.int32),
        "context_mask": tf.constant(context_mask, tf.int32),
        "input_word_ids": tf.constant(words, tf.int32),
        "input_mask": tf.constant(mask, tf.int32),
        "masked_lm_positions": tf.constant(positions, tf.int32),
        "masked_lm_ids": tf.constant(labels, tf.int32),
        "masked_lm_weights": tf.constant(weights, tf.float32),
    }


def order_batch(batch=4, seed=0) -> dict[str, tf.Tensor]:
    """What `masked_pipelines.ordered_pairs` yields."""
    features = pair_batch(batch, seed=seed)
    del features["context_word_ids"], features["context_mask"]
    random = np.random.default_rng(seed)
    second = np.arange(7) >= random.integers(2, 5, [batch, 1])
    types = second * features["input_mask"].numpy()
    features["input_type_ids"] = tf.constant(types, tf.int32)
    features["order_label"] = tf.constant(random.integers(0, 2, batch), tf.int32)
    return features


def mirror_batch(batch=8, duplicates=False, seed=0) -> dict[str, tf.Tensor]:
    """What `pair_pipelines.copies` yields; with `duplicates` a text comes twice."""
    features = bitext_batch(batch, seed=seed)
    hashes = features["source_hash"].numpy()
    if duplicates:
        hashes[-1] = hashes[0]
    features["source_hash"] = features["target_hash"] = tf.constant(hashes)
    return features


def bitext_batch(
    batch=8, negatives=0, duplicates=False, seq=7, seed=0
) -> dict[str, tf.Tensor]:
    """What `pair_pipelines.bitext_pairs` yields, with texts of every length.

    With `duplicates` some rows far from each other share a text.
    """
    random = np.random.default_rng(seed)
    features = {}
    for name, shape in (
        ("source", [batch]),
        ("target", [batch]),
        ("negative", [batch, negatives]),
    ):
        if 0 in shape:
            continue
        lengths = random.integers(3, seq + 1, shape)
        mask = (np.arange(seq) < lengths[..., np.newaxis]).astype(np.int32)
        ids = random.integers(5, VOCAB_SIZE, [*shape, seq]) * mask
        hashes = random.integers(1, 1 << 60, shape)
        features[f"{name}_word_ids"], features[f"{name}_mask"] = ids, mask
        features[f"{name}_hash"] = hashes
    if negatives:
        features["negative_exists"] = np.ones([batch, negatives])
    if duplicates:
        for key in ("word_ids", "mask", "hash"):
            features[f"target_{key}"][-1] = features[f"target_{key}"][0]
            features[f"source_{key}"][-2] = features[f"source_{key}"][1]
            if negatives:
                features[f"negative_{key}"][2, 0] = features[f"target_{key}"][-3]
    return {
        key: tf.constant(value, tf.int64 if key.endswith("_hash") else tf.int32)
        for key, value in features.items()
    }


def in_memory(base: type[Objective], batches) -> type[Objective]:
    """A class of objectives on batches in memory; each holds the global batch."""

    class InMemory(base):
        """Reads what it is given instead of text."""

        def train_dataset(self, input_context, skip_batches=0):
            size = input_context.get_per_replica_batch_size(self.global_batch_size)
            rows = {
                key: np.concatenate([batch[key] for batch in batches])
                for key in batches[0]
            }
            dataset = iterators.untuned(tf.data.Dataset.from_tensor_slices(rows))
            dataset = dataset.batch(size, drop_remainder=True)
            # Workers share the batches as the replicas of one process do: in turn.
            dataset = dataset.shard(
                input_context.num_input_pipelines, input_context.input_pipeline_id
            )
            return dataset.repeat().skip(skip_batches)

        def validation_dataset(self, input_context):
            return self.train_dataset(input_context).take(2 * len(batches))

    return InMemory


def objective(
    name: str, made: SentenceModel, batches=(), global_batch_size=4, **values
) -> Objective:
    """An objective of the registry on batches in memory."""
    base = OBJECTIVES[name]
    config = base.config_class(weight=1.0, **values)
    config.train_data.global_batch_size = global_batch_size
    return in_memory(base, batches)(name, config, made, tokenizer=None, data=None)


def write_corpus(path, documents=40, sentences=8, seed=0) -> str:
    """Text in the training format whose neighbours share words."""
    random = np.random.default_rng(seed)
    topics = [
        "river boat water fish bridge".split(),
        "garden flower rain earth seed".split(),
        "engine wheel road driver speed".split(),
    ]
    common = "the a small old and near with slowly".split()
    lines = []
    for _ in range(documents):
        topic = topics[random.integers(len(topics))]
        for _ in range(sentences):
            words = random.choice(topic + common, random.integers(4, 12))
            lines.append(" ".join(words).capitalize() + " .")
        lines.append("")
    path.write_text("\n".join(lines))
    return str(path)


def run_config(text: str, **values) -> experiment.ExperimentConfig:
    """A whole experiment on `text` that takes seconds; `values` override it."""
    settings = {
        "model.preset": "tiny",
        "model.num_layers": 1,
        "model.hidden_size": 16,
        "model.intermediate_size": 32,
        "model.max_position_embeddings": 40,
        "model.num_views": 3,
        "vocabulary.size": 200,
        "task.cmlm.train_data.global_batch_size": 8,
        "task.cmlm.passages": "false",
        "task.cmlm.train_data.seq_length": 16,
        "task.cmlm.train_data.shuffle_buffer_size": 200,
        "task.cmlm.train_data.hold_out_fraction": 0.2,
        "trainer.train_steps": 20,
        "trainer.checkpoint_interval": 10,
        "trainer.validation_interval": 10,
        "trainer.validation_steps": 2,
        "trainer.summary_interval": 5,
        "trainer.optimizer.warmup_steps": 2,
        **values,
    }
    config = loading.load(
        "cmlm/english", (), [f"{key}={value}" for key, value in settings.items()]
    )
    config.task.cmlm.train_data.input_path = text
    config.validate()
    return config


def shrink(config: experiment.ExperimentConfig) -> None:
    """Makes a run small in every dimension; features that are on stay on."""
    stages_before = min(len(config.trainer.stacking_steps), 1)
    config.model.num_layers = 2**stages_before
    config.model.hidden_size, config.model.num_attention_heads = 16, 2
    config.model.intermediate_size = 32
    config.trainer.train_steps, config.trainer.epochs = 1, 0
    config.trainer.stacking_steps = (1,) * stages_before
    config.trainer.micro_batch_size = min(config.trainer.micro_batch_size, 4)
    for enabled in config.task.enabled().values():
        data = enabled.train_data
        data.global_batch_size, data.shuffle_buffer_size = 8, 100
        data.seq_length = min(data.seq_length, 32)
        # A small share would be widened, which test_hold_out.py tests.
        data.hold_out_fraction = 0.2 if data.hold_out_fraction else 0.0


@contextlib.contextmanager
def eagerly() -> Iterator[None]:
    """Runs each tf.function as Python: a toy's step takes less time than its graph."""
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def rewind(finished: Path, directory: Path, step: int) -> Path:
    """Copies a model_dir as it was when the checkpoint of `step` was its last."""
    shutil.copytree(finished, directory)
    (directory / "checkpoint").write_text(f'model_checkpoint_path: "ckpt-{step}"\n')
    for path in directory.glob("ckpt-*"):
        if not path.name.startswith(f"ckpt-{step}."):
            path.unlink()
    return directory


def stored(path) -> dict[str, np.ndarray]:
    """Every number of a checkpoint, optimizer and random state included."""
    reader = tf.train.load_checkpoint(str(path))
    values = {
        name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
    }
    return {
        name: value
        for name, value in values.items()
        if not isinstance(value, bytes) and not name.startswith("save_counter")
    }


def assert_equal_checkpoints(a, b) -> None:
    want, got = stored(a), stored(b)
    assert want.keys() == got.keys()
    assert any("optimizer" in name for name in want)
    different = [name for name in want if not np.array_equal(want[name], got[name])]
    assert not different
