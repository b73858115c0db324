"""A pipeline's counts are exact, and its mistakes one line."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent import futures

import apache_beam as beam
import commands
import grpc
import pytest
from apache_beam.options import pipeline_options
from apache_beam.portability.api import beam_fn_api_pb2, beam_fn_api_pb2_grpc
from apache_beam.runners.portability import local_job_service

from cmlm.common import beam_counts, beam_progress, beam_runner
from cmlm.errors import UserError


class CountWords(beam_counts.CountingDoFn):
    """Words of lines; a line `bad` is a mistake of the user."""

    def process(self, line):
        if line == "bad":
            raise UserError("'bad' is not a line: allowed are others")
        if line == "full":
            raise OSError(28, "No space left on device")
        if line == "gone":
            open("/dev/null/o.tmp-0a1b2c3d/scratch/p.tmp-0a1b2c3e", "w")
        for word in line.split():
            self.counts[word] += 1
            yield word


def count(lines, path, **arguments):
    def build(pipeline):
        found = (
            pipeline
            | beam.Create(lines)
            | beam.Reshuffle()
            | beam.ParDo(CountWords()).with_outputs(beam_counts.COUNTS, main="words")
        )
        beam_counts.write_counts([found[beam_counts.COUNTS]], str(path))

    beam_runner.run(build, **arguments)
    return beam_counts.read_counts(str(path))


class NoWorkers(beam_fn_api_pb2_grpc.BeamFnExternalWorkerPoolServicer):
    """A worker pool whose workers end at once, as those of a Python without Beam."""

    def StartWorker(self, request, context):
        return beam_fn_api_pb2.StartWorkerResponse()


LINES = ["a b a", "b c", "ä"] * 50


def test_counts_are_exact_and_a_missing_one_is_zero(tmp_path):
    counts = count(LINES, tmp_path / "counts.json", workers=1)
    assert counts == {"a": 100, "b": 100, "c": 50, "ä": 50}
    assert counts["z"] == 0


def test_nothing_to_count_is_an_empty_file(tmp_path):
    assert not count([], tmp_path / "counts.json", workers=1)


@pytest.mark.parametrize(
    "line, message",
    [
        ("bad", "^'bad' is not a line: allowed are others$"),
        ("full", "^the disk is full: no space left on device$"),
        ("gone", "^/dev/null/o: Not a directory$"),
    ],
)
def test_a_mistake_in_a_transform_is_one_line(tmp_path, line, message):
    with pytest.raises(UserError, match=message):
        count([*LINES, line], tmp_path / "counts.json", workers=1)
    assert os.listdir(tmp_path) == []


def test_options_of_beam_reach_the_runner(tmp_path):
    """The portable runner with Beam's own job service, over gRPC."""
    options = "--runner=PortableRunner --job_endpoint=embed"
    counts = count(
        LINES,
        tmp_path / "counts.json",
        beam_options=f"{options} --environment_type=LOOPBACK",
    )
    assert counts == {"a": 100, "b": 100, "c": 50, "ä": 50}
    assert not beam_runner.is_local(options)
    assert beam_runner.is_local("--direct_num_workers=3")


@pytest.mark.parametrize(
    "given, number",
    [("", 1), ("--direct_num_workers=0", 1), ("--direct_num_workers=3", 3)],
)
def test_the_number_of_workers_is_that_of_the_options_or_the_argument(given, number):
    options = beam_runner._parsed(given)
    beam_runner._local_runner(options, 1, "folder")
    direct = options.view_as(pipeline_options.DirectOptions)
    assert direct.direct_num_workers == number


@pytest.mark.parametrize(
    "options, message",
    [
        ("--runner=FlinkRuner", "Unexpected pipeline runner: FlinkRuner"),
        ("--runner='FlinkRunner", "No closing quotation"),
        ("--runer=FlinkRunner", "it has no --runer; did you mean --runner?"),
        ("--direct_num_workers=two", "argument --direct_num_workers: invalid int"),
        ("--runner=PortableRunner", "You must specify a --job_endpoint"),
        (
            "--runner=PortableRunner --job_endpoint=localhost:1 --job_server_timeout=0",
            "the job service does not answer$",
        ),
        (
            "--runner=PortableRunner --job_endpoint=embed --environment_type=EXTERNAL"
            " --environment_config=localhost:1",
            "failed to connect to all addresses",
        ),
    ],
)
def test_a_mistake_in_the_options_of_beam_is_one_line(tmp_path, options, message):
    with pytest.raises(UserError, match=f"^--beam_options is .*; Beam: {message}"):
        count(LINES, tmp_path / "counts.json", beam_options=options)


