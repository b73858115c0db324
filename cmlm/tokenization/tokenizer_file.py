"""Reads `tokenizer.json`, Hugging Face's description of a tokenizer, as plain data.

| model     | families that use it                | its class here          |
|-----------|-------------------------------------|-------------------------|
| BPE       | RoBERTa: byte-level, GPT-2's rules  | `byte_pairs.BytePairs`  |
| Unigram   | XLM-R, CamemBERT, ALBERT            | `unigrams.Unigrams`     |
| WordPiece | MPNet: BERT's, other special tokens | `word_pieces.WordPiece` |

A rule that these classes do not follow exactly is refused by its name.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cmlm.common import json_files
from cmlm.errors import UserError, one_line, shown
from cmlm.tokenization import bert_normalizer, charsmaps
from cmlm.tokenization.rules import Rules

FILE_NAME = "tokenizer.json"
# The parts that determine ids; readers and writers keep them and nothing else.
_PARTS = ("added_tokens", "normalizer", "pre_tokenizer", "post_processor", "model")
_NAMES = {
    "pad": ("<pad>", "[PAD]"),
    "mask": ("<mask>", "[MASK]"),
    "unk": ("[UNK]", "<unk>"),
}
# Steps of a Unigram's normaliser before SentencePiece's own.
_FIRST = ("NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase")
_REPEATED_SPACES = ({"Regex": " {2,}"}, {"Regex": r"\s{2,}"})
# The longest token, in characters; words of more bytes than `max_word_bytes` are [UNK].
MAX_TOKEN_CHARACTERS = 1000
# The longest word in characters, by transformers' default; longer words are [UNK].
MAX_CHARACTERS = 100
# A text has no longer word; the sizes of TensorFlow's ops end at 32 bits.
_MOST_CHARACTERS = 1 << 20
_LARGEST_SCORE = float(np.finfo(np.float32).max)


def _byte_letters() -> list[str]:
    """The letter of each byte: itself if it is printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(0x100 + number) for number, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


# GPT-2 writes each byte of a token as one printable letter.
BYTE_LETTERS = _byte_letters()
_BYTES = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}


def text_of(token: str) -> str:
    """The text of a byte-level token; bytes of a broken character become U+FFFD."""
    if not all(letter in _BYTES for letter in token):
        return token
    return bytes(_BYTES[letter] for letter in token).decode("utf-8", "replace")


@dataclasses.dataclass(frozen=True)
class TokenizerFile:
    """What a tokenizer.json says.

    Attributes:
        kind: the model: `BPE`, `Unigram` or `WordPiece`.
        tokens: the tokens by id.
        special: the tokens of the roles `pad`, `unk`, `cls`, `sep` and `mask`.
        reserved: tokens that no text has: special tokens without a role here, and
            added tokens of a Unigram model, whose pieces have no score.
        pair_separators: separators between the two texts of a pair.
        lower_case: WordPiece: whether text is lower-cased.
        strip_accents: WordPiece: whether its accents are dropped.
        max_word_characters: WordPiece: longer words are unknown.
        before: WordPiece: the rules before BertNormalizer, see `bert_normalizer.read`.
        merges: BPE: pairs of tokens, in the order of their ranks.
        prefix_space: BPE: whether a text without a leading space gets one.
        scores: Unigram: the log probability of each token, by id.
        steps: Unigram: changes to a text before it is cut, see `letters.follow`.
        charsmap: Unigram: SentencePiece's precompiled normalisation.
    """

    kind: str
    tokens: list[str]
    special: dict[str, str]
    reserved: tuple[str, ...] = ()
    pair_separators: int = 1
    lower_case: bool = False
    strip_accents: bool = False
    max_word_characters: int = 0
    before: dict[str, Any] = dataclasses.field(default_factory=dict)
    merges: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    prefix_space: bool = False
    scores: list[float] = dataclasses.field(default_factory=list)
    steps: tuple[tuple[str, ...], ...] = ()
    charsmap: bytes = b""

    @property
    def rules(self) -> Rules:
        """Case, accents and the longest word, which WordPiece alone limits."""
        if self.kind != "WordPiece":
            kinds = {kind for kind, *_ in self.steps}
            return Rules("Lowercase" in kinds, "StripAccents" in kinds)
        return Rules(
            lower_case=self.lower_case,
            strip_accents=self.strip_accents,
            **self.before,
            max_word_bytes=4 * self.max_word_characters,
            max_word_characters=self.max_word_characters,
        )

    @property
    def contents(self) -> str:
        """What ids depend on besides the tokens, as JSON."""
        values = dataclasses.asdict(self) | {"charsmap": self.charsmap.hex()}
        del values["tokens"]
        if self.before in ({}, bert_normalizer.ALONE):
            # Exports of earlier versions keep their fingerprints.
            del values["before"]
        return json.dumps(values, sort_keys=True)


