"""Corpora by language: how they are named, and how often each is drawn from."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

import tensorflow as tf

from cmlm.errors import UserError

# `en=`, `zh-Hant=`, `en-de=` at the start of a path in a list of paths.
_NAMED = re.compile(r"([A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*)=(.+)")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Files in the training format, by language.

    Attributes:
        files: language to paths. A corpus whose languages are not named has the one
            language "".
        sizes: language to the number of its examples, maybe estimated.
        neighbours: language to its sentences that follow another one, as far as they
            were counted; empty for what is no running text.
    """

    files: Mapping[str, list[str]]
    sizes: Mapping[str, int]
    neighbours: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def probabilities(self, exponent: float) -> dict[str, float]:
        """How often each language is drawn: p_l = n_l^exponent / sum_k n_k^exponent."""
        return smoothed_shares(self.sizes, exponent)


def split(input_path: str) -> dict[str, str]:
    """Reads `en=a.txt,b.txt,de=c.txt` as {"en": "a.txt,b.txt", "de": "c.txt"}.

    A list without names is of the language "".

    Raises:
        UserError: some paths have a language and the first has none.
    """
    found: dict[str, list[str]] = {}
    language = ""
    for part in filter(None, (part.strip() for part in input_path.split(","))):
        named = _NAMED.fullmatch(part)
        if named:
            language, part = named.groups()
        found.setdefault(language, []).append(part)
    if "" in found and len(found) > 1:
        raise UserError(
            f"input_path={input_path!r}: {found[''][0]!r} has no language; allowed is "
            "LANGUAGE=FILES for all of them, as in en=a.txt,de=b.txt, or for none"
        )
    return {language: ",".join(parts) for language, parts in found.items()}


def smoothed_shares(sizes: Mapping[str, float], exponent: float) -> dict[str, float]:
    """Shares in proportion to size^exponent; what is empty gets none."""
    powers = {key: size**exponent if size else 0.0 for key, size in sizes.items()}
    total = sum(powers.values())
    return {key: power / total for key, power in powers.items()}


def mix(
    datasets: Mapping[str, tf.data.Dataset], shares: Mapping[str, float], seed: int
) -> tf.data.Dataset:
    """Draws from several datasets at random, until all of them are exhausted.

    The draws are the same at every iteration.

    Args:
        datasets: by language.
        shares: how often each is drawn from, while it lasts.
        seed: of the draws.
    """
    if len(datasets) == 1:
        return next(iter(datasets.values()))
    return tf.data.Dataset.sample_from_datasets(
        list(datasets.values()),
        [shares[language] for language in datasets],
        seed=seed,
        stop_on_empty_dataset=False,
    )


def merge(corpora: Iterable[Corpus]) -> dict[str, list[str]]:
    """The files of several corpora by language, each path once."""
    merged: dict[str, dict[str, None]] = {}
    for corpus in corpora:
        for language, files in corpus.files.items():
            merged.setdefault(language, {}).update(dict.fromkeys(files))
    return {language: list(files) for language, files in merged.items()}
