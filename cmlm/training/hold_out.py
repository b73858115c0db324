"""Widens the share of a small text that is held out, until a run can validate by it.

`data.streams.Portion` holds the lines out.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping

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
    of one text alike. Every objective keeps training examples of each language. A
    resumed run finds the same share. The log names an objective that cannot validate,
    as a warning unless its share is 0, and one that trains on the held-out text of
    another objective.

    Args:
        objectives: the objectives by name; the shares of their configurations, which
            are parts of the run's, are changed in place.
        strategy: the devices; worker 0 decides.
    """
    settings = {name: each.config.train_data for name, each in objectives.items()}

    def decide() -> dict[str, float]:
        for group in _by_text(objectives.values()):
            _widen([each for each in group if not each.config.validation_data])
            _warn_of_overlap(group)
        return {name: each.hold_out_fraction for name, each in settings.items()}

    for name, share in workers.on_chief(strategy, decide).items():
        settings[name].hold_out_fraction = share


def _by_text(objectives: Iterable[Objective]) -> list[list[Objective]]:
    """Returns the objectives by their text."""
    groups: dict[tuple, list[Objective]] = {}
    for objective in objectives:
        groups.setdefault(objective.config.train_data.origin, []).append(objective)
    return list(groups.values())


def _widen(group: list[Objective]) -> None:
    """Raises the shares of one text until every objective can validate by them."""
    # A share of 0 is a decision, and stays.
    asked = [each for each in group if each.config.train_data.hold_out_fraction]
    unable = _unable(asked)
    if unable and _raise_shares(asked, unable):
        unable = []
    without = [each.name for each in group if each in unable or each not in asked]
    if without:
        # A recipe that holds out nothing, such as Mirror-BERT's, needs no warning.
        logger.log(
            logging.WARNING if unable else logging.INFO,
            "%s is held out to validate %s; name validation data with %s, or raise "
            "task.%s.train_data.hold_out_fraction",
            "too little" if unable else "nothing",
            ", ".join(without),
            group[0].config.validation_setting(without[0]),
            without[0],
        )


def _warn_of_overlap(group: list[Objective]) -> None:
    """Names an objective that trains on text by which another one validates.

    A share holds out the first blocks of one order, so a larger share contains a
    smaller one. An objective with validation data of its own trains on the whole text.
    """
    configs = {each.name: each.config for each in group}
    shares = {
        name: 0.0 if each.validation_data else each.train_data.hold_out_fraction
        for name, each in configs.items()
    }
    least, most = min(shares, key=shares.get), max(shares, key=shares.get)
    if shares[least] == shares[most]:
        return
    if configs[least].validation_data:
        logger.warning(
            "%s trains on text that %s holds out for validation: task.%s."
            "validation_data is given, so %s holds out nothing; with "
            "task.%s.validation_data, too, no text serves both",
            *(least, most, least, least, most),
        )
        return
    logger.warning(
        "%s trains on text that %s holds out for validation: their shares "
        "train_data.hold_out_fraction are %g and %g; with equal shares, no text "
        "serves both",
        *(least, most, shares[least], shares[most]),
    )


def _raise_shares(asked: list[Objective], unable: list[Objective]) -> bool:
    """Doubles the shares of one text until every objective can validate by them.

    Args:
        asked: the objectives of the text; all of them keep training examples.
        unable: those of them that cannot validate by their shares of now.

    Returns:
        Whether a larger share is enough for all; otherwise the shares stay.
    """
    settings = [each.config.train_data for each in asked]
    before = [each.hold_out_fraction for each in settings]
    largest = max(before)
    while unable and largest < _MOST:
        largest = min(2 * largest, _MOST)
        for each in settings:
            each.hold_out_fraction = largest
        if not all(map(_keeps_examples, asked)):
            # A text of one block, or of equal documents, is held out whole or not.
            break
        unable = _unable(unable)
    if unable:
        for each, share in zip(settings, before, strict=True):
            each.hold_out_fraction = share
        return False
    logger.info(
        "%s: a share of %g of this text holds out too little; the run holds out %g",
        ", ".join(each.name for each in asked),
        before[0],
        settings[0].hold_out_fraction,
    )
    return True


def _unable(objectives: Iterable[Objective]) -> list[Objective]:
    """Returns the objectives that the held-out part of a small text is too small for.

    A large text is not read.
    """
    return [
        each
        for each in objectives
        if sum(each.data.train.sizes.values()) < _LARGE and not _can_validate(each)
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


def _keeps_examples(objective: Objective) -> bool:
    """Whether training keeps an example of each language."""
    return all(
        any(True for _ in objective.training_examples(language).take(1))
        for language in objective.data.train.files
    )
