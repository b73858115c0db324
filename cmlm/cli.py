"""What all commands share: flags, messages, exit codes and a quiet start.

A command is a module with a docstring, absl flags and

    def main(_):
        with cli.quiet_imports():
            from cmlm import engine
        ...

    if __name__ == "__main__":
        cli.run(main)

TensorFlow is imported inside `main`, never at the top of a command, so that `--help`
and a mistyped flag answer at once.

Exit codes: 0 done or help, 1 a mistake of the user (one line, `error: ...`) or an
unexpected exception (its traceback), 130 interrupted, 141 the reader of stdout left.
"""

import contextlib
import faulthandler
import logging
import os
import select
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence

from absl import app, flags
from absl import logging as absl_logging

from cmlm.errors import UserError

# Level 3 hides TensorFlow's own ERROR lines too: what matters of them reaches Python
# as an exception, what remains is "no GPU driver here" and the like.
_QUIET_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "GRPC_VERBOSITY": "ERROR",
}


def quiet_environment() -> None:
    """Sets what TensorFlow reads at import, except where the user has set it."""
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def quiet_imports(extra: str = "") -> Iterator[None]:
    """Drops what libraries write to stderr while they are imported.

    Args:
        extra: of setup.cfg, that the body's imports belong to.

    Raises:
        UserError: a library of that extra is not installed.
    """
    with _quietly():
        try:
            yield
        except ModuleNotFoundError as error:
            if not extra:
                raise
            raise UserError(
                f"{error.name} is not installed: pip install 'cmlm[{extra}]'"
            ) from error


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """See `quiet_imports`.

    Environment variables are not enough: native code logs before it has read them, and
    packages warn about themselves. If the body raises, what they wrote is printed
    after all. With TF_CPP_MIN_LOG_LEVEL below 3 in the environment nothing is dropped.
    """
    quiet_environment()
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] < "3":
        yield
        return
    sys.stderr.flush()
    terminal = os.dup(2)
    had_faulthandler = faulthandler.is_enabled()
    with tempfile.TemporaryFile() as captured:
        os.dup2(captured.fileno(), 2)
        # A crash in native code would leave no trace at all in the captured file.
        faulthandler.enable(terminal)
        written = b""
        try:
            with warnings.catch_warnings():
                if not sys.warnoptions:
                    warnings.simplefilter("ignore")
                yield
        except UserError:
            raise
        except Exception:
            sys.stderr.flush()
            captured.seek(0)
            written = captured.read()
            raise
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            if had_faulthandler:
                faulthandler.enable(2)
            else:
                faulthandler.disable()
            os.close(terminal)
            os.write(2, written)
    _silence_libraries()


def run(main: Callable[[list[str]], int | None]) -> None:
    """Runs a command and ends the process with its exit code.

    Args:
        main: takes the list of positional arguments (always just the program name:
            commands take flags only) and returns None or an exit code.
    """

    def command(arguments: list[str]) -> int | None:
        # Not before: absl sets its own verbosity once the flags are parsed.
        _configure_logging()
        return main(arguments)

    quiet_environment()
    if not sys.warnoptions:
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
    try:
        try:
            app.run(command, flags_parser=_parse_flags)
        finally:
            # Here, not at interpreter exit, where a broken pipe cannot be caught.
            sys.stdout.flush()
    except UserError as error:
        _fail(error)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        if not _stdout_is_broken():
            raise
        # The interpreter flushes once more at exit; give it somewhere to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the command line; any mistake is one line on stderr and exit code 1."""
    # For --help, absl formats the docstring with the % operator.
    program = sys.modules["__main__"]
    program.__doc__ = (program.__doc__ or "").replace("%", "%%")
    try:
        arguments = flags.FLAGS(argv)
    except SystemExit:
        # Only the help flags leave this way, and absl lets them leave with 1.
        sys.exit(0)
    except flags.Error as error:
        _fail(str(error).removeprefix("ERROR:: "))
    except UnicodeDecodeError as error:
        _fail(f"a flagfile is not UTF-8 text: {error}")
    if len(arguments) > 1:
        # absl stops at the first of these and would silently ignore all later flags.
        _fail(
            f"unexpected argument {arguments[1]!r}: "
            "flags are written --name=value, on the command line and in flagfiles"
        )
    return arguments


def _configure_logging() -> None:
    """Our own loggers print plain lines at INFO, the libraries only their errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter())
    for name in ("cmlm", "export"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.handlers = [handler]
        logger.propagate = False
    _silence_libraries()


def _silence_libraries() -> None:
    # Libraries set their own levels at import, so this is called again after it.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.ERROR)


class _PlainFormatter(logging.Formatter):
    """The bare message; above INFO with its level in front, as in `error: ...`."""

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        if record.levelno > logging.INFO:
            return f"{record.levelname.lower()}: {message}"
        return message


def _fail(message: object) -> None:
    print("error:", " ".join(str(message).split()), file=sys.stderr)
    sys.exit(1)


def _stdout_is_broken() -> bool:
    """Whether nobody reads stdout any more, as after `| head`."""
    # Flushing again would not tell: Python has dropped what it could not write.
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
