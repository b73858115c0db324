"""Warns of text that loses its accents by default, as in BERT."""

from __future__ import annotations

import collections
import itertools
import logging
import unicodedata
from collections.abc import Mapping

from cmlm.common import files as files_lib
from cmlm.vocabulary import words

# The first lines of a language that are read, and the share of words with accents that
# deserves a warning. Loanwords in English stay below it.
_LINES = 2_000
_SUSPICIOUS_SHARE = 0.01

logger = logging.getLogger(__name__)


def warn_of_stripped(files: Mapping[str, list[str]]) -> None:
    """Warns of languages whose words have accents, before a vocabulary drops them.

    Args:
        files: the text by language; bitext is named `en-de`.
    """
    for of, paths in files.items():
        for path in paths[:1]:
            with files_lib.open_text(path) as stream:
                lines = list(itertools.islice(stream, _LINES))
            for language, texts in words.split_columns(of, path, lines, "\t"):
                _warn(language, " ".join(texts).lower().split())


def _warn(language: str, found: list[str]) -> None:
    text = unicodedata.normalize("NFC", "\n".join(found))
    stripped = {character: _stripped(character) for character in {*text}}
    changed = {character for character in stripped if stripped[character] != character}
    count = sum(not changed.isdisjoint(word) for word in text.split("\n"))
    if count <= _SUSPICIOUS_SHARE * len(found):
        return
    counts = collections.Counter(
        character for character in text if character in changed
    )
    ((most, _),) = counts.most_common(1)
    logger.warning(
        "%s%.0f%% of the words have accents, which the vocabulary drops (%s is %s); "
        "strip_accents=false keeps them",
        f"{language}: " if language else "",
        100 * count / len(found),
        most,
        stripped[most] or "nothing",
    )


def _stripped(character: str) -> str:
    """A character without its accents, as BERT's tokenizer strips them."""
    parts = unicodedata.normalize("NFD", character)
    return "".join(part for part in parts if unicodedata.category(part) != "Mn")
