"""A corpus: the files of each language; their union, and draws from all of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping

import tensorflow as tf

from cmlm.data import languages


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Files in the training format, by language.

    Attributes:
        files: language to paths. A corpus without named languages has the language "".
        sizes: language to its number of examples, possibly an estimate.
        neighbours: language to the number of counted sentences that follow another
            sentence of their document; empty for data other than running text.
    """

    files: Mapping[str, list[str]]
    sizes: Mapping[str, int]
    neighbours: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def probabilities(self, exponent: float) -> dict[str, float]:
        """Returns sampling probabilities, p_l = n_l^exponent / sum_k n_k^exponent."""
        return languages.smoothed_shares(self.sizes, exponent)


def mix(
    datasets: Mapping[str, tf.data.Dataset], shares: Mapping[str, float], seed: int
) -> tf.data.Dataset:
    """Draws from several datasets at random until all are exhausted.

    Every iteration repeats the same draws.

    Args:
        datasets: language to dataset.
        shares: language to the probability of a draw, until its dataset is exhausted.
        seed: seed of the draws.
    """
    if len(datasets) == 1:
        return next(iter(datasets.values()))
    return tf.data.Dataset.sample_from_datasets(
        list(datasets.values()),
        [shares[language] for language in datasets],
        seed=seed,
        stop_on_empty_dataset=False,
    )


def listing(files: Mapping[str, list[str]]) -> dict[str, list]:
    """Returns [name, bytes] of each file by language, the same after a move."""
    return {
        language: [
            [os.path.basename(path), tf.io.gfile.stat(path).length] for path in paths
        ]
        for language, paths in sorted(files.items())
    }


def merge(corpora: Iterable[Corpus]) -> dict[str, list[str]]:
    """Returns the files of several corpora by language, each path once."""
    merged: dict[str, dict[str, None]] = {}
    for corpus in corpora:
        for language, files in corpus.files.items():
            merged.setdefault(language, {}).update(dict.fromkeys(files))
    return {language: list(files) for language, files in merged.items()}
