"""A small linear classifier of documents: like these, not like those.

GPT-3 and CCNet choose web text by likeness to text that is known to be good. Here
good and bad are the user's own examples: hashed words and pairs of words, logistic
regression, its weights in an .npz file.
"""

from __future__ import annotations

import collections
import functools
import itertools
import zipfile
from collections.abc import Sequence

import numpy as np

from cmlm.common import beam_runner
from cmlm.errors import UserError
from cmlm.preparation import sources

FEATURES = 1 << 18
_FORMAT = "cmlm quality 1"


@functools.cache
def _vectorizer():
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ImportError as error:
        raise UserError(f"this needs `pip install 'cmlm[corpus]'`: {error}") from error
    # No pattern of words: a script without spaces gives single characters.
    return HashingVectorizer(
        n_features=FEATURES,
        ngram_range=(1, 2),
        token_pattern="[^\\W฀-໿ༀ-႟ក-៿぀-ヿ㐀-鿿]+|[^\\w\\s]|[฀-໿ༀ-႟ក-៿぀-ヿ㐀-鿿]",
        alternate_sign=False,
    )


class QualityModel:
    """Scores documents from 0 (like the bad examples) to 1 (like the good ones)."""

    def __init__(self, weights: np.ndarray, bias: float):
        """Takes float32 weights [FEATURES] and the bias."""
        self._weights, self._bias = weights.astype(np.float64), bias

    def score(self, texts: Sequence[str]) -> np.ndarray:
        """Probabilities of being good, float64 [len(texts)]."""
        logits = _vectorizer().transform(texts) @ self._weights + self._bias
        return 1 / (1 + np.exp(-logits))

    def save(self, path: str) -> None:
        """Writes the .npz file; `path` is local."""
        with open(path, "wb") as file:
            np.savez_compressed(
                file,
                format=_FORMAT,
                weights=self._weights.astype(np.float32),
                bias=np.float64(self._bias),
            )

    @classmethod
    def load(cls, path: str) -> QualityModel:
        """Reads what `save` wrote, of any of Beam's filesystems.

        Raises:
            UserError: the file is something else.
        """
        try:
            with beam_runner.open_bytes(path) as raw:
                with np.load(raw, allow_pickle=False) as arrays:
                    if str(arrays["format"]) != _FORMAT:
                        raise ValueError(str(arrays["format"]))
                    weights, bias = arrays["weights"], float(arrays["bias"])
            if weights.shape != (FEATURES,):
                raise ValueError(f"weights of shape {weights.shape}")
        except FileNotFoundError as error:
            raise UserError(f"--quality_model: no file {path}") from error
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(
                f"{path} is no quality model, which `python -m cmlm.quality` writes:"
                f" {error}"
            ) from error
        return cls(weights, bias)


def read_examples(paths: Sequence[str], maximum: int) -> list[str]:
    """The first documents of some files: text, a blank line between two of them."""
    documents = (
        "\n".join(lines)
        for path in paths
        for _, lines in sources.read(path, "lines", collections.Counter())
    )
    return list(itertools.islice(documents, maximum))


def fit(good: Sequence[str], bad: Sequence[str], seed: int) -> QualityModel:
    """Fits a model on examples of both kinds, each kind weighing the same."""
    from sklearn.linear_model import LogisticRegression

    labels = np.repeat([1, 0], [len(good), len(bad)])
    model = LogisticRegression(
        C=10.0, class_weight="balanced", max_iter=1000, random_state=seed
    )
    model.fit(_vectorizer().transform([*good, *bad]), labels)
    return QualityModel(model.coef_[0], float(model.intercept_[0]))
