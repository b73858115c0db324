"""Beam pipelines as commands run them: runner, progress, exact counts, whole files.

    def build(pipeline):
        outputs = pipeline | ... | beam.ParDo(Drop()).with_outputs(COUNTS, main="kept")
        write_counts([outputs[COUNTS]], path)

    run(build, beam_options=FLAGS.beam_options, workers=FLAGS.workers)

Without `--runner=...` among the options a pipeline runs on this machine, in as many
processes as it has cores. Every other runner of Beam gets its options as they are;
files then have to lie where its workers see them.

What lies between two steps that regroup data is held in memory by the local runner, in
the main process, and sent to each worker as one message of at most 2 GB. So pipelines
here send little through such steps, or the paths of files: `preparation.spilling`.
"""

from __future__ import annotations

import collections
import contextlib
import gzip
import io
import json
import logging
import os
import re
import shlex
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, TextIO

import tqdm

from cmlm.errors import UserError

try:
    import apache_beam as beam
    from apache_beam import pvalue
    from apache_beam.io import filesystem, filesystems
    from apache_beam.options import pipeline_options
    from apache_beam.utils import windowed_value
except ImportError as error:
    raise UserError(f"this needs `pip install 'cmlm[corpus]'`: {error}") from error

# The output of a `CountingDoFn` that its counts leave by.
COUNTS = "counts"


def run(
    build: Callable[[beam.Pipeline], None],
    beam_options: str = "",
    workers: int = 0,
    progress: Progress | None = None,
) -> None:
    """Builds a pipeline, runs it and waits for its end.

    Args:
        build: adds the transforms to an empty pipeline.
        beam_options: options of Beam as on a command line, for example
            `--runner=FlinkRunner --flink_master=localhost:8081`. Nothing: this machine.
        workers: processes on this machine, 0 for one a core; 1 stays in this process.
        progress: is shown while the pipeline runs.

    Raises:
        UserError: what a transform raised as such, or a full disk, in one line.
    """
    options = pipeline_options.PipelineOptions(shlex.split(beam_options))
    runner = None
    if is_local(beam_options):
        runner = _local_runner(options, workers or os.cpu_count())
    pipeline = beam.Pipeline(runner=runner, options=options)
    build(pipeline)
    with _quiet_loggers(), progress.shown() if progress else contextlib.nullcontext():
        try:
            pipeline.run().wait_until_finish()
        except Exception as failure:
            _raise_as_user_error(failure)
            raise


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Keeps Beam from logging a failed bundle: the exception tells of it."""
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
    """Whether these options name no runner, or Beam's one for a single machine."""
    options = pipeline_options.PipelineOptions(shlex.split(beam_options))
    runner = options.view_as(pipeline_options.StandardOptions).runner
    return runner in (None, "DirectRunner")


def _local_runner(options: pipeline_options.PipelineOptions, workers: int):
    """Beam's runner in Python: the DirectRunner would look for another to download."""
    from apache_beam.portability.api import beam_provision_api_pb2
    from apache_beam.runners.portability import fn_api_runner, portable_runner
    from apache_beam.runners.portability.fn_api_runner import fn_runner
    from apache_beam.transforms import environments

    given = options.get_all_options(drop_default=True)
    direct = options.view_as(pipeline_options.DirectOptions)
    if "direct_num_workers" not in given:
        direct.direct_num_workers = workers
    environment = None
    if direct.direct_num_workers != 1 and "direct_running_mode" not in given:
        # What `direct_running_mode=multi_processing` does, without what the workers say
        # as they start. Their exceptions and messages come back by other ways.
        environment = environments.SubprocessSDKEnvironment.from_command_string(
            f"exec {shlex.quote(sys.executable)} -m"
            " apache_beam.runners.worker.sdk_worker_main 2>/dev/null"
        )
    if "default_sdk_harness_log_level" not in given:
        options.view_as(
            pipeline_options.WorkerOptions
        ).default_sdk_harness_log_level = "CRITICAL"
    encoded = portable_runner.JobServiceHandle.encode_pipeline_options(
        options.get_all_options()
    )
    return fn_api_runner.FnApiRunner(
        default_environment=environment,
        provision_info=fn_runner.ExtendedProvisionInfo(
            beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
        ),
    )


def _raise_as_user_error(failure: Exception) -> None:
    """Raises what a worker's traceback says if that is a mistake of the user.

    From other processes only the text of an exception arrives.
    """
    text = str(failure)
    found = re.findall(r"^(?:cmlm\.errors\.)?UserError: (.*)$", text, re.MULTILINE)
    if isinstance(failure, UserError):
        found = [text]
    if "[Errno 28]" in text:
        found = ["the disk is full: no space left on device"]
    if found:
        message = re.sub(r" \[while running .*$", "", found[-1])
        raise UserError(message) from None


