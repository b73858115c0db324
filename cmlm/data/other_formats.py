"""Warns of files other than plain text: a table, JSON lines, a dump, wrapped lines."""

from __future__ import annotations

import collections
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import IO

from cmlm.common import files as files_lib
from cmlm.common import path_names
from cmlm.common.counts import counted

logger = logging.getLogger(__name__)

_FILES = 10
_LINES = 1_000
_LINE_BYTES = 1 << 16
# A shorter file shows no pattern.
_FEW = 10
_NEARLY_ALL = 0.95
# English text breaks two of three lines before a small letter; German, with capital
# nouns, every second line.
_WRAPPED = 0.25
# Most lines of wrapped text have nearly the greatest length; those of sentences do not.
_LENGTH, _MOST, _SHORTEST = 0.75, 0.8, 25
_ENDING = 0.3
_STOPS = "。！？।॥؟۔።։។៕།༎"
_MARKS = ".!?:;\"'”’»)]"


def warn(
    paths: Sequence[str],
    layout: str = "",
    for_tensorflow: bool = False,
    tables: bool = True,
    effect: str = "",
) -> None:
    """Logs a warning if the beginning of a file looks like another format.

    Only the first files are read, and the warning names the first such file.

    Args:
        paths: files that the user gives as plain text.
        layout: the layout of raw text; empty for one sentence a line.
        for_tensorflow: see `files.open_bytes`.
        tables: whether to warn of tables; False if the command reads or refuses them.
        effect: what the command makes of such a file, for the message.

    Raises:
        UserError: a file cannot be read.
    """
    for path in paths[:_FILES]:
        if path_names.unpacked(path.lower()).endswith(".csv"):
            logger.warning("%s looks like a CSV; %s", path, _prepare("csv", effect))
            return
        with files_lib.open_bytes(path, for_tensorflow) as stream:
            lines = [*_read(stream)]
        if sign := _sign(lines, layout, tables, effect):
            logger.warning("%s %s", path, sign)
            return


def _read(stream: IO[bytes]) -> Iterator[str]:
    """Yields the first lines; each piece of a very long one counts as blank."""
    is_begin = True
    for piece in itertools.islice(
        iter(lambda: stream.readline(_LINE_BYTES), b""), _LINES
    ):
        is_end = piece.endswith(b"\n") or len(piece) < _LINE_BYTES
        is_whole = is_begin and is_end
        yield piece.decode(errors="replace").strip(" \t\r\n\ufeff") if is_whole else ""
        is_begin = is_end


def _sign(lines: Sequence[str], layout: str, tables: bool, effect: str) -> str:
    """What the lines look like and the way to read them; "" for plain text."""
    texts = [line for line in lines if line]
    if not texts:
        return ""
    if texts[0].startswith("WARC/"):
        return f"looks like a web archive; {_prepare('wet', effect)}"
    if texts[0].startswith("<mediawiki"):
        return f"looks like a dump of MediaWiki; {_prepare('wikipedia', effect)}"
    if any(text.startswith('msgid "') for text in texts):
        return f"looks like a catalogue of gettext; {_prepare('gettext', effect)}"
    if all(text.startswith("{") and text.endswith("}") for text in texts):
        return f"looks like JSON lines; {_prepare('json', effect)}"
    if len(texts) < _FEW:
        return ""
    by_tabs = collections.Counter(text.count("\t") for text in texts)
    tabs, number = by_tabs.most_common(1)[0]
    if tables and tabs and number >= _NEARLY_ALL * len(texts):
        return (
            f"looks like a table: lines have {counted(tabs, 'tab')}, and "
            f"{effect or 'a whole line counts as one text'}; python -m cmlm.train reads"
            " pairs with --bitext_data, --pair_data, --scored_data or --nli_data, and"
            " `cut -f1 OLD > NEW` takes the texts of a column"
        )
    if layout != "wrapped" and (_is_wrapped(lines) or _has_one_width(lines)):
        remedy = _prepare("wrapped", effect)
        return f"looks hard-wrapped: lines end inside sentences; {remedy}"
    return ""


def _prepare(layout: str, effect: str) -> str:
    remedy = f"python -m cmlm.prepare --layout={layout} reads it"
    return f"{effect}; {remedy}" if effect else remedy


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Whether many lines go on in the next one with a small letter.

    Text without capitals looks the same, so small letters must be rare behind a full
    stop.
    """
    inside = behind_mark = small_inside = small_behind_mark = 0
    for line, following in itertools.pairwise(lines):
        if not line or not following:
            continue
        is_small = following[0].islower()
        if line[-1] in _MARKS:
            behind_mark += 1
            small_behind_mark += is_small
        else:
            inside += 1
            small_inside += is_small
    return (
        inside >= _FEW
        and small_inside >= _WRAPPED * (inside + behind_mark)
        and small_behind_mark < _WRAPPED * behind_mark
    )


def _has_one_width(lines: Sequence[str]) -> bool:
    """Whether most lines before another one have nearly one length, and no stop.

    This finds wrapped lines in scripts without small letters. It leaves out lines
    before a capital letter, such as titles in a list, and before a Thai or Lao letter,
    as Thai and Lao sentences have no stop.
    """
    inside = [
        (line, following)
        for line, following in itertools.pairwise(lines)
        if line and following
    ]
    if len(inside) < _FEW:
        return False
    longest = sorted(len(line) for line, _ in inside)[int(0.98 * len(inside))]
    going_on = sum(
        len(line) >= _LENGTH * longest
        and not following[0].isupper()
        and not "\u0e00" <= following[0] <= "\u0eff"
        for line, following in inside
    )
    ending = sum(line[-1] in _MARKS + _STOPS for line, _ in inside)
    return (
        longest >= _SHORTEST
        and going_on >= _MOST * len(inside)
        and ending < _ENDING * len(inside)
    )
