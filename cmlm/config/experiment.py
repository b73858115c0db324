"""The configuration of a run: its parts, how it is changed, and how it is checked."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence

import tensorflow as tf
import yaml
from official.core import config_definitions
from official.modeling import hyperparams

from cmlm.errors import UserError
from cmlm.modeling.encoder import EncoderConfig
from cmlm.modeling.optimization import OptimizerConfig
from cmlm.objectives import TaskConfig
from cmlm.vocabulary import learning as vocabulary_lib


@dataclasses.dataclass
class TrainerConfig(hyperparams.Config):
    """How long, how often, and in what portions.

    Attributes:
        train_steps: weight updates in all.
        schedule: how several objectives share the steps: `joint` sums their weighted
            losses in every step, `interleaved` draws one a step, in proportion to the
            weights.
        micro_batch_size: examples that one replica holds in memory at a time; 0 takes
            its whole share of the global batch at once. The gradient is the same
            whatever is set.
        steps_per_loop: updates between two looks at the clock, at most.
        summary_interval: updates between two rows of metrics.
        validation_interval: updates between two validations.
        validation_steps: batches a validation takes; -1: all.
        checkpoint_interval: updates between two checkpoints.
        max_to_keep: checkpoints that stay.
        stacking_steps: progressive stacking: as many stages before the run itself, each
            of so many updates, the last one with half of the layers, the one before it
            with a quarter and so on. Each stage begins as the one before it, its layers
            repeated.
        best_checkpoint_metric: validation metric, such as `cmlm/loss`, whose best
            checkpoint is kept in `best/`; empty: none is.
        best_checkpoint_comparison: `lower` or `higher` is better.
        evals: tasks of `cmlm.evaluate` that every validation is to score as well, such
            as `[stsb-dev, tatoeba-de]`; a main metric of theirs, `stsb-dev/spearman`,
            may choose the best checkpoint.
        evals_data_dir: the folder with their test sets.
        optimizer: how weights move.
        seed: of initial weights and dropout. Data has a seed of its own.
    """

    train_steps: int = 1_000_000
    schedule: str = "joint"
    micro_batch_size: int = 0
    steps_per_loop: int = 100
    summary_interval: int = 100
    validation_interval: int = 10_000
    validation_steps: int = -1
    checkpoint_interval: int = 5_000
    max_to_keep: int = 5
    stacking_steps: tuple[int, ...] = ()
    best_checkpoint_metric: str = ""
    best_checkpoint_comparison: str = "lower"
    evals: tuple[str, ...] = ()
    evals_data_dir: str = ""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    seed: int = 0

    def validate(self) -> None:
        """Raises UserError for a value outside its range."""
        for field in (
            "train_steps",
            "steps_per_loop",
            "summary_interval",
            "validation_interval",
            "checkpoint_interval",
            "max_to_keep",
        ):
            if getattr(self, field) < 1:
                raise UserError(
                    f"trainer.{field} is {getattr(self, field)}; at least 1"
                )
        if self.schedule not in ("joint", "interleaved"):
            raise UserError(
                f"trainer.schedule is {self.schedule!r}; allowed: joint, interleaved"
            )
        if any(not isinstance(n, int) or n < 1 for n in self.stacking_steps):
            raise UserError(
                f"trainer.stacking_steps is {list(self.stacking_steps)}; "
                "allowed: numbers of at least 1"
            )
        if self.micro_batch_size < 0:
            raise UserError(
                f"trainer.micro_batch_size is {self.micro_batch_size}; at least 0"
            )
        if self.validation_steps < 1 and self.validation_steps != -1:
            raise UserError(
                f"trainer.validation_steps is {self.validation_steps}; "
                "allowed: -1 (all), or at least 1"
            )
        if self.best_checkpoint_comparison not in ("lower", "higher"):
            raise UserError(
                "trainer.best_checkpoint_comparison is "
                f"{self.best_checkpoint_comparison!r}; allowed: lower, higher"
            )
        if self.evals and not self.evals_data_dir:
            raise UserError(
                "trainer.evals_data_dir is empty; allowed: the folder with the test "
                "sets of trainer.evals"
            )
        self.optimizer.validate()


@dataclasses.dataclass
class ExperimentConfig(hyperparams.Config):
    """A whole run.

    Attributes:
        model: shape of the encoder.
        vocabulary: the WordPiece vocabulary, given or learnt.
        task: the objectives.
        trainer: steps, intervals, optimizer.
        runtime: devices and precision; Model Garden's fields.
        init_checkpoint: a model_dir or a checkpoint of this project, or weights of
            another program, that the run starts from. Only weights are taken, not the
            optimizer. Another program's weights bring shape, vocabulary and pooling.
    """

    model: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    vocabulary: vocabulary_lib.VocabularyConfig = dataclasses.field(
        default_factory=vocabulary_lib.VocabularyConfig
    )
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    runtime: config_definitions.RuntimeConfig = dataclasses.field(
        default_factory=lambda: config_definitions.RuntimeConfig(
            distribution_strategy="one_device"
        )
    )
    init_checkpoint: str = ""

    def validate(self) -> None:
        """Fills what follows from other values and checks the rest.

        Raises:
            UserError: one line that names the value and what is allowed.
        """
        _check_types(self, "")
        self.model.resolve()
        self.vocabulary.validate()
        self.trainer.validate()
        enabled = self.task.enabled()
        if not enabled:
            raise UserError(
                "every objective has weight 0; set one, such as task.cmlm.weight=1"
            )
        parts = 2 ** len(self.trainer.stacking_steps)
        if self.model.num_layers % parts:
            raise UserError(
                f"model.num_layers is {self.model.num_layers}; trainer.stacking_steps "
                f"has {len(self.trainer.stacking_steps)} stages, allowed are multiples "
                f"of {parts}"
            )
        best = self.trainer.best_checkpoint_metric
        # Which metrics its tasks have, only the engine finds out.
        if best and best.partition("/")[0] not in enabled and not self.trainer.evals:
            raise UserError(
                f"trainer.best_checkpoint_metric is {best!r}; allowed: empty, or a "
                f"metric of an objective that takes part: {', '.join(enabled)}"
            )
        for name, objective in enabled.items():
            objective.validate(name)
            seq_length = objective.train_data.seq_length
            limit = self.model.max_position_embeddings - self.model.num_views
            if seq_length > limit:
                raise UserError(
                    f"task.{name}.train_data.seq_length is {seq_length}; at most "
                    f"{limit}, model.max_position_embeddings less model.num_views"
                )


# ------------------------------------------------------- from flags to a config


def override(
    config: ExperimentConfig,
    config_files: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> None:
    """Changes a configuration in place; what comes later wins.

    Args:
        config: a recipe.
        config_files: YAML files with any part of the configuration.
        overrides: `a.b.c=value`, several separated by commas, or YAML.

    Raises:
        UserError: an unknown key or file, or a value that does not fit.
    """
    for path in config_files:
        _override(config, _read_yaml(path), f"--config_file={path}")
    for text in overrides:
        _override(config, text, f"--params_override={text}")


def given(config_files: Sequence[str], overrides: Sequence[str]) -> set[str]:
    """The settings that files and overrides name, as `model.num_layers`.

    Args:
        config_files, overrides: as `override` takes them, and has checked them.
    """
    names = {name for path in config_files for name in _paths(_read_yaml(path))}
    for text in overrides:
        values = yaml.safe_load(text) if ":" in text and "=" not in text else None
        if isinstance(values, dict):
            names.update(_paths(values))
        else:
            names.update(re.findall(r"(?:^|,)\s*([a-z_][\w.]*)\s*=", text))
    return names


def from_yaml(path: str) -> ExperimentConfig:
    """Reads a whole configuration, as `to_yaml` wrote it."""
    config = ExperimentConfig()
    _override(config, _read_yaml(path), path)
    config.validate()
    return config


def to_yaml(config: ExperimentConfig) -> str:
    """The whole configuration as text; `from_yaml` reads it back equal."""
    return yaml.safe_dump(config.as_dict(), sort_keys=False)


def _read_yaml(path: str) -> dict:
    try:
        with tf.io.gfile.GFile(path) as file:
            values = yaml.safe_load(file.read())
    except tf.errors.OpError as error:
        raise UserError(f"{path} cannot be read: {error.message}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} does not hold a YAML mapping")
    return values


def _override(config: ExperimentConfig, values, source: str) -> None:
    if isinstance(values, str) and "=" not in values and ":" not in values:
        raise UserError(f"{source} is not of the form a.b.c=value")
    try:
        hyperparams.override_params_dict(config, values, is_strict=True)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{source}: {_explain(error, config, values)}") from error
    except (yaml.YAMLError, tf.errors.OpError) as error:
        raise UserError(f"{source} is not of the form a.b.c=value") from error


def _explain(error: Exception, config: ExperimentConfig, values) -> str:
    """Says which key is unknown and which ones there are."""
    paths = [values] if isinstance(values, str) else list(_paths(values))
    for path in (item for text in paths for item in text.split(",")):
        node, walked = config, []
        for key in path.partition("=")[0].strip().split("."):
            fields = [field.name for field in dataclasses.fields(node)]
            if key not in fields:
                where = ".".join(walked) or "the configuration"
                return f"{where} has no {key!r}; it has: {', '.join(fields)}"
            walked.append(key)
            node = getattr(node, key)
            if not dataclasses.is_dataclass(node):
                break
    return str(error)


def _paths(values: dict, prefix: str = ""):
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _check_types(config: hyperparams.Config, prefix: str) -> None:
    """Model Garden takes any value for any field; here it must fit the annotation.

    A number that YAML read as text (`1e-3` has no dot) is put right in place.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value, path = getattr(config, field.name), f"{prefix}{field.name}"
        if isinstance(value, hyperparams.Config):
            _check_types(value, f"{path}.")
            continue
        allowed = _allowed_types(hints[field.name])
        if isinstance(value, list) and tuple in allowed:
            value = tuple(value)
        if value is None and str in allowed and type(None) not in allowed:
            value = ""  # `a.b.c=` with nothing behind it
        if isinstance(value, str) and float in allowed and str not in allowed:
            try:
                value = float(value)
            except ValueError:
                pass
        if isinstance(value, int) and not isinstance(value, bool) and float in allowed:
            value = value if int in allowed else float(value)
        if isinstance(value, float) and value.is_integer() and float not in allowed:
            value = int(value) if int in allowed else value
        fits = any(
            isinstance(value, kind) and not (isinstance(value, bool) and kind is int)
            for kind in allowed
        )
        if not fits:
            wanted = " or ".join(
                "null" if kind is type(None) else kind.__name__ for kind in allowed
            )
            raise UserError(f"{path} is {value!r}; it must be {wanted}")
        setattr(config, field.name, value)


def _allowed_types(hint) -> tuple[type, ...]:
    origin = typing.get_origin(hint)
    if origin is typing.Union:
        return tuple(
            kind for part in typing.get_args(hint) for kind in _allowed_types(part)
        )
    return (origin or hint,)
