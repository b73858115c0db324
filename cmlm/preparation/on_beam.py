"""Runs a preparation with Beam: sizes, scratch directory, progress, statistics."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import tempfile
from concurrent import futures

from cmlm.common import (
    atomic,
    beam_counts,
    beam_files,
    beam_progress,
    beam_runner,
    choices,
    files,
    json_files,
    machine,
    scratch,
    utf8,
)
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.preparation import assembly, raw_lines, report, sources, steps
from cmlm.preparation.settings import Settings

_INPUT_BYTES_A_SHARD = 64 << 20
# Text of several languages has fewer shards for each. If nearly all of it is in one
# language, a shard of this language takes memory for so many times the input.
_MOST_LANGUAGES = 8
# One bucket holds about 50 MB of fingerprints, or 80 MB for near duplicates. Small
# inputs get enough buckets for all workers.
_INPUT_BYTES_A_BUCKET = 64 << 20
_MIN_BUCKETS = 64
# The assumed number of workers on a cluster.
_READERS_ELSEWHERE = 16
# Files in a cloud take long to open.
_OPEN_AT_ONCE = 16


def run(
    settings: Settings, output: str, overwrite: bool, beam_options: str, workers: int
) -> dict:
    """Prepares the input and writes the output directory with stats.json.

    Args:
        settings: the settings of the preparation. The size of the input decides on
            `buckets`, and on `shards` if that is 0.
        output: the directory to write.
        overwrite: whether to replace an existing directory.
        beam_options: see `beam_runner.run`.
        workers: processes on this machine; 0: one per core.

    Returns:
        The statistics, see `report.statistics`.

    Raises:
        UserError: no document is left, or a file or option is wrong.
    """
    # A wrong layout or field shows here and not at the end of a long run.
    first, *others = settings.paths
    sources.check_beginning(first, settings.layout, settings.text_field)
    with futures.ThreadPoolExecutor(_OPEN_AT_ONCE) as pool:
        check = functools.partial(sources.check_encoding, layout=settings.layout)
        list(pool.map(check, others))
    guarded = _check_guard(settings)
    local = beam_runner.is_local(beam_options)
    readers = (workers or machine.processors()) if local else _READERS_ELSEWHERE
    size = sum(map(sources.size, settings.paths))
    settings = _sized(settings, size)
    names = [step.name for step in steps.chosen(settings)]
    names += [step for step in settings.steps if step not in names]
    where = "on this machine" if local else " ".join(beam_options.split())
    print(
        f"{counted(len(settings.paths), 'file')}, {size / 1e6:,.1f} MB, layout"
        f" {settings.layout}; Beam {where}; steps:"
        f" {', '.join(names)}",
        flush=True,
    )
    if settings.remove_sentences_of:
        print(
            f"--remove_sentences_of: {counted(guarded, 'sentence')} of "
            f"{counted(len(settings.remove_sentences_of), 'file')}",
            flush=True,
        )
    with (
        atomic.directory(output, overwrite) as directory,
        _scratch(directory) if local else contextlib.nullcontext() as waiting,
    ):
        counts_path = os.path.join(directory, "counts.json")
        progress = beam_progress.Progress(size, afterwards="comparing and writing")
        beam_runner.run(
            lambda pipeline: assembly.build(
                pipeline, settings, directory, counts_path, progress, readers, waiting
            ),
            beam_options,
            workers,
            progress,
        )
        stats = report.statistics(beam_counts.read_counts(counts_path), settings)
        if not stats["languages"]:
            print(report.summary(stats))
            kind = "pair" if settings.is_bitext else "document"
            faults = [*stats["damaged_files"], *stats["files_left_out"]]
            more = f" ({faults[0]})" if faults else ""
            raise UserError(
                f"no {kind} of --input is left{more}; allowed: fewer --steps, or other "
                "text (the counts above name the reasons)"
            )
        _refuse_other_encoding(stats, settings)
        path = os.path.join(directory, "stats.json")
        json_files.write(path, stats, indent=1, ensure_ascii=False)
        beam_files.tidy(directory, counts_path)
    return stats


def _sized(settings: Settings, size: int) -> Settings:
    """Settings with the numbers of shards and buckets for an input of `size` bytes."""
    # None are named if all are wanted.
    languages = min(len(settings.languages) or _MOST_LANGUAGES, _MOST_LANGUAGES)
    by_size = 1 + size // (_INPUT_BYTES_A_SHARD * languages)
    return dataclasses.replace(
        settings,
        shards=settings.shards or min(by_size, choices.MAX_SHARDS),
        buckets=max(_MIN_BUCKETS, size // _INPUT_BYTES_A_BUCKET),
    )


def _refuse_other_encoding(stats: dict, settings: Settings) -> None:
    """Raises UserError if the files together are not UTF-8: each may be too short.

    A web archive has pages of any encoding.
    """
    source = stats["source"]
    with_nul = source.get(raw_lines.NUL_LINES, 0)
    invalid = source.get(raw_lines.INVALID, 0)
    if settings.layout != "wet" and (with_nul or invalid):
        lines = source[raw_lines.LINES]
        utf8.refuse_nul_bytes("--input", with_nul, lines)
        utf8.refuse_other_encoding("--input", invalid, lines)


def _check_guard(settings: Settings) -> int:
    """Reads the files of evaluation data, as the workers will.

    Returns:
        The number of distinct texts and sentences to remove.

    Raises:
        UserError: a file has no sentence, or is not UTF-8 text, see `files.open_text`.
    """
    guard, prints = steps.guard(settings), set()
    for path in settings.remove_sentences_of:
        with files.open_text(path) as lines:
            found = guard.prints(line.strip() for line in lines)
        if not found:
            raise UserError(
                f"--remove_sentences_of: {path} has no sentence; allowed: lines of"
                " text, or of texts separated by tabs"
            )
        prints |= found
    return len(prints)


def _scratch(directory: str) -> contextlib.AbstractContextManager[str]:
    """A directory for waiting blocks: in the output if that is local, else TMPDIR."""
    if not os.path.isdir(directory):
        return scratch.directory()
    return tempfile.TemporaryDirectory(
        prefix="scratch-",
        dir=directory,
        ignore_cleanup_errors=True,  # workers of a failed run may still write
    )