def test_a_job_service_that_gives_no_end_is_one_line(tmp_path):
    """Beam's own job service reports for --job_server_timeout; no worker starts."""
    pool = grpc.server(futures.ThreadPoolExecutor(1))
    beam_fn_api_pb2_grpc.add_BeamFnExternalWorkerPoolServicer_to_server(
        NoWorkers(), pool
    )
    workers = pool.add_insecure_port("localhost:0")
    pool.start()
    service = local_job_service.LocalJobServicer(str(tmp_path / "staged"))
    port = service.start_grpc_server()
    options = (
        f"--runner=PortableRunner --job_endpoint=localhost:{port}"
        " --job_server_timeout=1 --environment_type=EXTERNAL"
        f" --environment_config=localhost:{workers}"
    )
    try:
        with pytest.raises(UserError, match="did not end within --job_server_timeout"):
            count(LINES, tmp_path / "counts.json", beam_options=options)
    finally:
        service.stop()
        pool.stop(0)


def test_a_pipeline_that_never_runs_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    progress = beam_progress.Progress(3)
    with pytest.raises(UserError, match="it has no --runer"):
        beam_runner.run(lambda pipeline: None, "--runer=FlinkRunner", 1, progress)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_ends_the_workers_and_leaves_no_file(
    tmp_path, monkeypatch, capfd, workers, name
):
    number, main, folder = signal.Signals[name], os.getpid(), str(tmp_path)

    def stop(_):
        # The main process keeps all of its files in one folder.
        found = [entry for entry in os.listdir(folder) if not entry.endswith(".lock")]
        if len(found) > 1:
            raise UserError(str(found))
        os.kill(main, number)
        time.sleep(60 if workers > 1 else 1)

    def build(pipeline):
        pipeline | beam.Create([0]) | beam.Reshuffle() | beam.Map(stop)

    usual = {"SIGINT": signal.default_int_handler, "SIGTERM": signal.SIG_DFL}[name]
    before = signal.signal(number, usual)
    ends = {"SIGINT": KeyboardInterrupt, "SIGTERM": SystemExit}[name]
    try:
        with commands.forked_workers(), pytest.raises(ends) as ended:
            start = time.monotonic()
            monkeypatch.setattr(tempfile, "tempdir", folder)
            beam_runner.run(build, "", workers, beam_progress.Progress(1))
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    assert name == "SIGINT" or ended.value.code == 143
    assert time.monotonic() - start < 50
    assert not os.listdir(tmp_path)
    assert "Traceback" not in capfd.readouterr().err


def test_progress_of_several_processes_adds_up(capfd, tmp_path):
    progress = beam_progress.Progress(300)
    commands.process()
    start = time.monotonic()
    with progress.shown(str(tmp_path)):
        # Other processes that get it pickled, as Beam's workers do. A fork of this
        # process, which has threads, may wait for ever for a lock that one of them
        # held.
        work = (
            "import pickle\n"
            f"progress = pickle.loads({pickle.dumps(progress)})\n"
            "for _ in range(100):\n"
            "    progress.add(1)\n"
            "progress.flush()\n"
        )
        for _ in range(3):
            commands.source(work)
        os.remove(progress._path)  # by a program that cleans old files
    shown = capfd.readouterr().err
    assert "300/300" in shown
    # A log file gets a line every ten seconds, and the first and the last.
    assert shown.count("\r") <= 4 + (time.monotonic() - start) / 10
    progress.add(1)
    progress.flush()  # its file is gone: a worker that is late does no harm


@pytest.mark.parametrize("dies", [True, False])
def test_threads_that_lose_a_killed_worker_print_nothing(monkeypatch, tmp_path, dies):
    """Such a thread may fail before the thread that names the dead worker."""
    printed = []
    monkeypatch.setattr(threading, "excepthook", printed.append)

    def fail(error):
        def target():
            raise error

        thread = threading.Thread(target=target)
        thread.start()
        thread.join()

    def lose():
        with beam_runner._stopped_workers(str(tmp_path)):
            fail(grpc.RpcError())
            if dies:
                fail(RuntimeError("Worker subprocess exited with return code -9"))
                time.sleep(10)

    if dies:
        with pytest.raises(UserError, match="was killed by signal 9"):
            lose()
    else:
        lose()
    assert [failure.exc_type for failure in printed] == [grpc.RpcError] * (not dies)


def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    worker = (
        "import os; from cmlm.common import beam_worker; parent = os.getppid(); "
        f"print(1, flush=True); beam_worker.end_after(parent, {str(tmp_path)!r})"
    )
    start = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    )
    command = [sys.executable, "-c", start]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout.readline() == "1\n"
        started.kill()
        # The pipe ends when the worker does, too.
        assert started.communicate(timeout=30) == ("", None)
