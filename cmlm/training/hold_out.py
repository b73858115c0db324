"""Makes sure that a run has examples to validate by, before it trains."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping

import tensorflow as tf

from cmlm.common import workers
from cmlm.objectives import Objective

logger = logging.getLogger(__name__)

# The largest share that a small text gives up without being asked.
_MOST = 0.2
# The examples of a text that surely has held-out ones.
_LARGE = 1_000_000


def ensure(
    objectives: Mapping[str, Objective], strategy: tf.distribute.Strategy
) -> None:
    """Holds out more of a text whose share for validation is too small.

    Blocks of lines are held out by a hash, so a small share of a small text may be
    empty. The share doubles until each objective can validate by it, for all objectives
    of one text alike: an objective must not train on what another one validates by.
    Every objective keeps training examples. A resumed run finds the same share. The log
    names an objective that cannot validate, as a warning unless its share is 0.

    Args:
        objectives: the objectives by name; the shares of their configurations, which
            are parts of the run's, are changed in place.
        strategy: the devices; worker 0 decides.
    """
    parts = {name: each.config.train_data for name, each in objectives.items()}

    def decide() -> dict[str, float]:
        for names in _by_text(objectives):
            _widen(names, objectives)
        return {name: part.hold_out_fraction for name, part in parts.items()}

    for name, share in workers.on_chief(strategy, decide).items():
        parts[name].hold_out_fraction = share


def _by_text(objectives: Mapping[str, Objective]) -> list[list[str]]:
    """Returns the objectives without validation data of their own, by their text."""
    groups: dict[tuple, list[str]] = {}
    for name, objective in objectives.items():
        if not objective.config.validation_data:
            origin = objective.config.train_data.origin
            groups.setdefault(origin, []).append(name)
    return list(groups.values())


def _widen(names: list[str], objectives: Mapping[str, Objective]) -> None:
    """Raises the shares of one text until every objective can validate by them."""
    # A share of 0 is a decision, and stays.
    asked = [
        name for name in names if objectives[name].config.train_data.hold_out_fraction
    ]
    parts = [objectives[name].config.train_data for name in asked]
    before = [part.hold_out_fraction for part in parts]
    left = _unable(asked, objectives)
    while left and max(part.hold_out_fraction for part in parts) < _MOST:
        share = min(2 * max(part.hold_out_fraction for part in parts), _MOST)
        for part in parts:
            part.hold_out_fraction = share
        left = _unable(left, objectives)
        if not all(_has_any(objectives[name].training_examples()) for name in asked):
            # A text of one block, or of equal documents, is held out whole or not.
            left = asked
            break
    if left:
        for part, share in zip(parts, before, strict=True):
            part.hold_out_fraction = share
    elif parts and parts[0].hold_out_fraction != before[0]:
        logger.info(
            "%s: a share of %g of this text holds out too little; the run holds out %g",
            ", ".join(asked),
            before[0],
            parts[0].hold_out_fraction,
        )
    without = [name for name in names if name in left or name not in asked]
    if without:
        # A recipe that holds out nothing, such as Mirror-BERT's, needs no warning.
        logger.log(
            logging.WARNING if left else logging.INFO,
            "%s is held out to validate %s by; name other text with "
            "--validation_data, or raise task.%s.train_data.hold_out_fraction",
            "too little" if left else "nothing",
            ", ".join(without),
            without[0],
        )


def _unable(names: list[str], objectives: Mapping[str, Objective]) -> list[str]:
    """Returns the objectives that the held-out part of a small text is too small for.

    A large text is not read.
    """
    return [
        name
        for name in names
        if sum(objectives[name].data.train.sizes.values()) < _LARGE
        and not _can_validate(objectives[name])
    ]


def _can_validate(objective: Objective) -> bool:
    examples = objective.held_out_examples().as_numpy_iterator()
    if objective.static_shapes:
        # A batch of fewer rows would have another shape, so a validation drops it.
        least = objective.global_batch_size
        examples = list(itertools.islice(examples, least))
        if len(examples) < least:
            return False
    return objective.can_validate(examples)


def _has_any(dataset: tf.data.Dataset) -> bool:
    return any(True for _ in dataset.take(1))
