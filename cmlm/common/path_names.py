"""Names of paths: local or remote, final or not yet.

An output is written as `NAME.tmp-aHEX` and renamed; a directory that it replaces is
called `NAME.old-aHEX` in between.
"""

from __future__ import annotations

import os
import re
import uuid

from cmlm.errors import UserError

# The names of `temporary`. Eight digits are a date, so the user's own file. What a
# command sets aside begins with `a`: a user's backup may end in the hash of a commit.
# The counts of Beam have further letters behind.
_LEFTOVER = re.compile(
    r"(?P<marked>(?P<output>.+)\.(?P<kind>tmp|old(?=-a))-(?!\d{8}(?:\.|$))[0-9a-f]{8})"
    r"(\..+)?"
)
# TensorFlow's names have no hyphen.
_TEMPORARY = re.compile(r"\.tmp(?!-\d{8}(?![0-9a-f]))-?[0-9a-f]{8,32}")


def is_local(path: str) -> bool:
    """Whether the operating system itself opens the path."""
    return "://" not in path


def refuse_pattern(path: str, name: str = "the path", deletes: bool = False) -> None:
    """Refuses a folder in which TensorFlow would open no checkpoint and no SavedModel.

    Its reader takes the path for a pattern, which `[1]` and a backslash do not match.
    So does what deletes its checkpoints, and `runs/lr?` matches `runs/lr1`, too.

    Args:
        path: the folder or file.
        name: its flag, for the message.
        deletes: whether TensorFlow deletes checkpoints there.

    Raises:
        UserError: the path has a `[` or a backslash; with `deletes` also for a `*` or
            a `?`.
    """
    refused = "*?[\\" if deletes else "[\\"
    if set(refused) & set(path):
        listed = f"{', '.join(refused[:-1])} and {refused[-1]}"
        raise UserError(
            f"{name} is {path}; allowed: a path without {listed}, because TensorFlow "
            "reads such a path as a pattern"
        )


def unpacked(path: str) -> str:
    """The path without the ending of its packing, `.gz` or `.bz2`."""
    return path.removesuffix(".gz").removesuffix(".bz2")


def followed(path: str) -> str:
    """The path that a link leads to; any other path as it is.

    A directory that is written there leaves the link in its place.
    """
    if is_local(path) and os.path.islink(path):
        return os.path.realpath(path)
    return path


def real(path: str) -> str:
    """The path without links and relative parts; a remote path without a last slash."""
    return os.path.realpath(path) if is_local(path) else path.rstrip("/")


def absolute(path: str) -> str:
    """The path from the root, with its links; a remote path as it is."""
    return os.path.abspath(path) if is_local(path) else path


def temporary(path: str, kind: str = "tmp") -> str:
    """Returns a new name beside an output; `leftovers.tidy` knows such names.

    Args:
        path: the output.
        kind: `tmp` for an unfinished output, `old` for one that is being replaced, and
            `new` for a finished one whose place is taken; `tidy` leaves this one.
    """
    # The letter tells the name from a date, and from most hashes.
    return f"{path}.{kind}-a{uuid.uuid4().hex[:7]}"


def leftover(name: str) -> re.Match | None:
    """Recognises a file or directory that a killed run may have left.

    Returns:
        None for any other name; else `output`, the name of the output, `kind` as in
        `temporary`, and `marked`, the name that the run's process marks as in use.
    """
    return _LEFTOVER.fullmatch(name)


def final(name: str) -> str:
    """The name of the output that a leftover belongs to; any other name as it is."""
    match = leftover(name)
    return match["output"] if match else name


def is_temporary(name: str) -> bool:
    """Whether a name is one of an unfinished file, of this project or TensorFlow's."""
    return re.fullmatch(rf".+{_TEMPORARY.pattern}", name) is not None


def output_of(path: str) -> str:
    """The output that an unfinished path will be, or will be a part of.

    `OUT` for `OUT.tmp-0123abcd/part`; any other path as it is.
    """
    return re.sub(rf"{_TEMPORARY.pattern}(/.*)?", "", path)


def with_final_names(message: str) -> str:
    """A message that names outputs instead of their unfinished files."""
    return _TEMPORARY.sub("", message)
