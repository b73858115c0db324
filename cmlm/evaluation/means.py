"""The rows of a report that are means of models: --mean and --mean_of_models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cmlm.errors import UserError
from cmlm.evaluation import tables

_BASELINES = ("untrained:", "bow:")


def check(means: Mapping[str, Sequence[str]], known: Iterable[str]) -> None:
    """Checks the values of --mean.

    Args:
        means: the models of each mean, by the name of its row.
        known: the names of all models.

    Raises:
        UserError: a mean names an unknown model, or its row has a model's name.
    """
    for name, members in means.items():
        if name in known:
            raise UserError(
                f"--mean has {name!r}; allowed: another name than a model's"
            )
        for member in members:
            if member not in known:
                raise UserError(
                    f"--mean={name} has {member!r}; allowed: names of models: "
                    f"{', '.join(known)}"
                )


def rows(
    means: Mapping[str, Sequence[str]],
    named: Mapping[str, str],
    models: Mapping[str, dict],
    failed: dict[str, str],
    of_all: bool,
) -> dict[str, list[str]]:
    """The scored models of each mean, by the name of its row.

    Args:
        means: the models of each --mean, by its name.
        named: the models by name.
        models: the entries of the models with scores.
        failed: gets a message for each --mean of a model without scores.
        of_all: add --mean_of_models, the mean of all runs; of all models, if they are
            all baselines.
    """
    # --pcr adds to the name of a row.
    row_of = {
        name: row
        for name in named
        for row in (name, name + tables.WITH_PCR)
        if row in models
    }
    found = {}
    for mean, members in means.items():
        absent = [name for name in members if name not in row_of]
        if absent:
            failed[f"the mean {mean}"] = f"no scores of {', '.join(absent)}"
        else:
            found[mean] = [row_of[name] for name in members]
    if of_all:
        runs = [
            row
            for name, row in row_of.items()
            if not named[name].startswith(_BASELINES)
        ]
        runs = runs or [*row_of.values()]
        if len(runs) > 1:
            found[f"mean of {len(runs)} models"] = runs
    return found
