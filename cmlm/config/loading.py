"""Loads the configuration of a run: a recipe, with the changes of files and flags."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from official.core import exp_factory

from cmlm.common import fields
from cmlm.config import recipes
from cmlm.config.experiment import ExperimentConfig
from cmlm.config.overrides import override
from cmlm.errors import UserError
from cmlm.objectives.masked_text import MaskedTextConfig


def load(
    experiment: str,
    config_files: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> ExperimentConfig:
    """Returns a recipe with changes; see `load_given`."""
    config, _ = load_given(experiment, config_files, overrides)
    return config


def load_given(
    experiment: str, config_files: Sequence[str], overrides: Sequence[str]
) -> tuple[ExperimentConfig, set[str]]:
    """Returns a recipe with changes, and the names of the settings that they give.

    Args:
        experiment: a name from `recipes.names()`.
        config_files: YAML files with any part of the configuration.
        overrides: `a.b.c=value`, several separated by commas, or YAML.

    Raises:
        UserError: an unknown name, key or file, or a value that does not fit.
    """
    if experiment not in recipes.names():
        raise UserError(
            f"--experiment is {experiment!r}; allowed: {', '.join(recipes.names())}"
        )
    config = exp_factory.get_exp_config(experiment)
    given = override(config, config_files, overrides)
    # `task.cmlm=5` would be an objective without settings.
    fields.check_types(config)
    for name, objective in config.task.enabled().items():
        if isinstance(objective, MaskedTextConfig):
            _refuse_masks_without_effect(f"task.{name}", objective, given)
    return config, given


def _refuse_masks_without_effect(
    prefix: str, objective: MaskedTextConfig, given: Collection[str]
) -> None:
    """Refuses a limit of masks that is set without `rate` and disagrees with it.

    A higher limit would have no effect; with a lower limit, short and long texts would
    have different shares of masks. If the user sets both rate and limit, any limit is
    allowed.

    Raises:
        UserError: the limit is refused; the message names the rate that would give it.
    """
    limit, length = objective.masking.max_predictions, objective.train_data.seq_length
    if f"{prefix}.masking.max_predictions" not in given or not limit:
        return
    if f"{prefix}.masking.rate" in given:
        return
    unlimited = objective.masking.replace(max_predictions=0).predictions(length)
    if limit != unlimited:
        raise fields.refused(
            f"{prefix}.masking.max_predictions",
            limit,
            f"{unlimited}, the masks of {length} tokens at rate"
            f" {objective.masking.rate:g}; {prefix}.masking.rate={limit / length:g}"
            f" masks {limit} of {length}",
        )
