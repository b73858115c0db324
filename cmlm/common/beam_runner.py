"""Runs Beam pipelines for commands, on this machine or with another runner.

    def build(pipeline):
        pipeline | ... | beam.ParDo(...)

    run(build, beam_options=FLAGS.beam_options, workers=FLAGS.workers)

Without `--runner=...` in the options, a pipeline runs on this machine, with one process
per core. Any other runner gets the options unchanged; its workers must be able to reach
all files.

The local runner keeps data between two grouping steps in the memory of the main process
and sends each worker its part as one message of at most 2 GB. Pipelines therefore send
only little data, or paths of files, through such steps: see `preparation.spilling`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import apache_beam as beam
import grpc
from apache_beam.options import pipeline_options

from cmlm.common import beam_worker, machine, path_names, scratch
from cmlm.common.beam_progress import Progress
from cmlm.errors import UserError, did_you_mean

# The variables that set the threads of a process: of FAISS and of TensorFlow.
_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")


def run(
    build: Callable[[beam.Pipeline], None],
    beam_options: str = "",
    workers: int = 0,
    progress: Progress | None = None,
) -> None:
    """Builds a pipeline, runs it and waits until it ends.

    Args:
        build: adds the transforms to an empty pipeline.
        beam_options: Beam's options as on a command line, for example
            `--runner=FlinkRunner --flink_master=localhost:8081`; "": run on this
            machine.
        workers: number of processes on this machine; 0: one per core; 1: this process
            only.
        progress: the bar to show while the pipeline runs.

    Raises:
        UserError: a transform raised a UserError or an OSError, a worker on this
            machine was killed, or Beam cannot use the options.
    """
    options = _parsed(beam_options)
    local, runner = _runs_here(options), None
    # After a kill, another process removes the folder with all that lies in it.
    with scratch.directory() as folder, _stopped_workers(folder):
        if local:
            workers = workers or machine.processors()
            runner = _local_runner(options, workers, folder)
        try:
            pipeline = beam.Pipeline(runner=runner, options=options)
        except ValueError as error:
            raise _unusable(beam_options, str(error)) from error
        os.rmdir(pipeline.local_tempdir)
        pipeline.local_tempdir = os.path.join(folder, "beam")
        os.mkdir(pipeline.local_tempdir)
        with progress.shown(folder) if progress else contextlib.nullcontext():
            # Pickles the progress.
            build(pipeline)
            with _quiet_loggers():
                try:
                    pipeline.run().wait_until_finish()
                except Exception as failure:
                    message = _message_of(failure)
                    if message is not None:
                        raise UserError(message) from None
                    reason = None if local else _why_unreachable(failure)
                    if reason is not None:
                        raise _unusable(beam_options, reason) from failure
                    raise


class _WorkerDied(BaseException):
    """Ends the wait of the main thread; no `except Exception` of Beam stops it."""


@contextlib.contextmanager
def _stopped_workers(folder: str) -> Iterator[None]:
    """Ends the pipeline when a worker of this machine dies, or when a signal says so.

    Beam's local runner notices a dead worker in a thread and waits for its answers
    forever; after SIGINT it waits for the workers' bundles.

    Args:
        folder: the folder that `_local_runner` has given to the workers.

    Raises:
        UserError: a worker died.
        KeyboardInterrupt, SystemExit: SIGINT or SIGTERM arrived.
    """
    main = threading.main_thread()
    if threading.current_thread() is not main:
        # Only the main thread can be interrupted while it waits for a lock.
        yield
        return
    code: int | None = None
    ending: BaseException | None = None
    lost: list[threading.ExceptHookArgs] = []
    hook_before = threading.excepthook

    def hook(failure) -> None:
        nonlocal code
        if code is not None or ending is not None:
            # A thread that talked to the dead worker.
            return
        said = re.search(r"exited with return code (-?\d+)", str(failure.exc_value))
        if issubclass(failure.exc_type, grpc.RpcError):
            # Such a thread may notice first that the worker is dead.
            lost.append(failure)
        elif failure.exc_type is RuntimeError and said:
            code = int(said[1])
            signal.pthread_kill(main.ident, signal.SIGURG)
        else:
            hook_before(failure)

    def interrupt(number, frame) -> None:
        if code is not None:
            raise _WorkerDied

    def stop(number, frame) -> None:
        nonlocal ending
        ending = SystemExit(128 + number)
        if number == signal.SIGINT:
            ending = KeyboardInterrupt()
        # A second signal ends the process at once.
        signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):
            open(beam_worker.stop_sign(folder), "w").close()
        raise ending

    threading.excepthook = hook
    handlers = {
        number: handler
        for number, handler in (
            (signal.SIGINT, signal.default_int_handler),
            (signal.SIGTERM, signal.SIG_DFL),
        )
        if signal.getsignal(number) is handler
    }
    for number in handlers:
        signal.signal(number, stop)
    # By default this signal does nothing, so it may also come behind the block.
    handler_before = signal.signal(signal.SIGURG, interrupt)
    try:
        yield
    except UserError:
        # The error already tells what the threads report. The thread that reads a
        # remote job's messages may be about to report it.
        _join("wait_until_finish_read")
        lost.clear()
        raise
    except _WorkerDied:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        raise UserError(
            f"a worker process {how}, perhaps because memory ran out: run the same "
            "command again, or with fewer --workers"
        ) from None
    finally:
        if ending is not None:
            _join("run_worker")
        threading.excepthook = hook_before
        signal.signal(signal.SIGURG, handler_before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if ending is not None:
            # Within a bundle, Beam has made another error of it.
            raise ending from None
        if code is None:
            for failure in lost:
                hook_before(failure)


def _join(name: str) -> None:
    """Waits at most a second for each thread of a name."""
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(1)


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Silences Beam's log of a failed bundle, because the exception reports it."""
    loggers = [logging.getLogger(), logging.getLogger("apache_beam")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def is_local(beam_options: str) -> bool:
    """Tells whether the options name either no runner or Beam's DirectRunner."""
    return _runs_here(_parsed(beam_options))


def _runs_here(options: pipeline_options.PipelineOptions) -> bool:
    runner = options.view_as(pipeline_options.StandardOptions).runner
    return runner in (None, "DirectRunner")


def _parsed(beam_options: str) -> pipeline_options.PipelineOptions:
    """Parses the options of a pipeline.

    Raises:
        UserError: Beam cannot parse them, or has no such option. Only another runner
            may have options that Beam does not know.
    """
    said = io.StringIO()
    try:
        # Beam's parser prints its usage and exits at a wrong value.
        with contextlib.redirect_stderr(said):
            options = pipeline_options.PipelineOptions(shlex.split(beam_options))
            known = options.get_all_options()
            given = options.get_all_options(retain_unknown_options=True)
    except ValueError as error:
        raise _unusable(beam_options, str(error)) from error
    except SystemExit as error:
        if not error.code:
            raise  # --help
        reason = said.getvalue().rpartition("error: ")[2]
        raise _unusable(beam_options, reason) from error
    unknown = sorted(given.keys() - known.keys())
    if unknown and _runs_here(options):
        advice = did_you_mean(unknown[0], {name: f"--{name}" for name in known})
        reason = f"it has no --{unknown[0]}; {advice}allowed: options of Beam"
        raise _unusable(beam_options, reason)
    return options


def _local_runner(options: pipeline_options.PipelineOptions, workers: int, folder: str):
    """Returns Beam's Python runner; the DirectRunner might download another runner.

    Args:
        options, workers: as for `run`.
        folder: for temporary files, also of the workers.
    """
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability import fn_api_runner, portable_runner
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.transforms import environments

    given = options.get_all_options(drop_default=True)
    direct = options.view_as(pipeline_options.DirectOptions)
    # With 0 Beam counts the processors itself.
    if not given.get("direct_num_workers"):
        direct.direct_num_workers = workers
    environment = None
    if direct.direct_num_workers != 1 and "direct_running_mode" not in given:
        # Like `direct_running_mode=multi_processing`, but without the workers' start-up
        # messages, and the workers end with this process. Exceptions and log messages
        # return through Beam's own channels.
        # The processes share the cores: each library would take all of them.
        threads = max(machine.processors() // direct.direct_num_workers, 1)
        settings = " ".join(f'{name}="${{{name}:-{threads}}}"' for name in _THREADS)
        settings += f" TMPDIR={shlex.quote(folder)}"
        environment = environments.SubprocessSDKEnvironment.from_command_string(
            f"{settings} exec {shlex.quote(sys.executable)} -m"
            " cmlm.common.beam_worker 2>/dev/null"
        )
    if "default_sdk_harness_log_level" not in given:
        worker = options.view_as(pipeline_options.WorkerOptions)
        worker.default_sdk_harness_log_level = "CRITICAL"
    encoded = portable_runner.JobServiceHandle.encode_pipeline_options(
        options.get_all_options()
    )
    return fn_api_runner.FnApiRunner(
        default_environment=environment,
        provision_info=fn_runner.ExtendedProvisionInfo(
            beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        ),
    )


def _message_of(failure: Exception) -> str | None:
    """The message of the UserError or the OSError that ended a pipeline, or None.

    Exceptions of other processes arrive as text only.
    """
    text = str(failure)
    if "[Errno 28]" in text:
        message = "the disk is full: no space left on device"
    elif found := re.findall(r"\[Errno \d+\] ([^:\n\[]+)(?:: '(.*?)')?", text):
        reason, path = found[-1]
        path = path_names.output_of(path)
        message = f"{path}: {reason.strip()}".removeprefix(": ")
    elif isinstance(failure, UserError):
        message = text
    elif found := re.findall(
        r"^(?:cmlm\.errors\.)?UserError: (.*)$", text, re.MULTILINE
    ):
        message = found[-1]
    else:
        return None
    return re.sub(r" \[while running .*$", "", message)


def _why_unreachable(failure: Exception) -> str | None:
    """Why the job service or a worker did not answer; None for other failures."""
    text = str(failure)
    if isinstance(failure, NotImplementedError):
        return text
    if isinstance(failure, grpc.FutureTimeoutError):
        return "the job service does not answer"
    if "StatusCode.UNAVAILABLE" in text:
        details = re.search(r'details = "(.*)"', text)
        return details[1] if details else "a process does not answer"
    if "StatusCode.DEADLINE_EXCEEDED" in text:
        # Beam's own job service reports states only for so long, though the job runs.
        return (
            "the pipeline did not end within --job_server_timeout (default: 300 s); the"
            " log of the worker pool names workers that did not start"
        )
    return None


def _unusable(beam_options: str, reason: str) -> UserError:
    given = " ".join(beam_options.split())
    return UserError(f"--beam_options is {given!r}; Beam: {' '.join(reason.split())}")
