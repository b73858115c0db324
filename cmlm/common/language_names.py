"""Names of languages on the command line: `en=FILE`, `zh-Hant=FILE`, `en-de=FILE`."""

from __future__ import annotations

import re

# At the start of a path.
_NAMED = re.compile(r"([A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*)=(.+)")
# A language without script (`Hant`) and region (`BR`).
_PRIMARY = re.compile(r"[a-z]{2,3}")


def split_off(text: str) -> tuple[str, str]:
    """Splits `en=a.txt` into `en` and `a.txt`; the language of `a.txt` is "".

    A file may have such a name, too: callers look for it first.
    """
    found = _NAMED.fullmatch(text)
    return (found[1], found[2]) if found else ("", text)


def sides(pair: str) -> tuple[str, str]:
    """Splits a pair of languages: `zh-Hant-en` into `zh-Hant` and `en`.

    The second language begins at the first part, behind a hyphen, of two or three small
    letters; else behind the first hyphen. A single language has "" beside it.
    """
    parts = pair.split("-")
    starts = (n for n, part in enumerate(parts) if n and _PRIMARY.fullmatch(part))
    second = next(starts, 1)
    return "-".join(parts[:second]), "-".join(parts[second:])


def of_two_texts(name: str) -> tuple[str, str]:
    """The languages of two texts: `en-de` names one each, `zh-Hant` names both."""
    first, second = sides(name)
    is_pair = _PRIMARY.fullmatch(second.partition("-")[0])
    return (first, second) if is_pair else (name, name)
