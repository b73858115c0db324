"""Splits plain text files into sentences, one output file for each input file."""

from __future__ import annotations

import collections
import os
from collections.abc import Sequence

from cmlm.common import atomic, path_names, utf8
from cmlm.data import other_formats, sentences
from cmlm.errors import UserError


def split(
    paths: Sequence[str], output: str, layout: str, language: str, overwrite: bool
) -> collections.Counter:
    """Splits files and writes the directory of the results.

    Args:
        paths: the files.
        output: the directory to write.
        layout: `lines`, `wrapped` or `wikitext`.
        language: ISO 639 code.
        overwrite: whether to replace an existing directory.

    Returns:
        The counts of `sentences.write_sentences`, summed.

    Raises:
        UserError: the output exists, the language is unknown, no sentence is left, or
            the text is not UTF-8.
    """
    language = sentences.check_language(language)
    other_formats.warn(paths, layout)
    totals: collections.Counter = collections.Counter()
    with atomic.directory(output, overwrite) as directory:
        for path, name in zip(paths, output_names(paths), strict=True):
            target = os.path.join(directory, name)
            totals += sentences.write_sentences(
                path, target, layout, language, progress=True
            )
        if not totals["sentences"]:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            raise UserError(
                f"--input: no sentence in {paths[0]}{more}; dropped:"
                f" {sentences.describe_dropped(totals)}"
            )
        # Each file of a folder may be too short to show its encoding.
        utf8.refuse_other_encoding("--input", totals["invalid UTF-8"], totals["lines"])
    return totals


def output_names(paths: Sequence[str]) -> list[str]:
    """Names each output file after its input file; repeated names get a number."""
    names: dict[str, None] = {}
    # The last number of each name.
    numbers: collections.Counter = collections.Counter()
    for path in paths:
        stem = path_names.unpacked(os.path.basename(path)).removesuffix(".txt")
        name = f"{stem}.txt.gz"
        while name in names:
            numbers[stem] += 1
            name = f"{stem}-{numbers[stem] + 1}.txt.gz"
        names[name] = None
    return list(names)
