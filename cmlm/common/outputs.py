"""Checks the paths that a command writes: apart from its inputs, free, writable.

Every command that writes calls `check` before it touches anything.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

import tensorflow as tf

from cmlm.common import folders, leftovers, path_names
from cmlm.errors import UserError

logger = logging.getLogger(__name__)

# The ends of the names of packed files.
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_APART = "allowed: a path apart from the inputs"

# The value of a flag: a path, several, or None if the flag is not given.
Value = str | Iterable[str] | None


def check(
    outputs: Mapping[str, str | None],
    inputs: Mapping[str, Value],
    overwrite: bool = False,
    kept: Mapping[str, str | None] | None = None,
    packs: bool = True,
) -> None:
    """Refuses outputs that would damage an input or replace a file unasked.

    It also removes the leftovers of killed runs beside the outputs, and says so.

    Args:
        outputs: files and directories that the command replaces, by flag.
        inputs: the values of the flags that name inputs: paths, globs, lists, lists by
            language, names of models with a prefix. All existing paths that a value
            may name count.
        overwrite: whether the user allows replacing an output.
        kept: directories to which the command adds files, by flag; they may exist.
        packs: whether the command packs an output whose name ends in `.gz`.

    Raises:
        UserError: an output is an input, contains one or lies in one; an output lies
            in another output; an output exists and `overwrite` is not set; this user
            may not write an output; the name of an output says that it is packed, and
            it would not be; or it begins with `~`.
    """
    replaced = {flag: path.rstrip("/") for flag, path in outputs.items() if path}
    kept = {flag: path.rstrip("/") for flag, path in (kept or {}).items() if path}
    for flag, path in [*replaced.items(), *kept.items()]:
        _refuse_tilde(flag, path)
    for flag, path in replaced.items():
        _refuse_ending(flag, path, packs)
    given = []
    for flag, value in inputs.items():
        texts = [value] if isinstance(value, str) else value or ()
        for text in texts:
            given += [(flag, path) for path in _named(text)]
    for flag, output in [*replaced.items(), *kept.items()]:
        for name, path in given:
            _refuse_overlap(flag, output, name, path)
        for name, other in replaced.items():
            if name != flag and _lies_in(
                path_names.real(output), path_names.real(other)
            ):
                raise UserError(
                    f"{flag}={output} lies in {name}={other}; allowed: paths apart from"
                    " each other"
                )
    for flag, output in replaced.items():
        _refuse_fixed(flag, path_names.followed(output))
        for place in _places(output):
            _refuse_unwritable(flag, output, os.path.dirname(os.path.abspath(place)))
    for flag, output in kept.items():
        place = os.path.abspath(path_names.followed(output))
        _refuse_unwritable(flag, output, place)
    for output in replaced.values():
        for place in _places(output):
            leftovers.tidy(place)
    for output in kept.values():
        leftovers.tidy(path_names.followed(output))
    # A killed run had these outputs to itself, and has named some of them.
    for output in [path for path in replaced.values() if _exists(_sign(path))]:
        logger.warning(
            "%s is replaced: a run was killed before it had finished this output",
            output,
        )
        overwrite = True
    for output in replaced.values():
        refuse_existing(output, overwrite)


def _refuse_fixed(flag: str, path: str) -> None:
    """Refuses a directory that cannot be replaced: it gets no other name."""
    if not (path_names.is_local(path) and os.path.isdir(path)):
        return
    if os.path.ismount(path) or os.path.samefile(path, "."):
        kind = "a mount point" if os.path.ismount(path) else "the working folder"
        raise UserError(
            f"{flag} is {path}, {kind}, which cannot be renamed; allowed: a folder in "
            f"it, such as {os.path.join(path, 'output')}"
        )


def refuse_existing(path: str, overwrite: bool) -> None:
    """Raises UserError if writing would replace a file or a non-empty directory.

    Args:
        path: the output.
        overwrite: whether the user allows replacing it.
    """
    exists = tf.io.gfile.exists(path)
    if exists and tf.io.gfile.isdir(path):
        # A name that is not UTF-8 counts, too.
        listed = os.listdir if path_names.is_local(path) else tf.io.gfile.listdir
        exists = bool(listed(path))
    if exists and not overwrite:
        raise UserError(f"{path} exists; allowed: another path, or --overwrite")


def _places(output: str) -> list[str]:
    """Where an output may be written: a file replaces a link, a directory leaves it."""
    target = path_names.followed(output)
    places = [] if os.path.isdir(target) else [output]
    return places if target in places or os.path.isfile(target) else [*places, target]


def _refuse_unwritable(flag: str, output: str, place: str) -> None:
    """Refuses a local output that could not be written, before the command works.

    Args:
        flag: the flag of the output.
        output: its value.
        place: the folder that gets new files; it may not exist yet.
    """
    if not path_names.is_local(output):
        return
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise UserError(
            f"{flag} is {output}; allowed: a path in a folder; {place} is not a folder"
        )
    if not os.access(place, os.W_OK | os.X_OK, effective_ids=True):
        raise UserError(
            f"{flag} is {output}; allowed: a path in a folder that this user may write "
            f"to; {place} is not writable"
        )


@contextlib.contextmanager
def named_together(path: str) -> Iterator[Callable[[], None]]:
    """Surrounds the writing of outputs that get their names one after the other.

    If the process ends between the names, the next run may replace them: `check` sees
    the sign that this leaves, and a run that succeeds removes it.

    Args:
        path: one of the outputs.

    Yields:
        A function to call when all outputs are written, before the first gets its name.
    """

    def begin() -> None:
        tf.io.gfile.makedirs(os.path.dirname(path) or ".")
        if tf.io.gfile.exists(_sign(path)):
            # A killed run has left it.
            return
        try:
            with tf.io.gfile.GFile(_sign(path), "w") as file:
                file.write("this file goes when the outputs have their names\n")
        except BaseException:
            # No output of this run has its name yet.
            if tf.io.gfile.exists(_sign(path)):
                tf.io.gfile.remove(_sign(path))
            raise

    yield begin
    if tf.io.gfile.exists(_sign(path)):
        tf.io.gfile.remove(_sign(path))


def refuse_half_named(path: str) -> None:
    """Raises UserError if a run was killed while it named an output and others."""
    if tf.io.gfile.exists(_sign(path)):
        raise UserError(
            f"a command was killed before it finished {path}, so a file beside it may "
            f"be older; repeat the command that writes {path}"
        )


def _sign(path: str) -> str:
    return f"{path}.naming"


# -------------------------------------------------------------------- overlaps


def _named(text: str) -> list[str]:
    """The existing paths that the value of a flag may name.

    For example, `best:DIR`, `en=A/*.txt,de=B/*.txt` and `vectors:A.txt:B.npy`. A glob
    names files alone: its directories may be outputs of the same command.
    """
    found: dict[str, None] = {}
    waiting = [text, *text.split(",")]
    for part in waiting:
        part = part.strip()
        if not part or part in found:
            continue
        found[part] = None
        if path_names.is_local(part):
            _, *rest = part.split(":")
            waiting += [*rest, ":".join(rest), part.partition("=")[2]]
    paths: dict[str, None] = {}
    for part in found:
        # A checkpoint is a prefix of file names.
        for path in (part, f"{part}.index"):
            if _exists(path):
                paths[path] = None
        if part not in paths and any(letter in part for letter in "*?["):
            paths.update(dict.fromkeys(folders.matching(part)))
    return list(paths)


def _exists(path: str) -> bool:
    try:
        return tf.io.gfile.exists(path)
    except (tf.errors.OpError, ValueError):
        # An unknown scheme such as http://, or a NUL in the name.
        return False


def _lies_in(path: str, directory: str) -> bool:
    """Whether a real path is a directory or lies in it, by their names."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _is_in(path: str, directory: str) -> bool:
    """Whether a path is an existing file or directory, or lies in it.

    Links, hard links, mounts and file systems that ignore case are looked through.
    """
    path, directory = path_names.real(path), path_names.real(directory)
    if _lies_in(path, directory) or not path_names.is_local(directory):
        return _lies_in(path, directory)
    if not path_names.is_local(path) or not os.path.exists(directory):
        return False
    own = os.stat(directory)
    while True:
        if os.path.exists(path) and os.path.samestat(own, os.stat(path)):
            return True
        parent = os.path.dirname(path)
        if parent == path:
            return False
        path = parent


def _refuse_tilde(flag: str, path: str) -> None:
    """Refuses a path below a home: shells leave the `~` of `--output=~/x` as it is."""
    full = os.path.expanduser(path)
    if full != path:
        raise UserError(
            f"{flag} is {path}; allowed: the path in full ({full}), or ./{path}"
        )


def _refuse_ending(flag: str, path: str, packs: bool) -> None:
    ending = os.path.splitext(path)[1]
    if ending in _PACKED and not (packs and ending == ".gz"):
        allowed = "a path without the ending of a compressed file"
        if packs:
            allowed += ", or in .gz"
        raise UserError(f"{flag} is {path}; allowed: {allowed}")


def _refuse_overlap(flag: str, output: str, name: str, path: str) -> None:
    inside, contains = _is_in(output, path), _is_in(path, output)
    if inside and contains:
        raise UserError(f"{flag}={output} is the input {path} of {name}; {_APART}")
    if contains:
        raise UserError(f"{flag}={output} contains {path} of {name}; {_APART}")
    if inside:
        raise UserError(f"{flag}={output} lies in {path} of {name}; {_APART}")
