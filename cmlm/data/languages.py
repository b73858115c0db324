"""Names of languages: their syntax on the command line, and their sampling shares."""

from __future__ import annotations

import re
from collections.abc import Mapping

import tensorflow as tf

from cmlm.errors import UserError

# `en=`, `zh-Hant=`, `en-de=` at the start of a path in a list of paths; and a word that
# is not a code.
_NAMED = re.compile(r"([A-Za-z]{2,3}(?:[-_][A-Za-z0-9]{2,8})*)=(.+)")
_WORD = re.compile(r"[A-Za-z]{4,}=")
# A language without script (`Hant`) and region (`BR`).
_PRIMARY = re.compile(r"[a-z]{2,3}")


def split(input_path: str) -> dict[str, str]:
    """Reads `en=a.txt,b.txt,de=c.txt` as {"en": "a.txt,b.txt", "de": "c.txt"}.

    A list without names has the language "". `dt=2024/a.txt` is a path if it exists;
    if not, it names the language `dt`.

    Args:
        input_path: the value of a flag or setting.

    Raises:
        UserError: the first path has no language, but a later path has one; or the name
            of a language is a word.
    """
    found: dict[str, list[str]] = {}
    language = ""
    for part in filter(None, (part.strip() for part in input_path.split(","))):
        if names_language(part):
            language, _, part = part.partition("=")
        elif _WORD.match(part) and not _exists(part):
            raise UserError(
                f"no file matches {part!r}; allowed: files, or LANGUAGE=FILES, where "
                "LANGUAGE is a code of two or three letters, as in en=a.txt"
            )
        found.setdefault(language, []).append(part)
    if "" in found and len(found) > 1:
        raise UserError(
            f"{found[''][0]!r} in {input_path!r} has no language; allowed: "
            "LANGUAGE=FILES for all paths, as in en=a.txt,zh-Hant=b.txt, or for none; a"
            " LANGUAGE begins with two or three letters"
        )
    return {language: ",".join(parts) for language, parts in found.items()}


def names_language(part: str) -> bool:
    """Whether a path in a list begins with `LANGUAGE=` and is not the name of files."""
    return bool(_NAMED.fullmatch(part)) and not _exists(part)


def _exists(pattern: str) -> bool:
    """Whether a path or glob names a file or directory."""
    return tf.io.gfile.exists(pattern) or bool(tf.io.gfile.glob(pattern))


def sides(pair: str) -> tuple[str, str]:
    """Splits a pair of languages: `zh-Hant-en` into `zh-Hant` and `en`.

    The second language begins at the first part, behind a hyphen, of two or three small
    letters; else behind the first hyphen. A single language has "" beside it.
    """
    parts = pair.split("-")
    starts = (n for n, part in enumerate(parts) if n and _PRIMARY.fullmatch(part))
    second = next(starts, 1)
    return "-".join(parts[:second]), "-".join(parts[second:])


def smoothed_shares(sizes: Mapping[str, float], exponent: float) -> dict[str, float]:
    """Returns shares in proportion to size^exponent; an empty language has share 0."""
    powers = {key: size**exponent if size else 0.0 for key, size in sizes.items()}
    total = sum(powers.values())
    return {key: power / total for key, power in powers.items()}
