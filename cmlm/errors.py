"""The exception for mistakes that the user can correct, and words for messages."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence


class UserError(ValueError):
    """A mistake in the user's input: a flag, a configuration, a file.

    The message is one line that names the value and the allowed ones. Commands print it
    as `error: <message>` and exit with code 1 (see `cmlm.cli.run`).
    """


@contextlib.contextmanager
def advised(advice: str) -> Iterator[None]:
    """Adds the way out to a UserError of the block."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{error}; {advice}") from error


@contextlib.contextmanager
def naming(place: str) -> Iterator[None]:
    """Puts the flag, setting or file in front of a UserError of the block."""
    try:
        yield
    except UserError as error:
        error.args = (f"{place}: {error}",)
        raise


@contextlib.contextmanager
def needing(extra: str) -> Iterator[None]:
    """Names the extra of setup.cfg that installs a library which the block imports.

    Raises:
        UserError: the library is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error.name} is not installed: pip install 'cmlm[{extra}]'"
        ) from error


@contextlib.contextmanager
def naming_arguments(*names: str) -> Iterator[None]:
    """Names arguments of Python in a UserError of the block without the -- of flags."""
    try:
        yield
    except UserError as error:
        flag = rf"(?<!\w)--({'|'.join(map(re.escape, names))})\b"
        error.args = (re.sub(flag, r"\1", str(error)),)
        raise


def did_you_mean(
    name: str, known: Iterable[str] | Mapping[str, str], most: int = 1
) -> str:
    """Returns "did you mean A or B? " with the names most like an unknown one, or "".

    Args:
        name: the unknown name.
        known: the names; or for each spelling the name to show.
        most: the most names to show.
    """
    near = difflib.get_close_matches(name, list(known), n=most)
    if isinstance(known, Mapping):
        near = [known[each] for each in near]
    return f"did you mean {' or '.join(near)}? " if near else ""


def listed(texts: Sequence[str], most: int = 20) -> str:
    """Returns the first of some texts for a message, and the number of the others."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def one_line(error: object, most: int = 200) -> str:
    """Returns the message of a library's error on one line, cut if it is long.

    Args:
        error: the error, or its message.
        most: the most characters.
    """
    return " ".join(str(error).split())[:most]


# A line feed and a tab are allowed.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str) -> str:
    """Writes control characters, which a terminal would obey, as \\x1b."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


_SHOWN_CHARACTERS = 100


def shown(value: object) -> str:
    """Returns the `repr` of a user's value on one line, shortened if it is long."""
    try:
        # That of a table has lines.
        text = " ".join(repr(value).split("\n"))
    except (ValueError, RecursionError):
        # Python refuses to print integers of more than 4,300 digits.
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        return f"a {type(value).__name__} that is too long to print"
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}... ({len(text):,} characters)"
