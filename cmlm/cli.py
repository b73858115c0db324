"""The frame of every command: flags, messages, exit codes and a quiet start.

A command is a module with a docstring, absl flags and

    def main(_):
        with cli.quiet_imports():
            from cmlm.training import engine
        ...

    if __name__ == "__main__":
        cli.run(main)

Commands import TensorFlow inside `main` and not at the top, so that `--help` and a
mistyped flag answer at once.

Exit codes: 0 done or help; 1 a user error or an error of the system such as a full disk
(one line, `error: ...`), or an unexpected exception (a traceback); 130 interrupted; 143
stopped by SIGTERM (a training has saved, a pipeline on Beam has removed its files); 141
the reader of stdout has gone.
"""

import contextlib
import errno
import functools
import io
import logging
import math
import os
import re
import select
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from absl import app, flags
from absl import logging as absl_logging

from cmlm.common import flagfiles, native_log, path_names
from cmlm.errors import UserError, needing, printable, shown

# With "1" TensorFlow takes the weights of every fused layer for constant: a trained
# layer would keep its first weights in the forward pass.
FROZEN_WEIGHTS = "TF_ONEDNN_ASSUME_FROZEN_WEIGHTS"
_never_trains = False

# Python's messages for flags that are not numbers, and ours.
_NOT_A_NUMBER = {
    r"invalid literal for int\(\).*": "allowed: a whole number",
    r"could not convert string to float.*": "allowed: a number",
}

# The longest line of an error.
_MOST_CHARACTERS = 2000

logger = logging.getLogger(__name__)


def tune_for_inference(precisions: Iterable[str]) -> None:
    """Sets TensorFlow up for a process that only encodes.

    Each operation gets one thread, and each core a batch (`common.threads`). In
    bfloat16, TensorFlow packs each weight once and not in each call. In float32 the
    first call would decide the form of all later ones, and short batches after a long
    first one would be slower.

    Call it before the first encoder is opened: TensorFlow reads these settings when it
    makes its threads and its first kernel of a layer. In a process that may train, that
    is in every process that `run` did not start with `never_trains`, it does nothing.

    Args:
        precisions: of the layers of the encoders that the command opens.
    """
    if not _never_trains:
        return
    from cmlm.common import threads

    threads.one_for_each_operation()
    if "bfloat16" in precisions:
        os.environ.setdefault(FROZEN_WEIGHTS, "1")


def open_encoder(model: str, reading):
    """Opens the encoder of a command that opens no other one.

    Args:
        model, reading: as for `opening.open_encoder`.
    """
    with quiet_imports():
        from cmlm.encoders import opening

    tune_for_inference([opening.precision(model, reading)])
    return opening.open_encoder(model, reading)


def tune_for_training() -> None:
    """Sets the process up for training. Call it before TensorFlow is imported.

    It takes the variable of frozen weights, which servers need, out of the environment,
    with a warning. And it lets the process open as many files as the system allows: the
    text of a hundred languages has more than the usual 1024.
    """
    # Not on Windows; and some systems allow fewer files than they say.
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if os.environ.pop(FROZEN_WEIGHTS, "0") != "0":
        logger.warning("%s is ignored: this command trains", FROZEN_WEIGHTS)


@contextlib.contextmanager
def quiet_imports(extra: str = "") -> Iterator[None]:
    """Drops the output of libraries to stderr while they are imported.

    Args:
        extra: the extra of setup.cfg that installs the libraries of the body.

    Raises:
        UserError: a library of that extra is not installed.
    """
    with native_log.dropped(), needing(extra) if extra else contextlib.nullcontext():
        yield
    _silence_libraries()


def require(**allowed: str) -> None:
    """Refuses a command without a flag that it needs.

    Args:
        **allowed: what each of these flags takes, by its name.

    Raises:
        UserError: a flag is not given; the first one is named.
    """
    for name, values in allowed.items():
        if not flags.FLAGS[name].value:
            raise UserError(f"--{name} is not given; allowed: {values}")


def refuse_given(names: Iterable[str], allowed: str) -> None:
    """Refuses flags that have no use in this job of a command.

    Args:
        names: the flags.
        allowed: the job in which they have a use.

    Raises:
        UserError: a flag is given; the first one is named.
    """
    for name in names:
        if flags.FLAGS[name].present:
            given = flags.FLAGS[name].serialize()
            raise UserError(f"{given} is given; allowed: {allowed}")


