"""The methods of every encoder: `encode`, `similarity` and `search`."""

from __future__ import annotations

import abc
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from cmlm.common import arrays, fields, prompts
from cmlm.encoders.sentences import check_sentences
from cmlm.errors import shown
from cmlm.mining import exact

# The rounding of float32 in the square of a length 1.
_ROUNDING = 1e-5


class Comparing(abc.ABC):
    """Adds `encode`, `similarity` and `search` to a class with `_encode`.

    Attributes:
        dim: the width of a vector.
        name: the name of the encoder in messages.
        prompts: texts that may precede a text, by name, such as `query`; None for a
            text that a server does not tell.
    """

    dim: int
    name: str
    prompts: Mapping[str, str | None] = {}

    def __copy__(self) -> Comparing:
        """The encoder itself: it does not change, and threads may share it."""
        return self

    def __deepcopy__(self, memo: dict) -> Comparing:
        """The encoder itself: scikit-learn's `clone` copies the owner of `encode`."""
        return self

    def encode(
        self,
        sentences: Sequence[str],
        normalize: bool = False,
        progress: bool | None = None,
        *,
        prompt_name: str | None = None,
        normalize_embeddings: bool | None = None,
        show_progress_bar: bool | None = None,
        batch_size: int | None = None,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
    ) -> np.ndarray:
        """Encodes sentences.

        Args:
            sentences: any number of sentences; "" counts as a sentence.
            normalize: scale every vector to length 1.
            progress: show a bar on stderr; None shows it for long lists only. Servers
                and stored vectors have no bar.
            prompt_name: the key in `prompts` of the prompt that precedes every text;
                None for the encoder's default prompt, if it has one.
            normalize_embeddings, show_progress_bar: sentence-transformers' names for
                `normalize` and `progress`.
            batch_size, convert_to_numpy, convert_to_tensor: sentence-transformers'
                arguments, without effect: batches follow from the numbers of tokens.

        Returns:
            float32 [len(sentences), dim], in the order of `sentences`.

        Raises:
            TypeError: `sentences` is not a list of str.
            UserError: a vector is not finite or has another width, this process is a
                fork of the one that opened the encoder, the encoder lacks the
                prompt, `convert_to_numpy` is not True, or `convert_to_tensor` is not
                False.
        """
        if convert_to_numpy is not True:
            raise fields.refused("convert_to_numpy", convert_to_numpy, "True")
        if convert_to_tensor is not False:
            raise fields.refused("convert_to_tensor", convert_to_tensor, "False")
        normalize = normalize if normalize_embeddings is None else normalize_embeddings
        progress = progress if show_progress_bar is None else show_progress_bar
        if prompt_name is not None:
            prompted = self.prompted(prompt_name)
            return prompted.encode(sentences, normalize, progress)
        check_sentences(sentences)
        if not len(sentences):
            return np.zeros([0, self.dim], np.float32)
        encoded = self._encode(sentences, progress)
        encoded = arrays.checked(encoded, sentences, self.name, self.dim)
        return arrays.unit_length(encoded) if normalize else encoded

    def prompted(self, prompt_name: str) -> Comparing:
        """The same encoder with another default prompt.

        Args:
            prompt_name: a key of `prompts`.

        Raises:
            UserError: the encoder lacks the prompt.
        """
        prompts.check_name(prompt_name, self.prompts, self.name, "prompt_name")
        # Opened once, because TensorFlow traces the graph of each anew.
        opened = self.__dict__.setdefault("_opened", {})
        if prompt_name not in opened:
            opened[prompt_name] = self._prompted(prompt_name)
        return opened[prompt_name]

    def for_role(self, role: str) -> Comparing:
        """The encoder with its prompt for a role of `prompts.ROLES`, if it has one."""
        prompt_name = prompts.of_role(self, role)
        return self if prompt_name is None else self.prompted(prompt_name)

    def _prompted(self, prompt_name: str) -> Comparing:
        """Opens the encoder with another default prompt, a key of `prompts`."""
        raise NotImplementedError

    @abc.abstractmethod
    def _encode(
        self, sentences: Sequence[str], progress: bool | None = None
    ) -> np.ndarray:
        """Encodes at least one sentence and returns float [n, dim]."""

    def similarity(
        self, a: Sequence[str] | np.ndarray, b: Sequence[str] | np.ndarray
    ) -> np.ndarray:
        """Compares each text of one list with each text of another by cosine.

        Args:
            a: n texts, or their vectors, float [n, dim].
            b: m texts, or their vectors, float [m, dim].

        Returns:
            float32 [n, m], from -1 to 1.

        Raises:
            TypeError: `a` or `b` is neither vectors nor a list of str.
            ValueError: vectors have a wrong shape or a number that is not finite.
        """
        _check_texts("a", a)
        _check_texts("b", b)
        left, right = self._units("a", a), self._units("b", b)
        _check_widths("a", left, "b", right)
        cosines = left @ right.T
        # Rounding exceeds 1.
        return np.clip(cosines, -1, 1, out=cosines)

    def search(
        self,
        queries: Sequence[str] | np.ndarray,
        corpus: Sequence[str] | np.ndarray,
        k: int = 10,
    ) -> exact.Nearest:
        """Finds the texts of a corpus that are nearest to each query, by cosine.

        Queries get the encoder's prompt `query`. The corpus gets the first prompt of
        `document`, `passage` and `corpus` that is not empty. Without them, the default
        prompt counts.

        The search is exact; FAISS does it where it is installed
        (pip install 'cmlm[mine]'), numpy elsewhere. Encode a corpus once, and pass its
        vectors, to search it often. Vectors at length 1, as `encode(normalize=True)`
        returns them, are searched without a copy.

        Args:
            queries: n texts, or their vectors, float [n, dim].
            corpus: m texts, or their vectors, float [m, dim].
            k: the most texts to return for each query.

        Returns:
            Cosines and rows of the corpus, [n, min(k, m)]. Equal cosines are in the
            order of their rows. Rounding may carry a cosine beyond 1.

        Raises:
            TypeError: `queries` or `corpus` is neither vectors nor a list of str, or
                `k` is not an integer.
            ValueError: `k` is below 1, or vectors have a wrong shape or a number that
                is not finite.
        """
        try:
            k = operator.index(k)
        except TypeError:
            raise TypeError(f"k is {shown(k)}; allowed: an integer") from None
        if k < 1:
            raise ValueError(f"k is {k}; allowed: at least 1")
        _check_texts("queries", queries)
        _check_texts("corpus", corpus)
        if not (len(queries) and len(corpus)):
            return exact.nothing(len(queries), min(k, len(corpus)))
        left = self._units("queries", queries, prompts.QUERY)
        right = self._units("corpus", corpus, prompts.DOCUMENT)
        _check_widths("queries", left, "corpus", right)
        return exact.nearest(left, right, k)

    def _units(
        self, name: str, texts: Sequence[str] | np.ndarray, role: str = ""
    ) -> np.ndarray:
        """The vectors of an argument at length 1, with the prompt of a role."""
        if not _is_vectors(texts):
            encoder = self.for_role(role) if role else self
            return encoder.encode(texts, normalize=True)
        if texts.ndim != 2:
            shape = list(texts.shape)
            raise ValueError(f"{name} has the shape {shape}; allowed: [n, dim]")
        vectors = np.asarray(texts)
        if _have_unit_length(vectors):
            # A copy of a large corpus would take longer than its search.
            return vectors
        units = arrays.unit_length(vectors)
        # The sum of a unit vector is finite, and those of NaN and infinity are not.
        if not np.isfinite(units.sum(axis=1)).all():
            raise ValueError(f"{name} has NaN or infinity; allowed: finite numbers")
        return units


def _have_unit_length(vectors: np.ndarray) -> bool:
    """Whether all rows are float32 and have the length 1, apart from rounding."""
    if vectors.dtype != np.float32:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
        return bool((np.abs(squares - 1) < _ROUNDING).all())


def _check_widths(first: str, left: np.ndarray, second: str, right: np.ndarray) -> None:
    """Raises ValueError if the vectors of two arguments, by name, differ in width."""
    if left.shape[1] != right.shape[1]:
        raise ValueError(
            f"the vectors of {first} have the width {left.shape[1]}, those of {second} "
            f"{right.shape[1]}; allowed: one width"
        )


def _check_texts(name: str, texts: Sequence[str] | np.ndarray) -> None:
    """Raises TypeError if an argument is neither vectors nor a list of str."""
    if not _is_vectors(texts):
        try:
            check_sentences(texts, name)
        except TypeError as error:
            raise TypeError(
                f"{error}, or their vectors as a numpy array of float [n, dim]"
            ) from None


def _is_vectors(texts: Sequence[str] | np.ndarray) -> bool:
    # numpy makes float64 of an empty list of texts.
    is_floats = isinstance(texts, np.ndarray) and texts.dtype.kind == "f"
    return is_floats and texts.shape != (0,)
