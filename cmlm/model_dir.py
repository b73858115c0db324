"""A model_dir: what a run leaves, and all that is needed to resume, export, evaluate.

params.yaml       the resolved configuration
vocab.txt         the vocabulary, given or learnt
ckpt-N.*          the latest checkpoints, with optimizer and data position
best/ckpt-N.*     the best one by `trainer.best_checkpoint_metric`
metrics.jsonl     one row of metrics an interval
tensorboard/      the same for TensorBoard
text/             training text made from `builtin:` or raw text
"""

from __future__ import annotations

import dataclasses
import os
import tempfile

import tensorflow as tf

from cmlm import experiments, files, workers
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError
from cmlm.keras import keras
from cmlm.modeling import checkpoints
from cmlm.modeling.encoder import SentenceEncoder
from cmlm.modeling.model import SentenceModel

PARAMS = "params.yaml"
VOCABULARY = "vocab.txt"
BEST = "best"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
TEXT = "text"


@dataclasses.dataclass
class TrainedEncoder:
    """An encoder with what it takes to use it.

    Attributes:
        encoder: with the weights of the checkpoint.
        tokenizer: of its vocabulary.
        config: of the run.
        checkpoint: path of the checkpoint.
        vocab_file: path of the vocabulary.
        seq_length: tokens it was trained on, [CLS] and [SEP] included.
    """

    encoder: SentenceEncoder
    tokenizer: Tokenizer
    config: experiments.ExperimentConfig
    checkpoint: str
    vocab_file: str
    seq_length: int


class Checkpoints:
    """The checkpoints of a directory, saved by all workers of a run, kept by worker 0.

    To save a variable may take every worker: TensorFlow sums some of them up only when
    they are read. So all of them save; what the others write goes to a temporary
    directory of their own machine and away.

    Build it and call its methods on every worker alike.

    Args:
        strategy: of the run.
        checkpoint: what to save.
        directory: where worker 0 keeps it.
        max_to_keep: the number of checkpoints that stay.

    Attributes:
        latest_checkpoint: path of the last one, the same on every worker, or None.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        checkpoint: tf.train.Checkpoint,
        directory: str,
        max_to_keep: int,
    ):
        self._directory = directory
        self._checkpoint = checkpoint
        self._manager = None
        if workers.is_chief(strategy):
            self._manager = tf.train.CheckpointManager(
                checkpoint, directory, max_to_keep
            )
        self.latest_checkpoint: str | None = workers.on_chief(
            strategy, lambda: self._manager.latest_checkpoint
        )

    def path(self, step: int) -> str:
        """The checkpoint that `save(step)` makes."""
        return os.path.join(self._directory, f"ckpt-{step}")

    def save(self, step: int) -> None:
        """Saves the state after `step` steps."""
        if self._manager is not None:
            self._manager.save(checkpoint_number=step)
        else:
            with tempfile.TemporaryDirectory(prefix="cmlm-") as own:
                manager = tf.train.CheckpointManager(self._checkpoint, own, 1)
                manager.save(checkpoint_number=step)
        self.latest_checkpoint = self.path(step)


def write_config(model_dir: str, config: experiments.ExperimentConfig) -> None:
    """Writes `params.yaml`, whole or not at all."""
    with files.atomic_text(os.path.join(model_dir, PARAMS)) as file:
        file.write(experiments.to_yaml(config))


def read_config(model_dir: str) -> experiments.ExperimentConfig:
    """Reads `params.yaml`.

    Raises:
        UserError: `model_dir` is not one.
    """
    path = os.path.join(model_dir, PARAMS)
    if not tf.io.gfile.exists(path):
        raise UserError(
            f"--model_dir={model_dir} has no {PARAMS}: nothing trained there"
        )
    return experiments.from_yaml(path)


def load_encoder(model_dir: str, checkpoint: str = "latest") -> TrainedEncoder:
    """Loads the encoder of a run.

    Args:
        model_dir: of the run.
        checkpoint: `latest`, `best`, `untrained` (the weights the run's seed starts
            from, the honest baseline of small runs) or the path of one.

    Raises:
        UserError: the directory or its checkpoint is missing or damaged.
    """
    config = read_config(model_dir)
    vocab_file = os.path.join(model_dir, VOCABULARY)
    if not tf.io.gfile.exists(vocab_file):
        raise UserError(f"--model_dir={model_dir} has no {VOCABULARY}")
    tokenizer = Tokenizer(vocab_file, config.vocabulary.lower_case)
    if tokenizer.vocab_size != config.model.vocab_size:
        raise UserError(
            f"{vocab_file} has {tokenizer.vocab_size} entries, "
            f"the encoder has {config.model.vocab_size} embedding rows"
        )
    # The seed of the run: without a checkpoint these are the weights it began with.
    keras.utils.set_random_seed(config.trainer.seed)
    model = SentenceModel(config.model)
    if checkpoint != "untrained":
        path = {"latest": model_dir, "best": os.path.join(model_dir, BEST)}.get(
            checkpoint, checkpoint
        )
        checkpoint = checkpoints.find(path)
        checkpoints.restore(checkpoint, model=model)
    return TrainedEncoder(
        encoder=model.encoder,
        tokenizer=tokenizer,
        config=config,
        checkpoint=checkpoint,
        vocab_file=vocab_file,
        seq_length=max(
            objective.train_data.seq_length
            for objective in config.task.enabled().values()
        ),
    )
