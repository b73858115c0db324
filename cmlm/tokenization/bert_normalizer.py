"""The rules of a tokenizer.json for the words of BERT's WordPiece.

They are BertNormalizer, the steps that may stand before it, and BertPreTokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cmlm.common import json_files
from cmlm.errors import UserError, shown
from cmlm.tokenization.rules import JOINER


def _replace(there: str, here: str, kind: str = "String") -> dict:
    """A step of a normaliser that replaces a string, or matches of a `Regex`."""
    return {"type": "Replace", "pattern": {kind: there}, "content": here}


# The steps before BertNormalizer that our own folders may have. These fold letters as
# tf-text does.
FOLDING = [
    {"type": "NFKD"},
    _replace("\u00df", "ss"),
    _replace("\u1e9e", "ss"),
    _replace("\u03c2", "\u03c3"),
    _replace("\u0345", "\u03b9"),
]
# tf-text's folding drops joiners, soft hyphens and other invisible characters.
DROPPING = _replace(r"\p{Default_Ignorable_Code_Point}", "", "Regex")
# This step ends words as tf-text does, where BertNormalizer would join them.
SPLITTING = _replace(r"[\p{Cc}\p{Cf}]", " ", "Regex")
NORMALIZERS = {"nfc": {"type": "NFC"}, "nfkc": {"type": "NFKC"}}
DOTLESS_I = [
    _replace("I\u0307", "i"),
    _replace("\u0130", "i"),
    _replace("I", "\u0131"),
]


# The rules before a BertNormalizer that stands alone.
ALONE = {"normalization": "", "dotless_i": False, "style": "hugging-face"}


def read(
    fast: Mapping[str, Any], path: str, is_needed: bool = True
) -> tuple[dict, dict[str, Any]]:
    """Returns the BertNormalizer of tokenizer.json, and the rules before it.

    Args:
        fast: its content.
        path: its path.
        is_needed: whether it must state BertNormalizer and BertPreTokenizer.

    Returns:
        The BertNormalizer, or {}; and `normalization`, `dotless_i` and `style` of
        `rules.Rules`.

    Raises:
        UserError: the file divides the text into other words or pieces, or has a step
            that tf-text cannot do inside the graph.
    """
    normalizer, before = _normalizer(fast, path)
    splitter = fast.get("pre_tokenizer")
    if isinstance(splitter, dict):
        steps = splitter.get("pretokenizers")
        # A sequence of one step is that step.
        splitter = steps[0] if isinstance(steps, list) and len(steps) == 1 else splitter
    # The rules before it clean the text in the style of tf-text.
    is_ours = before["style"] == "tf-text"
    cleans = normalizer.get("clean_text") if is_ours else True
    for name, values, key, allowed, must in (
        ("normalizer", normalizer, "type", "BertNormalizer", is_needed),
        ("normalizer", normalizer, "clean_text", cleans, False),
        ("pre_tokenizer", splitter, "type", "BertPreTokenizer", is_needed),
        ("model", fast.get("model"), "continuing_subword_prefix", JOINER, False),
    ):
        value = values.get(key) if isinstance(values, dict) else None
        if value != allowed and (must or value is not None):
            raise UserError(
                f"{path} has {name}.{key}={shown(value)}; allowed: {allowed!r}"
            )
    return normalizer, before


def _normalizer(fast: Mapping[str, Any], path: str) -> tuple[dict, dict[str, Any]]:
    """Returns the BertNormalizer, or {}, and the rules before it."""
    whole = json_files.field(fast, "normalizer", dict, path, {})
    steps = json_files.field(whole, "normalizers", list, path, [whole] if whole else [])
    if not all(isinstance(step, dict) for step in steps):
        raise UserError(f"{path} has normalizers={shown(steps)}; allowed: objects")
    before: dict[str, Any] = dict(ALONE)
    left = list(steps)
    for name, step in NORMALIZERS.items():
        if left[:1] == [step]:
            before["normalization"], left = name, left[1:]
    if left[: len(DOTLESS_I)] == DOTLESS_I:
        before["dotless_i"], left = True, left[len(DOTLESS_I) :]
    if left[: len(FOLDING)] == FOLDING:
        before["style"], left = "tf-text", left[len(FOLDING) :]
        left = left[left[:1] == [DROPPING] :]
    if left[:1] == [SPLITTING]:
        before["style"], left = "tf-text", left[1:]
    if not left:
        return {}, before
    if len(left) > 1 or left[0].get("type") != "BertNormalizer":
        kinds = ", ".join(shown(step.get("type")) for step in steps)
        raise UserError(f"{path} normalises by {kinds}; allowed: BertNormalizer")
    return left[0], before
