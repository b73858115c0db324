"""The geometry of vectors: isotropy, mean vector, distribution of cosines.

Liu et al., 2021 (Mirror-BERT), https://arxiv.org/abs/2104.08027, section 4.4 (equation
2, figure 7, table 9) and appendix E (equation 3, table 14): the isotropy score IS and
the mean vector norm MVN of raw vectors, on the strings that the model was trained on.
The default strings are the first 10,000 distinct sentences of STS-B's training set;
most of the sample that the paper published is among them. `geometry:FILE` takes a list
of strings, such as that sample, one a line.

The printed formula does not give the printed IS. For raw vectors the two signs of the
first eigenvector alone give about exp(-2 MVN), 1e-12 for the paper's MVN of 13.79. One
sign, against the other eigenvectors, would give about exp(-MVN), 1e-6. The paper prints
0.043. MVN is comparable. `isotropy_unit` and `mean_vector_norm_unit` are the same
scores of vectors scaled to length 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.special import logsumexp

from cmlm.common import arrays
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import metrics
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base, senteval_files

_STRINGS = 10_000
_BINS = 40
# Two sentences with at least this human score have nearly the same meaning.
_SIMILAR = 4
_RANDOM_PAIRS = 100_000


@dataclasses.dataclass
class Strings:
    """The strings to measure.

    Attributes:
        texts: distinct strings, [n].
        first, second: pairs of similar strings for the histogram; may be empty.
        language: the language of the strings; empty if unknown.
    """

    texts: list[str]
    first: list[str] = dataclasses.field(default_factory=list)
    second: list[str] = dataclasses.field(default_factory=list)
    language: str = ""


class Geometry(base.Task[Strings]):
    """Isotropy and mean vector of STS-B's training sentences."""

    name = "geometry"
    main_metric = "isotropy"
    shown_metrics = ("mean_vector_norm", "isotropy_unit", "mean_vector_norm_unit")
    smaller_is_better = ("mean_vector_norm",)
    not_ranked = ("cosine",)
    protocol = (
        "IS (0 to 1, equation 2) and MVN (equation 3) of Mirror-BERT, raw vectors of "
        f"the first {_STRINGS:,} distinct sentences of STS-B's training set; unit: "
        "vectors of length 1; the printed formula of IS does not give the printed IS"
    )

    def read(self, source: DataDir) -> Strings:
        examples = senteval_files.sts_benchmark_part(source, "train")
        texts = dict.fromkeys(text for pair in examples.texts for text in pair)
        similar = [
            pair
            for pair, label in zip(examples.texts, examples.labels, strict=True)
            if label >= _SIMILAR
        ]
        return Strings(
            list(texts)[:_STRINGS],
            [first for first, _ in similar],
            [second for _, second in similar],
            "en",
        )

    def sentences(self, data: Strings) -> Iterable[str]:
        return [*data.texts, *data.first, *data.second]

    def score(self, data: Strings, vectors: base.Vectors) -> dict[str, float]:
        raw = vectors(data.texts, data.language)
        unit = arrays.unit_length(raw)
        cosines = random_cosines(unit, self.seeds[0])
        return {
            "isotropy": isotropy(raw),
            "mean_vector_norm": mean_vector_norm(raw),
            "isotropy_unit": isotropy(unit),
            "mean_vector_norm_unit": mean_vector_norm(unit),
            "cosine_mean": float(cosines.mean()),
            "cosine_std": float(cosines.std()),
        }

    def figures(self, data: Strings, vectors: base.Vectors) -> dict[str, Any]:
        unit = arrays.unit_length(vectors(data.texts, data.language))
        kinds = {"random pairs": random_cosines(unit, self.seeds[0])}
        if data.first:
            first, second = (
                vectors(side, data.language) for side in (data.first, data.second)
            )
            similar = metrics.cosine(first, second)
            kinds[f"pairs with a human score of {_SIMILAR} to 5"] = similar
        edges = np.linspace(-1, 1, _BINS + 1)
        return {
            "edges": edges.tolist(),
            "shares": {
                # Rounding may leave a cosine above 1.
                kind: (
                    np.histogram(np.clip(values, -1, 1), edges)[0] / len(values)
                ).tolist()
                for kind, values in kinds.items()
            },
        }


class GeometryFiles(Geometry):
    """Isotropy and mean vector of the user's own strings, one a line.

    Args:
        paths: files of strings in one language, see `DataDir.find_own`; the paper
            measures the strings that the model was trained on.
    """

    protocol = (
        "IS (0 to 1, equation 2) and MVN (equation 3) of Mirror-BERT, raw vectors of "
        "the given strings; unit: vectors of length 1"
    )

    def __init__(self, paths: Sequence[str]):
        self.name = "geometry:" + ":".join(paths)
        self._paths = paths

    def read(self, source: DataDir) -> Strings:
        texts: dict[str, None] = {}
        paths, language = source.find_own_of_one_language(self._paths)
        for path in paths:
            lines = source.lines(path)
            texts.update(dict.fromkeys(line.strip() for line in lines if line.strip()))
        if len(texts) < 2:
            raise UserError(
                f"{', '.join(self._paths)}: {counted(len(texts), 'distinct string')}; "
                "allowed: at least 2"
            )
        return Strings(list(texts), language=language)


def isotropy(vectors: np.ndarray) -> float:
    """The isotropy score of Mu and Viswanath, 2018, https://arxiv.org/abs/1702.01417.

    IS = min Z(c) / max Z(c), where Z(c) is the sum over v of exp(c . v), and c runs
    over the eigenvectors of V^T V. The sign of an eigenvector is arbitrary, so both
    signs count, and the score does not depend on the solver.

    Args:
        vectors: float [n, dim].

    Returns:
        The score, 0 to 1.
    """
    vectors = np.asarray(vectors, np.float64)
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    products = vectors @ directions
    partition = np.concatenate(
        [logsumexp(products, axis=0), logsumexp(-products, axis=0)]
    )
    return float(np.exp(partition.min() - partition.max()))


def mean_vector_norm(vectors: np.ndarray) -> float:
    """The length of the mean of vectors float [n, dim]."""
    return float(np.linalg.norm(np.asarray(vectors, np.float64).mean(axis=0)))


def random_cosines(unit: np.ndarray, seed: int) -> np.ndarray:
    """Cosines of random pairs of different rows, float [100,000]."""
    random = np.random.default_rng(seed)
    first = random.integers(0, len(unit), _RANDOM_PAIRS)
    second = (first + random.integers(1, len(unit), _RANDOM_PAIRS)) % len(unit)
    return np.einsum("nd,nd->n", unit[first], unit[second])


TASKS = [Geometry()]
