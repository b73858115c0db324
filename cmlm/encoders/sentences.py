"""Checks the argument of `encode`: a list of str, or a numpy array of str."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set, Sized


def check_sentences(sentences: Sequence[str], name: str = "sentences") -> None:
    """Refuses an argument other than a list of str, such as a single string.

    Args:
        sentences: a list or numpy array [n]; it may be empty.
        name: the name of the argument, for messages.

    Raises:
        TypeError: `sentences` is a single string, has no length or more than one axis,
            or is a mapping or a set; or an item is not a str.
    """
    if isinstance(sentences, (str, bytes)):
        # Its characters would count as sentences.
        raise TypeError(f"{name} is a single string; allowed: a list of str")
    is_table = getattr(sentences, "ndim", 1) != 1
    is_other = isinstance(sentences, (Mapping, Set)) or not isinstance(sentences, Sized)
    if is_table or is_other:
        # A table of pandas and a dict give their columns and keys as items, a set has
        # no order. The check of the items would use up an iterator.
        kind = type(sentences).__name__
        raise TypeError(f"{name} is a {kind}; allowed: a list of str")
    for row, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            kind = type(sentence).__name__
            raise TypeError(f"item {row} of {name} is {kind}; allowed: a list of str")


def to_bytes(sentences: Iterable[str]) -> list[bytes]:
    """Returns sentences in UTF-8.

    A lone surrogate has no UTF-8 form; the graph replaces its bytes, like all invalid
    bytes.
    """
    return [text.encode("utf-8", "surrogatepass") for text in sentences]
