"""The first lines of files, without blank ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cmlm.common import files, utf8


def first(paths: Sequence[str], limit: int) -> Iterator[list[str]]:
    """Yields at most `limit` lines of files together, a window at a time.

    Raises:
        UserError: a file is damaged.
    """
    for lines in files.windows(paths):
        lines = [line for line in lines if line.strip(utf8.BLANK)][:limit]
        limit -= len(lines)
        yield lines
        if not limit:
            return


def of_each(paths: Sequence[str], most: int) -> Iterator[list[str]]:
    """Yields about `most` lines: the first ones of each file, the same share of each.

    Raises:
        UserError: a file is damaged.
    """
    for path in paths:
        yield from first([path], -(-most // len(paths)))
