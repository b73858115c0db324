"""How vectors lie in space: isotropy, mean vector, distribution of cosines.

Measured, as in Liu et al., 2021, https://arxiv.org/abs/2104.08027 (Mirror-BERT),
section 5 and figure 7, on the distinct sentences of STS-B's test set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.special import logsumexp

from cmlm.evaluation import base, metrics, reading, search, senteval_files

_BINS = 40
# From this score on people say that two sentences mean nearly the same.
_SIMILAR = 4
_RANDOM_PAIRS = 100_000


class Geometry(base.Task[senteval_files.Examples]):
    """Numbers on vectors of unit length; there is no gold but for the histogram."""

    name = "geometry"
    main_metric = "isotropy"
    protocol = (
        "isotropy score IS of unit vectors, 0 to 1 (1: the same in every direction)"
    )

    def read(self, source: reading.DataDir) -> senteval_files.Examples:
        return senteval_files.sts_benchmark_part(source, "test")

    def sentences(self, data: senteval_files.Examples) -> Iterable[str]:
        return (text for pair in data.texts for text in pair)

    def score(
        self, data: senteval_files.Examples, vectors: base.Vectors
    ) -> dict[str, float]:
        unit = self._unit(data, vectors)
        cosines = random_cosines(unit, self.seeds[0])
        return {
            "isotropy": isotropy(unit),
            "mean_vector_norm": mean_vector_norm(unit),
            "cosine_mean": float(cosines.mean()),
            "cosine_std": float(cosines.std()),
        }

    def figures(
        self, data: senteval_files.Examples, vectors: base.Vectors
    ) -> dict[str, Any]:
        first, second = zip(*data.texts, strict=True)
        similar = metrics.cosine(vectors(list(first)), vectors(list(second)))
        kinds = {
            "random pairs": random_cosines(self._unit(data, vectors), self.seeds[0]),
            f"pairs with gold {_SIMILAR} to 5": similar[data.labels >= _SIMILAR],
        }
        edges = np.linspace(-1, 1, _BINS + 1)
        return {
            "edges": edges.tolist(),
            "shares": {
                kind: (np.histogram(values, edges)[0] / len(values)).tolist()
                for kind, values in kinds.items()
            },
        }

    def _unit(self, data: senteval_files.Examples, vectors: base.Vectors) -> np.ndarray:
        return search.unit_length(vectors(list(dict.fromkeys(self.sentences(data)))))


def isotropy(vectors: np.ndarray) -> float:
    """Isotropy score of Mu and Viswanath, 2018, https://arxiv.org/abs/1702.01417.

    IS = min Z(c) / max Z(c), with Z(c) the sum over v of exp(c . v), and c running over
    the eigenvectors of V'V. An eigenvector has two directions; both count.

    Args:
        vectors: float [n, dim].

    Returns:
        0 to 1.
    """
    vectors = np.asarray(vectors, np.float64)
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    products = vectors @ directions
    partition = np.concatenate(
        [logsumexp(products, axis=0), logsumexp(-products, axis=0)]
    )
    return float(np.exp(partition.min() - partition.max()))


def mean_vector_norm(vectors: np.ndarray) -> float:
    """Length of the mean of vectors float [n, dim]; 0 if they point everywhere."""
    return float(np.linalg.norm(np.asarray(vectors, np.float64).mean(axis=0)))


def random_cosines(unit: np.ndarray, seed: int) -> np.ndarray:
    """Cosines of pairs of different rows drawn at random, float [100,000]."""
    random = np.random.default_rng(seed)
    first = random.integers(0, len(unit), _RANDOM_PAIRS)
    second = (first + random.integers(1, len(unit), _RANDOM_PAIRS)) % len(unit)
    return np.einsum("nd,nd->n", unit[first], unit[second])


TASKS = [Geometry()]
