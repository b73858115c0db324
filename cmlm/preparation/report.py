"""The statistics of a preparation: stats.json and a summary."""

from __future__ import annotations

import collections
import dataclasses

from cmlm.common import choices
from cmlm.common.counts import counted
from cmlm.preparation import raw_lines, sources
from cmlm.preparation.settings import Settings
from cmlm.preparation.steps import SEPARATOR


def statistics(counts: collections.Counter, settings: Settings) -> dict:
    """Arranges the counts of a pipeline.

    Args:
        counts: the counts, under the names of `steps.count_name`.
        settings: the settings of the preparation.

    Returns:
        `languages` (documents, sentences and characters kept), `steps` (documents and
        lines in and out), `dropped` (by step, unit, language and reason), `source`
        (files, their lines of text and the readers' counts), `damaged_files`,
        `files_left_out` and `settings`, ready for JSON.
    """
    stats: dict = {
        "languages": {},
        "steps": {},
        "dropped": {},
        "source": {"files": 0},
        "damaged_files": [],
        "files_left_out": [],
        "settings": dataclasses.asdict(settings),
    }
    for name, amount in sorted(counts.items()):
        kind, step, unit, language, reason = name.split(SEPARATOR, 4)
        if kind == "kept":
            stats["languages"].setdefault(language, {})[unit] = amount
        elif kind in ("in", "out"):
            flow = stats["steps"].setdefault(step, {}).setdefault(unit, {})
            flow[kind] = amount
        elif kind == "dropped":
            by_language = stats["dropped"].setdefault(step, {}).setdefault(unit, {})
            by_language.setdefault(language, {})[reason] = amount
        elif unit == "files":
            stats["source"]["files"] = amount
        elif reason.startswith(sources.DAMAGED):
            stats["damaged_files"].append(reason.removeprefix(sources.DAMAGED))
        elif reason.startswith(sources.LEFT_OUT):
            stats["files_left_out"].append(reason.removeprefix(sources.LEFT_OUT))
        else:
            stats["source"][reason] = amount
    return stats


def summary(stats: dict) -> str:
    """Formats the statistics: input, dropped text by step, output by language.

    A bitext has pairs. Its documents are blocks of them and mean nothing to a reader.
    """
    is_bitext = stats["settings"]["layout"] in choices.BITEXT_LAYOUTS
    read = stats["steps"].get("read", {})
    documents = read.get("documents", {}).get("out", 0)
    lines = read.get("lines", {}).get("out", 0)
    text = [f"read: {counted(documents, 'document')}, {counted(lines, 'line')}"]
    if is_bitext:
        text = [f"read: {counted(lines, 'pair')}"]
    sizes = ("files", raw_lines.LINES, raw_lines.NUL_LINES)
    told = {k: n for k, n in stats["source"].items() if k not in sizes}
    if told:
        text.append(f"  {_listed(told)}")
    for step, units in stats["dropped"].items():
        for unit, by_language in units.items():
            if is_bitext and unit == "documents":
                continue
            reasons: collections.Counter = collections.Counter()
            for counts in by_language.values():
                reasons.update(counts)
            total = sum(reasons.values())
            noun = "pair" if is_bitext else unit.removesuffix("s")
            text.append(
                f"dropped by {step}: {counted(total, noun)}: {_listed(reasons)}"
            )
    ranked = sorted(
        stats["languages"].items(), key=lambda item: (-item[1]["sentences"], item[0])
    )
    for language, kept in ranked:
        numbers = (
            counted(kept["sentences"], "pair")
            if is_bitext
            else f"{counted(kept['documents'], 'document')},"
            f" {counted(kept['sentences'], 'sentence')}"
        )
        text.append(f"{language}: {numbers}, {kept['characters']:,} characters")
    return "\n".join(text)


def _listed(reasons: dict[str, int]) -> str:
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{reason} {amount:,}" for reason, amount in ranked[:8]]
    if len(ranked) > len(shown):
        shown.append(f"{len(ranked) - len(shown)} more reasons")
    return ", ".join(shown)
