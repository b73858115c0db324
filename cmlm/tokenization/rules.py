"""The rules of a vocabulary: changes to a text before it is cut into pieces.

A vocabulary fits one set of rules: a cased vocabulary turns lower-cased text into other
pieces or [UNK]. The rules therefore lie beside it, `vocab.txt.json` beside `vocab.txt`,
and every program that reads a plain `vocab.txt` ignores them.

| lower_case | strip_accents | "Ärger, ŞİŞLİ"  | the same in Hugging Face            |
|------------|---------------|-----------------|-------------------------------------|
| yes        | yes           | "arger, sisli"  | BERT uncased                        |
| yes        | no            | "ärger, şi̇şli̇"  | lowercase=true, strip_accents=false |
| no         | yes           | "Arger, SISLI"  | lowercase=false, strip_accents=true |
| no         | no            | "Ärger, ŞİŞLİ"  | BERT cased                          |

With `dotless_i`, Turkish capitals come first: I becomes ı, and İ becomes i.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from cmlm.common import atomic, choices, json_files
from cmlm.errors import UserError, shown

# A longer word is [UNK]. BERT's own limit is 200 characters: 600 bytes in scripts of
# three bytes a character. tf-text's default of 100 bytes would lose two thirds of all
# Thai text, which has no spaces between words.
MAX_WORD_BYTES = 600
# Languages whose I is the capital of ı, and whose İ is the capital of i.
DOTLESS_I_LANGUAGES = ("tr", "tur", "az", "aze")
_LANGUAGE = re.compile(r"[a-z]{2,3}")
SUFFIX = ".json"
HUGGING_FACE = "tokenizer_config.json"

# Begins a piece inside a word, in a vocabulary of WordPiece.
JOINER = "##"


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a tokenizer does to text and words before it looks for pieces.

    Attributes:
        lower_case: lower-case the text.
        strip_accents: decompose the text (NFD) and drop its accents; None: if
            `lower_case` is set, as in BERT.
        dotless_i: with `lower_case`, I becomes ı and İ becomes i, as in Turkish.
        normalization: Unicode's form of the text before all else: `nfc`, `nfkc`, or ""
            for the text as it is. "nfc" matters where accents stay: it makes one letter
            of e and a combining accent.
        style: whose letters: `tf-text` folds where it lower-cases and strips accents (ß
            is ss, ς is σ, ² is 2, the soft hyphen and joiners are dropped), and splits
            words at all other control and format characters; `hugging-face` does not
            fold, and drops them all. Invalid bytes become U+FFFD, which `hugging-face`
            drops and `tf-text` keeps.
        max_word_bytes: words of more bytes are [UNK].
        max_word_characters: words of more characters are [UNK]; 0: no such limit.
    """

    lower_case: bool = True
    strip_accents: bool | None = None
    dotless_i: bool = False
    normalization: str = ""
    style: str = choices.TOKENIZER_STYLES[0]
    max_word_bytes: int = MAX_WORD_BYTES
    max_word_characters: int = 0

    def __post_init__(self):
        # Two spellings of one set of rules are equal.
        if self.strip_accents is None:
            object.__setattr__(self, "strip_accents", self.lower_case)
        if not self.lower_case:
            object.__setattr__(self, "dotless_i", False)

    def as_dict(self) -> dict[str, Any]:
        """Returns the rules in plain values."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """The case in words, such as "lower case, accents kept"."""
        words = [
            "lower case" if self.lower_case else "cased",
            "accents stripped" if self.strip_accents else "accents kept",
        ]
        if self.dotless_i:
            words.append("dotless i")
        if self.normalization:
            words.append(self.normalization)
        return ", ".join(words)


# Rules with a list of values.
_ALLOWED = {
    "normalization": choices.NORMALIZATIONS,
    "style": choices.TOKENIZER_STYLES,
}
# The rules of BERT uncased, and our defaults.
UNCASED = Rules()
NAMES = tuple(field.name for field in dataclasses.fields(Rules))


def has_dotless_i(languages: Iterable[str]) -> bool:
    """Whether all languages of a text tell I from İ; False for unnamed ones.

    Args:
        languages: the names, such as `tr`, `az-Latn` or `tr-TR`; or pairs of them, such
            as `tr-en`.
    """
    named = set()
    for name in languages:
        first, *others = name.replace("_", "-").split("-")
        # Scripts and regions have a capital.
        named |= {first.lower(), *filter(_LANGUAGE.fullmatch, others)}
    return bool(named) and named <= set(DOTLESS_I_LANGUAGES)


# ---------------------------------------------------------------- the record


@dataclasses.dataclass(frozen=True)
class Record:
    """What `vocab.txt.json` says.

    Attributes:
        rules: the rules of the vocabulary; only the given ones for a record that
            another program wrote.
        origin: the source of the vocabulary, in plain values; {} if unknown.
        path: the file that says so.
    """

    rules: Mapping[str, Any]
    origin: Mapping[str, Any]
    path: str


def path_of(vocab_file: str) -> str:
    """Returns the path of the record of a vocabulary."""
    return vocab_file + SUFFIX


def write(
    vocab_file: str, rules: Rules, origin: Mapping[str, Any] | None = None
) -> None:
    """Writes the record of a vocabulary, whole or not at all."""
    with atomic.text(path_of(vocab_file)) as file:
        file.write(record(rules, origin))


def record(rules: Rules, origin: Mapping[str, Any] | None = None) -> str:
    """The record of a vocabulary as JSON.

    Args:
        rules: the rules of the vocabulary.
        origin: the source of the vocabulary.
    """
    values = rules.as_dict() | ({"origin": dict(origin)} if origin else {})
    return json.dumps(values, indent=2) + "\n"


def read(vocab_file: str) -> Record | None:
    """Reads the rules that stand beside a vocabulary; None without such rules.

    They stand in `vocab.txt.json`, or in a Hugging Face folder's
    `tokenizer_config.json`.

    Raises:
        UserError: a file is not JSON, or holds another value.
    """
    path = path_of(vocab_file)
    if tf.io.gfile.exists(path):
        values = json_files.read(path)
        origin = json_files.field(values, "origin", dict, path, {})
        values.pop("origin", None)
        return Record(_checked(values, path), origin, path)
    path = os.path.join(os.path.dirname(vocab_file), HUGGING_FACE)
    if tf.io.gfile.exists(path):
        values = json_files.read(path)
        lower_case = json_files.field(values, "do_lower_case", bool, path, True)
        strip = json_files.field(values, "strip_accents", bool, path, lower_case)
        found = {
            "lower_case": lower_case,
            "strip_accents": strip,
            "style": "hugging-face",
        }
        return Record(found, {}, path)
    return None


def _checked(values: dict[str, Any], path: str) -> dict[str, Any]:
    """Returns the rules of a record.

    Raises:
        UserError: an unknown rule, or a value that it does not allow.
    """
    for name, value in values.items():
        if name not in NAMES:
            raise UserError(f"{path} has {shown(name)}; allowed: {', '.join(NAMES)}")
        kind = type(getattr(UNCASED, name))
        least = {"max_word_bytes": 1, "max_word_characters": 0}.get(name)
        json_files.field(values, name, kind, path, at_least=least)
        allowed = _ALLOWED.get(name, (value,))
        if value not in allowed:
            raise UserError(
                f"{path} has {name}={shown(value)}; allowed: "
                f"{', '.join(map(repr, allowed))}"
            )
    return values


def looks_lower_case(tokens: Iterable[str]) -> bool:
    """Whether no token of a vocabulary has a capital."""
    return not any(
        token != token.lower()
        for token in tokens
        if not (token.startswith("[") and token.endswith("]"))
    )