def load(path: str) -> dict[str, Any]:
    """Reads the parts of a tokenizer.json that determine ids.

    Raises:
        UserError: the file is missing or is not a JSON object.
    """
    return essence(json_files.read(path))


def essence(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a tokenizer.json that determine ids, given all of its contents."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        **{part: values.get(part) for part in _PARTS},
        "decoder": values.get("decoder"),
    }


def pruned(values: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """Returns the contents of a tokenizer.json with only some of its tokens.

    Args:
        values: the contents of a file whose model is Unigram or WordPiece.
        tokens: the tokens that stay, in the order of their ids; special ones included.
    """
    ids = {token: number for number, token in enumerate(tokens)}
    model, processor = dict(values["model"]), dict(values["post_processor"])
    if model.get("type") == "Unigram":
        unknown, _ = model["vocab"][model["unk_id"]]
        model["unk_id"] = ids[unknown]
        model["vocab"] = [entry for entry in model["vocab"] if entry[0] in ids]
    else:
        model["vocab"] = {t: ids[t] for t in model["vocab"] if t in ids}
    if processor["type"] == "TemplateProcessing":
        processor["special_tokens"] = {
            token: {"id": token, "ids": [ids[token]], "tokens": [token]}
            for token in processor["special_tokens"]
            if token in ids
        }
    else:
        for role in ("cls", "sep"):
            token = processor[role][0]
            processor[role] = [token, ids[token]]
    added = [
        {**token, "id": ids[token["content"]]}
        for token in values["added_tokens"] or ()
        if token["content"] in ids
    ]
    return {
        **values,
        "added_tokens": added,
        "post_processor": processor,
        "model": model,
    }


def read(path: str) -> TokenizerFile:
    """Reads a tokenizer.json and checks that this project follows all of its rules.

    Raises:
        UserError: the file is damaged, or has a rule that this project does not follow.
    """
    return parse(load(path), path)


def parse(values: Mapping[str, Any], path: str) -> TokenizerFile:
    """Checks the contents of a tokenizer.json; `path` is for messages."""
    with _damage_named(path):
        return _parse(values, path)


def enclosing(values: Mapping[str, Any], path: str) -> dict[str, str]:
    """The tokens `cls` and `sep` around a text; raises the same as `read`."""
    with _damage_named(path):
        return _enclosing(values, path)[0]


@contextlib.contextmanager
def _damage_named(path: str) -> Iterator[None]:
    """Names the file if its contents lack a part or have one of another type."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"{type(error).__name__}: {one_line(error)}"
        raise UserError(f"{path} is not a tokenizer.json ({what})") from error


def _parse(values: Mapping[str, Any], path: str) -> TokenizerFile:
    model = values["model"]
    kind = model.get("type", "WordPiece")
    readers = {"BPE": _byte_pairs, "Unigram": _unigram, "WordPiece": _wordpiece}
    if kind not in readers:
        raise _refused(path, "model.type", kind, ", ".join(readers))
    vocab = model["vocab"]
    if kind == "Unigram":
        ids = {}
        for number, (token, _) in enumerate(vocab):
            if ids.setdefault(token, number) != number:
                raise UserError(
                    f"{path} has {shown(token)} twice: ids {ids[token]} and {number}; "
                    "allowed: each token once"
                )
    else:
        ids = dict(vocab)
    added = values.get("added_tokens") or []
    reserved = {token["content"] for token in added if token.get("special")}
    if kind == "Unigram":
        # A piece without a score would win against all other pieces.
        reserved |= {token["content"] for token in added} - ids.keys()
    for token in added:
        if ids.setdefault(token["content"], token["id"]) != token["id"]:
            content, first = token["content"], ids[token["content"]]
            raise UserError(
                f"{path} has two ids for {shown(content)}: {shown(first)} and "
                f"{shown(token['id'])}; allowed: one"
            )
    for token in ids:
        if len(token) > MAX_TOKEN_CHARACTERS or "\0" in token:
            raise UserError(
                f"{path} has the token {shown(token)}; allowed: at most "
                f"{MAX_TOKEN_CHARACTERS:,} characters, without NUL"
            )
    tokens = in_order(ids, path)
    special, separators = _special(values, ids, path)
    if kind == "Unigram":
        # SentencePiece refuses both.
        if "" in ids:
            raise UserError(f"{path} has the token ''; allowed: at least 1 character")
        if ids.keys() <= {*special.values(), *reserved}:
            raise UserError(
                f"{path} has no token that a text can have; allowed: at least one "
                "beside special tokens"
            )
    return TokenizerFile(
        kind=kind,
        tokens=tokens,
        special=special,
        reserved=tuple(t["content"] for t in added if t["content"] in reserved),
        pair_separators=separators,
        **readers[kind](values, tokens, path),
    )


def in_order(ids: Mapping[str, int], path: str) -> list[str]:
    """Returns tokens in the order of their ids.

    Raises:
        UserError: an id is missing or repeated.
    """
    tokens = sorted(ids, key=ids.get)
    for number, token in enumerate(tokens):
        if ids[token] != number:
            raise UserError(
                f"{path} gives {shown(token)} the id {shown(ids[token])}, where "
                f"{number} is next; allowed: ids from 0 to {len(tokens) - 1}, each once"
            )
    return tokens


def _refused(path: str, name: str, value: Any, allowed: str) -> UserError:
    return UserError(f"{path} has {name}={shown(value)}; allowed: {allowed}")


def _require(path: str, part: str, values: Mapping[str, Any], **allowed: tuple) -> None:
    """Refuses a setting of a part unless it is missing or has an allowed value."""
    for name, choices in allowed.items():
        value = values.get(name)
        if value is not None and value not in choices:
            allowed_here = ", ".join(json.dumps(choice) for choice in choices)
            raise _refused(path, f"{part}.{name}", value, allowed_here)


def _enclosing(values, path) -> tuple[dict[str, str], int]:
    """The tokens `cls` and `sep`, and the separators between two texts."""
    processor = values.get("post_processor") or {}
    kind = processor.get("type")
    if kind in ("RobertaProcessing", "BertProcessing"):
        special = {"cls": processor["cls"][0], "sep": processor["sep"][0]}
        separators = 2 if kind == "RobertaProcessing" else 1
    elif kind == "TemplateProcessing":
        single, pair = (
            [
                part["SpecialToken"]["id"] if "SpecialToken" in part else None
                for part in processor[name]
            ]
            for name in ("single", "pair")
        )
        cls, sep = single[0], single[-1]
        separators = len(pair) - 4
        expected = [cls, None, *[sep] * separators, None, sep]
        if (
            single != [cls, None, sep]
            or None in (cls, sep)
            or pair != expected
            or separators not in (1, 2)
        ):
            raise _refused(
                path,
                "post_processor",
                [single, pair],
                "a first token, the text and a separator; one or two separators "
                "between two texts",
            )
        special = {"cls": cls, "sep": sep}
    else:
        raise _refused(
            path,
            "post_processor.type",
            kind,
            "RobertaProcessing, BertProcessing, TemplateProcessing",
        )
    return special, separators


def _special(values, ids, path) -> tuple[dict[str, str], int]:
    """The special tokens by role, and the separators between two texts."""
    special, separators = _enclosing(values, path)
    model = values["model"]
    stated = model.get("unk_token")
    if stated is None and model.get("type") == "Unigram":
        stated = model["vocab"][model["unk_id"]][0]
    for role, names in _NAMES.items():
        if role == "unk" and stated:
            names = (stated,)
        found = [name for name in names if name in ids]
        if not found:
            raise UserError(f"{path} has no token {' or '.join(names)}")
        special[role] = found[0]
    for token in special.values():
        if token not in ids:
            raise UserError(f"{path} has no token {token}")
    return special, separators


def _steps(part: Mapping[str, Any] | None, name: str) -> list[Mapping[str, Any]]:
    """The steps of a sequence, or the one step."""
    if not part:
        return []
    if part.get("type") != "Sequence":
        return [part]
    return [step for inner in part[name] for step in _steps(inner, name)]


def _byte_pairs(values, tokens, path) -> dict[str, Any]:
    model = values["model"]
    _require(
        path,
        "model",
        model,
        dropout=(0, 0.0),
        continuing_subword_prefix=("",),
        end_of_word_suffix=("",),
        byte_fallback=(False,),
        ignore_merges=(False,),
    )
    if _steps(values.get("normalizer"), "normalizers"):
        raise _refused(path, "normalizer", values["normalizer"], "null")
    steps = _steps(values.get("pre_tokenizer"), "pretokenizers")
    if [step.get("type") for step in steps] != ["ByteLevel"]:
        raise _refused(path, "pre_tokenizer", values.get("pre_tokenizer"), "ByteLevel")
    _require(path, "pre_tokenizer", steps[0], use_regex=(True,))
    known = set(tokens)
    merges = [
        tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair)
        for pair in model["merges"]
    ]
    for number, pair in enumerate(merges, 1):
        if len(pair) != 2 or not {*pair, "".join(pair)} <= known:
            raise UserError(f"{path}: merge {number}, {pair}, is not of two tokens")
    missing = [letter for letter in BYTE_LETTERS if letter not in known]
    if missing:
        raise UserError(
            f"{path} lacks the tokens of {len(missing)} of the 256 bytes, such as "
            f"{missing[0]!r}; allowed: a token for each byte"
        )
    return {
        "merges": merges,
        "prefix_space": bool(steps[0].get("add_prefix_space", True)),
    }


def _is_first(step: Mapping[str, Any]) -> bool:
    """Whether a step of a Unigram's normaliser may stand before SentencePiece's own."""
    if step.get("type") == "Replace":
        return "String" in (step.get("pattern") or {})
    return step.get("type") in _FIRST


def _unigram(values, tokens, path) -> dict[str, Any]:
    model = values["model"]
    _require(path, "model", model, byte_fallback=(False,))
    steps = _steps(values.get("normalizer"), "normalizers")
    first = list(itertools.takewhile(_is_first, steps))
    steps = steps[len(first) :]
    charsmap = b""
    if steps and steps[0].get("type") == "Precompiled":
        charsmap = base64.b64decode(steps.pop(0)["precompiled_charsmap"])
        charsmaps.check(charsmap, path)
    one_space = False
    for step in steps:
        if step.get("type") == "Replace" and step.get("pattern") in _REPEATED_SPACES:
            # SentencePiece drops repeated spaces.
            one_space = True
            _require(path, "normalizer", step, content=(" ", "▁"))
        elif not (step.get("type") == "Strip" and step.get("strip_right")):
            raise _refused(
                path,
                "normalizer",
                step.get("type"),
                f"{', '.join(_FIRST)} and Replace of a string, then Precompiled, then "
                "Replace of repeated spaces",
            )
    steps = _steps(values.get("pre_tokenizer"), "pretokenizers")
    kinds = [step.get("type") for step in steps]
    allowed = ""
    if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        allowed = "Metaspace, WhitespaceSplit and Metaspace"
    # SentencePiece divides words at other spaces, too.
    elif len(kinds) == 1 and not one_space:
        allowed = "Metaspace after a Replace of repeated spaces"
    elif len(kinds) == 2 and not charsmap:
        allowed = "WhitespaceSplit after the normalizer Precompiled of SentencePiece"
    if allowed:
        raise _refused(path, "pre_tokenizer", kinds, allowed)
    _require(
        path,
        "pre_tokenizer",
        steps[-1],
        replacement=("▁",),
        prepend_scheme=("always",),
        add_prefix_space=(True,),
        split=(True,),
    )
    for step in first:
        if step["type"] == "Replace":
            texts = [step["pattern"]["String"], step.get("content")]
            if not all(isinstance(text, str) for text in texts):
                raise _refused(
                    path, "normalizer", step, "Replace of a string by a string"
                )
    scores = [float(score) for _, score in model["vocab"]]
    for (token, _), score in zip(model["vocab"], scores, strict=True):
        if not abs(score) <= _LARGEST_SCORE:
            raise _refused(path, f"a score of {shown(token)}", score, "a float32")
    return {
        "scores": scores + [0.0] * (len(tokens) - len(scores)),
        "steps": tuple(
            (step["type"], step["pattern"]["String"], step["content"])
            if step["type"] == "Replace"
            else (step["type"],)
            for step in first
        ),
        "charsmap": charsmap,
    }


def _wordpiece(values, tokens, path) -> dict[str, Any]:
    del tokens
    model = values["model"]
    normalizer, before = bert_normalizer.read(values, path)
    _require(path, "normalizer", normalizer, handle_chinese_chars=(True,))
    lower_case = json_files.field(normalizer, "lowercase", bool, path, True)
    return {
        "lower_case": lower_case,
        "strip_accents": json_files.field(
            normalizer, "strip_accents", bool, path, lower_case
        ),
        "before": before,
        "max_word_characters": longest_word(model, path),
    }


def longest_word(model: Mapping[str, Any], path: str) -> int:
    """The longest word of a WordPiece model in characters; longer ones are unknown.

    Raises:
        UserError: it is not a number from 1.
    """
    longest = json_files.field(
        model, "max_input_chars_per_word", int, path, MAX_CHARACTERS, at_least=1
    )
    return min(longest, _MOST_CHARACTERS)
