"""Lists of files by language, and the sampling shares of languages."""

from __future__ import annotations

import re
from collections.abc import Mapping

import tensorflow as tf

from cmlm.common import language_names
from cmlm.errors import UserError

# A word at the start of a path that is not the code of a language.
_WORD = re.compile(r"[A-Za-z]{4,}=")


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
            language, part = language_names.split_off(part)
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
    return bool(language_names.split_off(part)[0]) and not _exists(part)


def _exists(pattern: str) -> bool:
    """Whether a path or glob names a file or directory."""
    return tf.io.gfile.exists(pattern) or bool(tf.io.gfile.glob(pattern))


def smoothed_shares(sizes: Mapping[str, float], exponent: float) -> dict[str, float]:
    """Returns shares in proportion to size^exponent; an empty language has share 0."""
    powers = {key: size**exponent if size else 0.0 for key, size in sizes.items()}
    total = sum(powers.values())
    return {key: power / total for key, power in powers.items()}
