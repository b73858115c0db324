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

import os

import tensorflow as tf

from cmlm.common import files
from cmlm.common.keras import keras
from cmlm.config import experiment, overrides
from cmlm.data.tokenization import Tokenizer
from cmlm.encoders.trained import TrainedEncoder
from cmlm.errors import UserError
from cmlm.modeling import checkpoints
from cmlm.modeling.model import SentenceModel

PARAMS = "params.yaml"
VOCABULARY = "vocab.txt"
BEST = "best"
METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"
TEXT = "text"


def write_config(model_dir: str, config: experiment.ExperimentConfig) -> None:
    """Writes `params.yaml`, whole or not at all."""
    with files.atomic_text(os.path.join(model_dir, PARAMS)) as file:
        file.write(overrides.to_yaml(config))


def read_config(model_dir: str) -> experiment.ExperimentConfig:
    """Reads `params.yaml`.

    Raises:
        UserError: `model_dir` is not one.
    """
    path = os.path.join(model_dir, PARAMS)
    if not tf.io.gfile.exists(path):
        raise UserError(
            f"--model_dir={model_dir} has no {PARAMS}: nothing trained there"
        )
    return overrides.from_yaml(path)


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