def require_npz(name: str) -> None:
    """Raises UserError if a flag is not given, or its path has another ending."""
    allowed = "a path that ends in .npz"
    require(**{name: allowed})
    if not (path := flags.FLAGS[name].value).endswith(".npz"):
        raise UserError(f"--{name} is {path}; allowed: {allowed}")


def run(
    main: Callable[[list[str]], int | None],
    never_trains: bool = False,
    texts: Collection[str] = (),
) -> None:
    """Runs a command and ends the process with its exit code.

    Args:
        main: takes the positional arguments (only the program name, because commands
            take flags only) and returns None or an exit code.
        never_trains: whether no weight changes in this process after its first use;
            `tune_for_inference` needs it.
        texts: the flags that hold text for a model, which replaces bytes that are not
            UTF-8. Other flags refuse them.
    """
    global _never_trains
    _never_trains = never_trains

    def command(arguments: list[str]) -> int | None:
        # This follows the parsing of flags, in which absl sets its own verbosity.
        _configure_logging()
        return main(arguments)

    if not sys.warnoptions:
        for category in (DeprecationWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
    parser = functools.partial(_parse_flags, texts=texts)
    guard(lambda: app.run(command, flags_parser=parser))


def guard(body: Callable[[], object]) -> None:
    """Runs a body and ends the process with its exit code, see above."""
    native_log.prepare()
    native_log.guard_streams()
    # A text of the user may hold what the terminal cannot show.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            body()
        finally:
            # At interpreter exit a broken pipe could not be caught.
            sys.stdout.flush()
    except UserError as error:
        _fail(error)
    except KeyboardInterrupt:
        # A second Ctrl-C ends the process, however long its threads take to stop.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        if not _stdout_is_broken():
            raise
        _drop_results()
        sys.exit(141)
    except Exception as error:
        message = _message_of_the_system(error)
        if message is None:
            raise
        if isinstance(error, OSError) and error.filename == native_log.STDOUT:
            _drop_results()
        _fail(message)


def _drop_results() -> None:
    """Drops what stdout does not take: the interpreter flushes once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _message_of_the_system(error: Exception) -> str | None:
    """The message of an error of disks or memory; None for any other error.

    The message names the file. A temporary file counts as the output that it becomes.
    """
    if isinstance(error, MemoryError):
        return f"out of memory: {error}".removesuffix(": ")
    if isinstance(error, OSError):
        # Libraries raise OSError without a number for errors of their own.
        if error.errno is None or error.strerror is None:
            return None
        message = error.strerror
        if error.filename is not None:
            message = f"{error.filename}: {message}"
    else:
        message = _message_of_tensorflow(error)
        if message is None:
            return None
    # The parts of a checkpoint that is being written, and the sign of two outputs.
    message = re.sub(r"_temp/part-[-.\w]+|\.naming(?=: )", "", message)
    return path_names.with_final_names(message)


def _message_of_tensorflow(error: Exception) -> str | None:
    """The message of TensorFlow's error of files or memory; None for any other."""
    errors = sys.modules.get("tensorflow.python.framework.errors_impl")
    if errors is None or not isinstance(error, errors.OpError):
        return None
    # TensorFlow writes "{{node}} PATH; No space left on device [Op:SaveV2]"; within a
    # compiled function on a line of its own, behind "Graph execution error".
    reasons = "|".join(re.escape(os.strerror(code)) for code in errno.errorcode)
    text = re.sub(r"^\{\{.*?\}\} ", "", error.message)
    found = re.search(rf"^(\S.*?); ({reasons})", text, re.MULTILINE)
    found = found or re.match(r"(.+) is (not a directory)$", text)
    if found:
        return f"{found[1]}: {found[2]}"
    if isinstance(error, errors.ResourceExhaustedError):
        return f"out of memory: {text}"
    if isinstance(error, errors.DataLossError) and "inflate() failed" in text:
        # A run inspects the first part of a large corpus only.
        return (
            "a gzip file of the input is damaged, or has bytes after its end: gzip "
            "--test FILE finds damage, gzip -dc FILE | gzip > NEW leaves the bytes out"
        )
    scheme = r"File system scheme '(.*?)' not implemented \(file: '(.*)'\)$"
    if found := re.match(scheme, text):
        return (
            f"the path is {found[2]}; allowed: a path without {found[1]}://, or a "
            "scheme that TensorFlow opens, such as gs://"
        )
    request = r"Error executing an HTTP request: (.*?)\s+when .*?(\w+://\S+)"
    if found := re.match(request, text):
        return f"{found[2]}: {found[1]}"
    # Raised by a function that a pipeline of data called.
    found = re.search(r"^UserError: (.+)", text, re.MULTILINE)
    return found[1] if found else None


def _parse_flags(argv: Sequence[str], texts: Collection[str]) -> list[str]:
    """Parses the command line; any mistake is one line on stderr and exit code 1."""
    # absl formats the docstring with the % operator for --help.
    program = sys.modules["__main__"]
    program.__doc__ = (program.__doc__ or "").replace("%", "%%")
    try:
        expanded = flagfiles.expand(argv)
        fault = flagfiles.fault(expanded)
        if fault:
            raise flags.Error(fault)
        arguments = flags.FLAGS(expanded)
    except SystemExit:
        # Only the help flags exit here; absl uses code 1 for them.
        sys.exit(0)
    except flags.Error as error:
        message = str(error).removeprefix("ERROR:: ")
        for of_python, allowed in _NOT_A_NUMBER.items():
            message = re.sub(of_python, allowed, message)
        _fail(message)
    except UnicodeDecodeError as error:
        _fail(f"a flagfile is not UTF-8 text: {error}")
    except RecursionError:
        # absl looks for flags of similar names, a call for each character.
        longest = max(flagfiles.expand(argv), key=len)
        _fail(f"Unknown command line flag {shown(longest)}")
    for name in flags.FLAGS:
        value = flags.FLAGS[name].value
        # Each comparison with NaN is false, so it would pass all bounds.
        if isinstance(value, float) and not math.isfinite(value):
            _fail(f"--{name} is {value:g}; allowed: a finite number")
        if name not in texts:
            for part in value if isinstance(value, list) else [value]:
                _require_utf8(name, part)
    if len(arguments) > 1:
        # absl would silently ignore all flags after a positional argument.
        _fail(
            f"unexpected argument {arguments[1]!r}: "
            "flags are written --name=value, on the command line and in flagfiles"
        )
    return arguments


def _require_utf8(name: str, value: object) -> None:
    """Ends the command if a flag has bytes that are not UTF-8: no library takes them.

    Without a locale of UTF-8, these are all bytes beyond ASCII.
    """
    try:
        str(value).encode()
    except UnicodeEncodeError:
        given = os.fsencode(str(value)).decode(errors="backslashreplace")
        _fail(
            f"--{name} is {given}; allowed: UTF-8 (a file needs another name), in a "
            "locale such as LC_ALL=C.UTF-8"
        )


def _configure_logging() -> None:
    """Sets our loggers to plain lines from INFO on, and libraries to errors only."""
    handler = logging.StreamHandler()
    handler.setFormatter(_PlainFormatter())
    for name in ("cmlm", "export"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.handlers = [handler]
        logger.propagate = False
    _silence_libraries()


def _silence_libraries() -> None:
    # This is called again after imports, because libraries then set their own levels.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    if not flags.FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.ERROR)


class _PlainFormatter(logging.Formatter):
    """The bare message; above INFO with the level before it, such as `error: ...`."""

    def format(self, record: logging.LogRecord) -> str:
        message = printable(super().format(record))
        if record.levelno > logging.INFO:
            return f"{record.levelname.lower()}: {message}"
        return message


def _fail(message: object) -> None:
    line = printable(" ".join(str(message).split()))
    # A message may quote a value of any length.
    if len(line) > _MOST_CHARACTERS:
        line = f"{line[:_MOST_CHARACTERS]}... ({len(line):,} characters)"
    print("error:", line, file=sys.stderr)
    sys.exit(1)


def _stdout_is_broken() -> bool:
    """Whether the reader of stdout has gone, as after `| head`."""
    # A second flush would succeed: Python has dropped the unwritten output.
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