class CountingDoFn(beam.DoFn):
    """A DoFn with counts that are exact on every runner.

    Beam's own counters may count work twice that was done twice; these travel with the
    data, as the tagged output COUNTS: (name, number). A subclass adds to `self.counts`
    and calls `super()` where it overrides `start_bundle`.
    """

    def start_bundle(self):
        self.counts: collections.Counter = collections.Counter()

    def finish_bundle(self):
        for item in sorted(self.counts.items()):
            yield pvalue.TaggedOutput(
                COUNTS,
                windowed_value.WindowedValue(item, 0, [beam.window.GlobalWindow()]),
            )
        self.counts.clear()


def write_counts(counts: Iterable[beam.PCollection], path: str) -> None:
    """Adds up the COUNTS outputs of any number of transforms into one JSON file."""
    (
        tuple(counts)
        | "Flatten counts" >> beam.Flatten().with_output_types(tuple[str, int])
        | "Sum counts" >> beam.CombinePerKey(sum)
        | "List counts" >> beam.combiners.ToList()
        | "Write counts" >> beam.Map(_write_counts, path)
    )


def _write_counts(counts: list[tuple[str, int]], path: str) -> None:
    with atomic_text(path) as output:
        json.dump(dict(sorted(counts)), output, indent=1, ensure_ascii=False)


def read_counts(path: str) -> collections.Counter:
    """Reads what `write_counts` has written."""
    with open_bytes(path) as file:
        return collections.Counter(json.load(file))


@contextlib.contextmanager
def open_bytes(path: str) -> Iterator[BinaryIO]:
    """Opens a file of any filesystem that Beam knows, as it is, for streaming."""
    raw = filesystems.FileSystems.open(
        path, compression_type=filesystem.CompressionTypes.UNCOMPRESSED
    )
    with raw:
        yield raw


@contextlib.contextmanager
def atomic_text(path: str) -> Iterator[TextIO]:
    """`files.atomic_text` for workers: uses Beam's filesystems, not TensorFlow.

    A worker that dies leaves `PATH.tmp-...`; the one that repeats its work writes
    another, and the last one renamed stands.
    """
    temporary = f"{path}.tmp-{uuid.uuid4().hex[:8]}"
    uncompressed = filesystem.CompressionTypes.UNCOMPRESSED
    try:
        with contextlib.ExitStack() as stack:
            stream = stack.enter_context(
                filesystems.FileSystems.create(temporary, compression_type=uncompressed)
            )
            if path.endswith(".gz"):
                stream = stack.enter_context(
                    gzip.GzipFile("", "wb", compresslevel=6, fileobj=stream, mtime=0)
                )
            text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n")
            yield text
            text.flush()
            text.detach()
        filesystems.FileSystems.rename([temporary], [path])
    except BaseException:
        if filesystems.FileSystems.exists(temporary):
            filesystems.FileSystems.delete([temporary])
        raise


def make_directory(path: str) -> None:
    """Makes a directory and those above it, where several may try at once."""
    if not filesystems.FileSystems.exists(path):
        try:
            filesystems.FileSystems.mkdirs(path)
        except OSError:
            if not filesystems.FileSystems.exists(path):
                raise


def tidy(directory: str, *paths: str) -> None:
    """Removes these files, and what workers left that died, from a finished output."""
    found = filesystems.FileSystems.match([f"{directory}/**.tmp-*"])[0].metadata_list
    filesystems.FileSystems.delete([*paths, *(file.path for file in found)])


class Progress:
    """A bar that processes on this machine move: `add` in any of them, `shown` here.

    They append to one file, which this process reads. Workers on other machines do not
    see the file: their `add` does nothing, and the bar shows only the time.
    """

    def __init__(self, total: int, unit: str = "B", afterwards: str = ""):
        """Takes what makes 100 %, its unit, and what to call the work after that."""
        self._total, self._unit, self._afterwards = total, unit, afterwards
        handle, self._path = tempfile.mkstemp(prefix="cmlm-progress-")
        os.close(handle)
        self._pending, self._written = 0, 0.0

    def add(self, amount: int) -> None:
        """Counts work that was done; cheap enough to be called for every record."""
        self._pending += amount
        now = time.monotonic()
        if now - self._written > 0.5:
            self.flush()
            self._written = now

    def flush(self) -> None:
        """Writes down what `add` has gathered; call it at the end of a bundle."""
        if self._pending and os.path.exists(self._path):
            # One short write in append mode: lines of several processes do not mix.
            with open(self._path, "a", encoding="ascii") as file:
                file.write(f"{self._pending}\n")
        self._pending = 0

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the bar until the block ends; then removes the file."""
        ended = threading.Event()
        thread = threading.Thread(target=self._follow, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            os.remove(self._path)

    def _follow(self, ended: threading.Event) -> None:
        bar = tqdm.tqdm(
            total=self._total, unit=self._unit, unit_scale=True, mininterval=0.5
        )
        with bar, open(self._path, encoding="ascii") as file:
            last = False
            while not last:
                last = ended.wait(0.5)
                bar.update(sum(map(int, file.read().split())))
                if bar.n >= self._total:
                    bar.set_description(self._afterwards, refresh=False)
                bar.refresh()
