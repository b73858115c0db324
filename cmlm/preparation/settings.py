"""The settings of a preparation, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from cmlm.common import choices
from cmlm.data import sentences
from cmlm.errors import UserError
from cmlm.preparation import filters

# The steps in their order; the last three compare documents with one another.
STEPS = (
    "c4",
    "length",
    "language",
    "duplicate_documents",
    "near_duplicates",
    "duplicate_lines",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a preparation.

    Attributes:
        paths: the files. Of two copies of a document, the copy in the earlier file
            stays.
        layout: the layout of the files, one of `sources.LAYOUTS`.
        steps: a subset of STEPS.
        languages: with the step `language`, the languages to keep, () for all; without
            that step, the language of the text, or a pair such as `en-de`.
        shards: files to write for each language; 0: by the size of the input, see
            `on_beam.run`.
        seed: the seed of the assignment to shards and of the choice under a limit.
        text_field: the field of layout `json`, or the column of `csv`.
        quality_model: a file of `cmlm.quality`, or "".
        min_quality: the lowest score of a document to keep.
        remove_sentences_of: files whose sentences are removed from the output.
        max_sentences: the limit for each language; 0: no limit.
        buckets: independent parts for the comparison of fingerprints. More buckets need
            less memory; the output does not depend on their number.
    """

    paths: tuple[str, ...]
    layout: str
    steps: tuple[str, ...]
    languages: tuple[str, ...]
    shards: int
    seed: int = 0
    text_field: str = "text"
    quality_model: str = ""
    min_quality: float = 0.5
    remove_sentences_of: tuple[str, ...] = ()
    max_sentences: int = 0
    buckets: int = 64

    @property
    def is_bitext(self) -> bool:
        return self.layout in choices.BITEXT_LAYOUTS

    @property
    def language_table(self) -> tuple[str, ...]:
        """The languages in the order of their index in arrays."""
        if "language" in self.steps:
            return self.languages or tuple(filters.identified_languages())
        return self.languages


def ordered(steps: Sequence[str]) -> tuple[str, ...]:
    """Some steps in the order of STEPS.

    Raises:
        UserError: a step is unknown.
    """
    for step in steps:
        if step not in STEPS:
            raise UserError(f"--steps is {step}; allowed: {', '.join(STEPS)}")
    return tuple(step for step in STEPS if step in steps)


def languages_of(wanted: str, layout: str, steps: Collection[str]) -> tuple[str, ...]:
    """Parses `Settings.languages`.

    Args:
        wanted: for example `en`, `en,de`, `all` or `en-de`.
        layout, steps: see `Settings`.

    Raises:
        UserError: a language is unknown, or does not fit the layout or the steps.
    """
    codes = [code.strip() for code in wanted.split(",")]
    is_bitext = layout in choices.BITEXT_LAYOUTS
    identified = "language" in steps
    if identified and wanted == "all":
        return ()
    for code in codes:
        parts = code.split("-") if is_bitext else [code]
        if is_bitext and len(parts) != 2:
            raise UserError(
                f"--language is {code}; allowed with layout {layout}: "
                "a pair such as en-de"
            )
        for part in parts:
            sentences.check_language(part)
    if not identified and len(codes) > 1:
        raise UserError(
            f"--language is {wanted}; allowed: one language, or the step `language`, "
            "which identifies several"
        )
    if is_bitext and set(steps) - {"duplicate_lines"}:
        raise UserError(
            f"--steps is {','.join(steps)}; allowed for bitext: duplicate_lines"
        )
    unknown = sorted(set(codes) - set(filters.identified_languages()))
    if identified and unknown:
        raise UserError(
            f"--language is {unknown[0]}; allowed with the step `language`: "
            f"{' '.join(filters.identified_languages())}"
        )
    return tuple(dict.fromkeys(codes))
