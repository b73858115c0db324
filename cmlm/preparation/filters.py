"""What is dropped from a document and why: plain functions of text.

A filter takes the lines of a document and a counter, which it tells how many lines it
dropped for which reason, and returns the lines to keep.
"""

from __future__ import annotations

import collections
import re

# LaBSE, section 3.1: shorter lines are no sentences, longer ones "usually JavaScript".
MIN_CHARACTERS = 10
MAX_CHARACTERS = 5000

# C4 (Raffel et al., 2020, section 2.2) and its code in TensorFlow Datasets.
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

# The full stops of other scripts belong to C4's rule as much as the Latin one.
_TERMINAL = ".!?…。！？．｡।॥؟۔։።၊။។៕᠃᙮\"'”’»›」』)）"
_TERMINAL_ENDS = frozenset(_TERMINAL) - set("()（）")
_SENTENCE_END = re.compile(r"[.!?…。！？．｡।॥؟۔։።။។᠃᙮]+")
# Thai, Lao, Khmer, Myanmar, Tibetan, Han, kana: no spaces between words.
_UNSPACED = re.compile("[฀-໿ༀ-႟ក-៿぀-ヿ㐀-鿿豈-﫿]")
# Thai and Lao have no full stop either.
_UNSTOPPED = re.compile("[฀-໿]")
_CHARACTERS_A_WORD = 2


def words(line: str) -> int:
    """Words of a line; of scripts without spaces, two characters count as one."""
    unspaced = len(_UNSPACED.findall(line))
    if not unspaced:
        return len(line.split())
    spaced = len(_UNSPACED.sub(" ", line).split())
    return spaced + unspaced // _CHARACTERS_A_WORD


def c4_lines(lines: list[str], counts: collections.Counter) -> list[str]:
    """The lines that C4 keeps: whole sentences, no boilerplate."""
    kept = []
    for line in lines:
        line = _CITATION.sub("", line).strip()
        reason = _c4_reason(line)
        if reason:
            counts[reason] += 1
        else:
            kept.append(line)
    return kept


def _c4_reason(line: str) -> str | None:
    if not line:
        return "empty"
    if line.endswith(("...", "…")):
        return "ends in an ellipsis"
    if line[-1] not in _TERMINAL_ENDS and not _UNSTOPPED.search(line[-1]):
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
    """Why C4 drops a page as a whole; None keeps it."""
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


def length(lines: list[str], counts: collections.Counter) -> list[str]:
    """The lines of 10 to 5,000 characters."""
    kept = []
    for line in lines:
        if len(line) < MIN_CHARACTERS:
            counts[f"under {MIN_CHARACTERS} characters"] += 1
        elif len(line) > MAX_CHARACTERS:
            counts[f"over {MAX_CHARACTERS:,} characters"] += 1
        else:
            kept.append(line)
    return kept


def pairs(lines: list[str], counts: collections.Counter) -> list[str]:
    """The translations that say something on both sides, and not the same."""
    kept = []
    for line in lines:
        source, target = line.split("\t")
        if not (any(map(str.isalpha, source)) and any(map(str.isalpha, target))):
            counts["a side without a letter"] += 1
        elif source == target:
            counts["both sides equal"] += 1
        elif max(len(source), len(target)) > MAX_CHARACTERS:
            counts[f"over {MAX_CHARACTERS:,} characters"] += 1
        else:
            kept.append(line)
    return kept


# What CLD2 does not take for text: control characters and non-characters.
_NOT_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef\ufffe\uffff]")
_NOT_CHARACTERS = re.compile(
    "["
    + "".join(chr(p << 16 | e) for p in range(1, 17) for e in (0xFFFE, 0xFFFF))
    + "]"
)
# CLD2 keeps names that ISO 639 has given up, and one for a script.
_MODERN = {"iw": "he", "jw": "jv", "in": "id", "ji": "yi", "mo": "ro", "zh-Hant": "zh"}
_SAMPLE = 20_000


def identify(text: str) -> str | None:
    """The ISO 639 code of a text's language by CLD2, None where it is not sure.

    Args:
        text: a document; its first 20,000 characters are looked at.
    """
    import pycld2

    sample = _NOT_CHARACTERS.sub(" ", _NOT_TEXT.sub(" ", text[:_SAMPLE]))
    reliable, _, found = pycld2.detect(sample)
    code = found[0][1]
    if not reliable or code == "un":
        return None
    return _MODERN.get(code, code)


def identified_languages() -> list[str]:
    """The codes that `identify` can give."""
    import pycld2

    known = {c for n, c in pycld2.LANGUAGES if n in pycld2.DETECTED_LANGUAGES}
    return sorted({_MODERN.get(c, c) for c in known if not c.startswith("xx")})
