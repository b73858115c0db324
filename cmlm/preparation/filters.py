"""Filters for the lines of a document, as plain functions.

The fault of a line is the reason to drop it; `kept` counts the dropped lines by fault.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
from collections.abc import Callable, Iterable

from cmlm.data.sentences import UNSPACED
from cmlm.preparation import documents

# LaBSE, section 3.1: it drops lines under 10 and over 5,000 characters.
MIN_CHARACTERS = 10
MAX_CHARACTERS = 5000

# The sides of a pair with fewer words may differ in nothing but case.
_COPY_WORDS = 4

# C4 (Raffel et al., 2020, section 2.2), as coded in TensorFlow Datasets.
MIN_WORDS = 5
MIN_SENTENCES = 3
_MAX_WORD = 1000
_POLICIES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")

# The Greek question mark is U+037E, which Unicode's normal forms turn into a semicolon.
_GREEK_QUESTION = "\u037e|(?<=[\u0370-\u03ff\u1f00-\u1fff]);"
# C4's rule on final punctuation, extended to other scripts. “ ‘ « close a quotation in
# German, Czech or Danish.
_TERMINAL = re.compile(
    f"""[.!?…。！？．｡।॥؟۔։።፧၊။។៕།᠃᙮"'”’»›」』“‘«]|{_GREEK_QUESTION}"""
)
_SENTENCE_END = re.compile(f"[.!?…。！？．｡।॥؟۔։።፧။។៕།᠃᙮]+|{_GREEK_QUESTION}")
_UNSPACED = re.compile(f"[{UNSPACED}]")
# Thai and Lao do not use a full stop.
_UNSTOPPED = re.compile("[฀-໿]")
_CHARACTERS_A_WORD = 2


def words(line: str) -> int:
    """Counts words; in scripts without spaces two characters count as a word."""
    unspaced = len(_UNSPACED.findall(line))
    if not unspaced:
        return len(line.split())
    spaced = len(_UNSPACED.sub(" ", line).split())
    return spaced + unspaced // _CHARACTERS_A_WORD


def separated(text: str) -> list[str]:
    """Splits a text into words, and scripts without spaces into characters."""
    return _UNSPACED.sub(r" \g<0> ", text).split()


def kept(
    lines: Iterable[str],
    fault: Callable[[str], str | None],
    counts: collections.Counter,
) -> list[str]:
    """Returns the lines without a fault, and counts the others by their fault."""
    found = []
    for line in lines:
        reason = fault(line)
        if reason:
            counts[reason] += 1
        else:
            found.append(line)
    return found


def c4_lines(lines: list[str], counts: collections.Counter) -> list[str]:
    """Keeps complete sentences and drops boilerplate, by C4's rules."""
    return kept((_CITATION.sub("", line).strip() for line in lines), _c4_fault, counts)


def _c4_fault(line: str) -> str | None:
    if not line:
        return "empty"
    if line.endswith(("...", "…")):
        return "ends in an ellipsis"
    last = len(line) - 1
    if not _TERMINAL.match(line, last) and not _UNSTOPPED.match(line, last):
        return "no terminal punctuation"
    if words(line) < MIN_WORDS:
        return f"fewer than {MIN_WORDS} words"
    if not _UNSPACED.search(line) and max(map(len, line.split())) > _MAX_WORD:
        return f"a word over {_MAX_WORD} characters"
    lower = line.lower()
    if "javascript" in lower:
        return "JavaScript"
    if any(policy in lower for policy in _POLICIES):
        return "policy"
    return None


def c4_document(lines: list[str]) -> str | None:
    """Returns the reason why C4 drops a whole page, or None."""
    sentences = 0
    for line in lines:
        if "{" in line:
            return "curly bracket"
        if "lorem ipsum" in line.lower():
            return "lorem ipsum"
        sentences += max(1, len(_SENTENCE_END.findall(line)))
    if sentences < MIN_SENTENCES:
        return f"fewer than {MIN_SENTENCES} sentences"
    return None


def length_fault(line: str) -> str | None:
    """Returns why a line is not of 10 to 5,000 characters, or None."""
    if len(line) < MIN_CHARACTERS:
        return f"under {MIN_CHARACTERS} characters"
    if len(line) > MAX_CHARACTERS:
        return f"over {MAX_CHARACTERS:,} characters"
    return None


def pair_fault(line: str) -> str | None:
    """Returns why a pair lacks letters, or its sides are copies or long; or None."""
    source, target = line.split("\t")
    if not (any(map(str.isalpha, source)) and any(map(str.isalpha, target))):
        return "a side without a letter"
    if source == target:
        return "both sides equal"
    if _is_loose_copy(source, target):
        return "both sides equal but for case and punctuation"
    if max(len(source), len(target)) > MAX_CHARACTERS:
        return f"over {MAX_CHARACTERS:,} characters"
    return None


def _is_loose_copy(source: str, target: str) -> bool:
    """Whether the sides have the same letters and digits, and more than a few words.

    A few words may be a translation: `winter in Berlin` and `Winter in Berlin`.
    """
    letters = itertools.zip_longest(*map(documents.compared, (source, target)))
    # Translations differ at one of the first letters.
    return all(a == b for a, b in letters) and words(source) >= _COPY_WORDS


# CLD2 rejects control characters and non-characters.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
_NOT_CHARACTERS = re.compile(
    "["
    + "".join(chr(p << 16 | e) for p in range(1, 17) for e in (0xFFFE, 0xFFFF))
    + "]"
)
# CLD2 uses some withdrawn ISO 639 codes, and one code with a script.
_MODERN = {"iw": "he", "jw": "jv", "in": "id", "ji": "yi", "mo": "ro", "zh-Hant": "zh"}
_SAMPLE = 20_000


def identify(text: str) -> str | None:
    """Identifies the language of a text with CLD2.

    Args:
        text: a document; its first 20,000 characters are used.

    Returns:
        The ISO 639 code, or None if CLD2 is not sure, or names only the script, as
        xx-Goth.
    """
    import pycld2

    sample = _NOT_CHARACTERS.sub(" ", _NOT_TEXT.sub(" ", text[:_SAMPLE]))
    reliable, _, found = pycld2.detect(sample)
    code = found[0][1]
    code = _MODERN.get(code, code)
    return code if reliable and code in _identified() else None


def identified_languages() -> list[str]:
    """All codes that `identify` can return."""
    return sorted(_identified())


@functools.cache
def _identified() -> frozenset[str]:
    import pycld2

    known = {c for n, c in pycld2.LANGUAGES if n in pycld2.DETECTED_LANGUAGES}
    return frozenset(_MODERN.get(c, c) for c in known if not c.startswith("xx"))
