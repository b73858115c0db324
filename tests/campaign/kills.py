"""A campaign of kills and full disks: every command, stopped somewhere, then run again.

    python -m tests.campaign.kills --cases=200 --seed=1 [--first=0]
        [--commands=encode,mine] [--kinds='SIGINT twice;full disk']

Each case starts a command, ends it after a random time by SIGKILL, by SIGINT, by
SIGINT twice or by SIGTERM and SIGINT, or by SIGKILL just before or after one of its
renames, lets no file grow beyond a random size, or takes the directory of inputs or of
outputs away, and runs it again. Files may be slow and the
clock may jump until the kill. A full disk and a lost directory must give one line and
exit code 1, and no interrupt a traceback. At the kill no half output may stand under a
final name. At the end the directory must equal that of a run without a kill: the same
files, the same content, nothing else. Commands run in forks of this process, which
imports TensorFlow and runs no operation.
"""

from __future__ import annotations

import argparse
import builtins
import dataclasses
import functools
import hashlib
import io
import json
import os
import random
import re
import resource
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from . import warm

ROOT = Path(__file__).resolve().parents[2]
# A command may take so many seconds of a processor.
_LIMIT = 240
_SIGNALS = {
    "SIGKILL": [signal.SIGKILL],
    "SIGINT": [signal.SIGINT],
    "SIGINT twice": [signal.SIGINT, signal.SIGINT],
    "SIGTERM, then SIGINT": [signal.SIGTERM, signal.SIGINT],
    "SIGKILL, slow files": [signal.SIGKILL],
    "SIGKILL, clock that jumps": [signal.SIGKILL],
    "SIGKILL at a rename": [signal.SIGKILL],
    "full disk": [],
    "inputs vanish": [],
    "outputs vanish": [],
}
# Seconds between two signals of one kind.
_GAPS = (0.0, 0.02, 0.1, 0.5)
_YEAR = 366 * 24 * 3600


# --------------------------------------------------------------------- commands


@dataclasses.dataclass(frozen=True)
class Command:
    """A command of the campaign.

    Attributes:
        module: its module.
        flags: its flags; {in} is the directory of inputs, {out} that of outputs.
        outputs: the files and directories that must be whole whenever they exist.
    """

    module: str
    flags: tuple[str, ...]
    outputs: tuple[str, ...]


_MODEL = "--model={in}/model_dir"
COMMANDS = {
    "encode": Command(
        "cmlm.encode",
        (_MODEL, "--input={in}/corpus.txt", "--output={out}/out/v.npy"),
        ("out/v.npy",),
    ),
    "vocab": Command(
        "cmlm.vocab",
        ("--input={in}/corpus.txt", "--output={out}/v.txt", "--size=220"),
        ("v.txt",),
    ),
    "vocab on Beam": Command(
        "cmlm.vocab",
        (
            "--input={in}/corpus.txt",
            "--output={out}/v.txt",
            "--size=220",
            "--workers=1",
        ),
        ("v.txt",),
    ),
    "prune": Command(
        "cmlm.vocab",
        (
            "--prune_model={in}/model_dir",
            "--input={in}/toy.txt",
            "--output={out}/pruned",
        ),
        ("pruned",),
    ),
    "ngrams": Command(
        "cmlm.ngrams",
        (
            "--input={in}/corpus.txt",
            *("--output={out}/n.tsv", "--marked_output={out}/marked", "--min_count=2"),
        ),
        ("n.tsv", "marked"),
    ),
    "prepare": Command(
        "cmlm.prepare",
        ("--input={in}/corpus.txt", "--output={out}/prepared"),
        ("prepared",),
    ),
    "prepare on Beam": Command(
        "cmlm.prepare",
        (
            *("--input={in}/corpus.txt", "--output={out}/prepared"),
            *("--steps=duplicate_lines", "--workers=1"),
        ),
        ("prepared",),
    ),
    "quality": Command(
        "cmlm.quality",
        ("--good={in}/corpus.txt", "--bad={in}/other.txt", "--output={out}/q.npz"),
        ("q.npz",),
    ),
    "pcr": Command(
        "cmlm.pcr",
        (_MODEL, "--text=en={in}/corpus.txt", "--output={out}/p.npz"),
        ("p.npz",),
    ),
    "mine": Command(
        "cmlm.mine",
        (
            *(_MODEL, "--source={in}/corpus.txt", "--target={in}/toy.txt"),
            *("--output={out}/m.tsv", "--threshold=-9", "--margin=absolute"),
        ),
        ("m.tsv",),
    ),
    "mine, score": Command(
        "cmlm.mine",
        (
            *(_MODEL, "--bitext={in}/bitext.tsv", "--score", "--threshold=-1"),
            "--output={out}/m.tsv.gz",
        ),
        ("m.tsv.gz",),
    ),
    "evaluate": Command(
        "cmlm.evaluate",
        (
            *(_MODEL, "--model=bow:{in}/model_dir", "--data_dir={in}/testsets"),
            *("--tasks=stsb-test,sts:{in}/own.tsv", "--output={out}/report"),
            "--cache_dir={out}/cache",
        ),
        ("report",),
    ),
    "evaluate without a cache": Command(
        "cmlm.evaluate",
        (
            _MODEL,
            "--data_dir={in}/testsets",
            "--tasks=stsb-test",
            "--output={out}/r.json",
        ),
        ("r.json",),
    ),
    "export.tfhub": Command(
        "export.tfhub",
        ("--model_dir={in}/model_dir", "--export_dir={out}/export"),
        ("export",),
    ),
    "export.tfhub over an old one": Command(
        "export.tfhub",
        ("--model_dir={in}/model_dir", "--export_dir={out}/old", "--overwrite"),
        (),
    ),
    "export.huggingface": Command(
        "export.huggingface",
        ("--model_dir={in}/model_dir", "--output={out}/folder"),
        ("folder",),
    ),
    "train": Command(
        "cmlm.train",
        ("--config_file={in}/train.yaml", "--model_dir={out}/run"),
        ("run/params.yaml", "run/vocab.txt"),
    ),
    "train on bitext": Command(
        "cmlm.train",
        (
            *("--config_file={in}/train.yaml", "--model_dir={out}/run"),
            *("--bitext_data=en-de={in}/bitext.tsv", "--vocab_file={in}/vocab.txt"),
            "--params_override=task.cmlm.weight=0,task.bitext.weight=1",
            "--params_override=task.bitext.train_data.global_batch_size=8",
            "--params_override=task.bitext.train_data.seq_length=16",
            "--params_override=trainer.best_checkpoint_metric=bitext/loss",
        ),
        ("run/params.yaml", "run/vocab.txt"),
    ),
    "train with a teacher": Command(
        "cmlm.train",
        (
            *("--experiment=distill/text", "--model_dir={out}/run"),
            *("--train_data={in}/toy.txt", "--teacher={in}/model_dir"),
            *("--vocab_file={in}/vocab.txt", "--teacher_cache={out}/teacher"),
            "--params_override=model.num_layers=1,model.hidden_size=8",
            "--params_override=model.num_attention_heads=2,model.intermediate_size=16",
            "--params_override=model.vocab_size=0,trainer.train_steps=8",
            "--params_override=trainer.validation_interval=4",
            "--params_override=trainer.checkpoint_interval=4",
            "--params_override=trainer.best_checkpoint_metric=",
            "--params_override=task.distill.train_data.global_batch_size=4",
            "--params_override=task.distill.train_data.hold_out_fraction=0.2",
            "--params_override=vocabulary.max_unknown_share=1",
        ),
        ("run/params.yaml", "run/vocab.txt"),
    ),
    "finetune": Command(
        "cmlm.finetune",
        (
            *(_MODEL, "--task=file:{in}/classes.tsv", "--dev={in}/classes.tsv"),
            *("--predict={in}/classes.tsv", "--epochs=1", "--output={out}/tuned"),
        ),
        ("tuned",),
    ),
}
# No two runs have these in common: times, and names that TensorFlow draws.
_PASSING = ("tensorboard", "report.md", "report.html", "lock")


def make_inputs(directory: Path, with_model: bool = True) -> None:
    """Writes the inputs of all commands, or of those that read no model."""
    sys.path.insert(0, str(ROOT / "tests"))
    import model_dirs
    import toys

    from cmlm.config import overrides

    corpus = toys.write_corpus(directory / "corpus.txt")
    toys.write_corpus(directory / "other.txt", seed=1)
    (directory / "vocab.txt").write_text("\n".join(model_dirs.VOCAB) + "\n")
    if with_model:
        model_dirs.write(directory / "model_dir")
    words = [word for word in model_dirs.VOCAB if word.isalpha()]
    draw = random.Random(3)
    lines = [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(60)]
    (directory / "toy.txt").write_text("\n".join(lines) + "\n")
    pairs = [f"{a}\t{b}\n" for a, b in zip(lines, lines[1:], strict=False)]
    (directory / "bitext.tsv").write_text("".join(pairs))
    rated = [f"{i % 6}\t{pair}" for i, pair in enumerate(pairs)]
    (directory / "testsets" / "stsbenchmark").mkdir(parents=True)
    classes = [f"{line}\tc{i % 2}\n" for i, line in enumerate(lines)]
    (directory / "classes.tsv").write_text("text\tlabel\n" + "".join(classes))
    (directory / "own.tsv").write_text(
        "".join(f"{pair.strip()}\t{i % 6}\n" for i, pair in enumerate(pairs))
    )
    (directory / "testsets" / "stsbenchmark" / "sts-test.csv").write_text(
        "".join(f"a\tb\tc\td\t{row}" for row in rated)
    )
    config = toys.run_config(corpus, **{"trainer.checkpoint_interval": 4})
    (directory / "train.yaml").write_text(overrides.to_yaml(config))


# ---------------------------------------------------------------------- running


def start(work: Callable[[], None], cwd: Path, log: Path) -> int:
    """Runs a function in a fork with its own session and output; returns its id."""
    child = os.fork()
    if child:
        return child
    # Before the work begins, an interrupt would go up into a copy of the campaign.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setsid()
    os.chdir(cwd)
    os.environ["TMPDIR"] = str(cwd.parent)
    tempfile.tempdir = None
    number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(number, 1)
    os.dup2(number, 2)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
    code = 1
    # On a full disk even the traceback may not fit. An error that left this function
    # would go up into the copy of the campaign, too, and remove its directory.
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            work()
            code = 0
        except SystemExit as leaving:
            code = leaving.code or 0
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code)


def run_command(
    command: Command,
    inputs: Path,
    most_bytes: int = resource.RLIM_INFINITY,
    before: Callable[[], None] | None = None,
) -> Callable[[], None]:
    """A function that becomes the command in its working directory.

    Args:
        command: the command.
        inputs: the directory of inputs.
        most_bytes: no file may grow beyond these.
        before: is called first, in the process of the command.
    """

    def work():
        if before:
            before()
        # A cut .pyc file would stay beside the module.
        sys.dont_write_bytecode = True
        # Python ignores the signal that goes with it, so a write fails.
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))
        sys.argv = [
            command.module,
            *(
                flag.replace("{in}", str(inputs)).replace("{out}", os.getcwd())
                for flag in command.flags
            ),
        ]
        runpy.run_module(command.module, run_name="__main__", alter_sys=True)

    return work


def slow_files(seed: int) -> None:
    """Lets Python's calls for files take up to 20 ms, as on a shared directory."""
    draw = random.Random(seed)

    def slowed(function):
        def slow(*args, **kwargs):
            time.sleep(0.02 * draw.random())
            return function(*args, **kwargs)

        return slow

    builtins.open = io.open = slowed(open)
    for name in ("replace", "rename", "remove", "unlink", "mkdir", "scandir", "fsync"):
        setattr(os, name, slowed(getattr(os, name)))


def jumping_clock(seed: int) -> None:
    """Lets every reading of the time of day jump by up to a year, back and forth."""
    draw = random.Random(seed)
    now, now_ns = time.time, time.time_ns
    time.time = lambda: now() + draw.uniform(-_YEAR, _YEAR)
    time.time_ns = lambda: now_ns() + draw.randint(-_YEAR, _YEAR) * 10**9


def watch_renames(count: Path, kill_at: int = 0, kill_before: bool = False) -> None:
    """Counts every rename of a file or directory; at one of them the process ends.

    Args:
        count: a file that holds the number of renames so far.
        kill_at: the number of the rename that ends the process, from 1; 0: none.
        kill_before: whether the process ends before that rename, not after it.
    """
    import tensorflow as tf
    from tensorflow.python.lib.io import file_io

    done = 0

    def watched(function):
        def rename(*args, **kwargs):
            nonlocal done
            done += 1
            count.write_text(str(done))
            if done == kill_at and kill_before:
                os.kill(os.getpid(), signal.SIGKILL)
            function(*args, **kwargs)
            if done == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        return rename

    os.rename, os.replace = watched(os.rename), watched(os.replace)
    file_io.rename_v2 = tf.io.gfile.rename = watched(file_io.rename_v2)


_TROUBLES = {"slow": slow_files, "clock": jumping_clock}


def change_times(directory: Path, draw: random.Random) -> None:
    """Gives the files of a directory times of a clock that jumps."""
    for path in directory.rglob("*"):
        if path.is_file():
            changed = time.time() + draw.uniform(-_YEAR, _YEAR)
            os.utime(path, (changed, changed))


def vanish(directory: Path) -> Callable[[], None]:
    """Puts a file in the place of a directory; returns what brings it back."""
    kept = directory.with_name(f"{directory.name}-vanished")
    directory.rename(kept)
    directory.write_text("")

    def come_back():
        directory.unlink()
        kept.rename(directory)

    return come_back


def one_line(said: str) -> bool:
    """Whether a command that failed said so in one line."""
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    return len(errors) == 1 and "Traceback" not in said


def wait(child: int, seconds: float) -> int | None:
    """Waits for a process: its exit code, or None if it still runs."""
    deadline = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)


def finish(child: int) -> int:
    """Waits for the end of a process, which must come within the limit."""
    began, last = warm.processor_seconds(child), 0.0
    while True:
        before = last
        code = wait(child, warm.IDLE_SECONDS)
        if code is not None:
            return code
        last = warm.processor_seconds(child) - began
        if warm.hangs(last, before, _LIMIT):
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(
                f"not done after {last:.0f} s of a processor, {last - before:.1f} of "
                f"them in the last {warm.IDLE_SECONDS} s"
            )


# ------------------------------------------------------------------------ state


def state(directory: Path, outputs: tuple[str, ...] = ("",)) -> dict[str, str]:
    """The files below some outputs and digests of their content."""
    found = {}
    for output in outputs:
        path = directory / output
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            name = str(file.relative_to(directory))
            if file.is_file() and not any(part in name for part in _PASSING):
                found[name] = content(file)
    return found


def content(path: Path) -> str:
    """A digest of what must not differ between two runs."""
    if path.name == "checksums.json":
        # Of files whose bytes have no fixed order.
        return "present"
    if path.suffix == ".json" and "signatures" not in path.read_text("utf-8"):
        try:
            value = json.loads(path.read_text("utf-8"))
        except ValueError:
            return "not JSON"
        if isinstance(value, dict):
            value.pop("date", None)
            for model in value.get("models", {}).values():
                model.pop("encoding_seconds", None)
                model.pop("scoring_seconds", None)
        return json.dumps(value, sort_keys=True)
    if path.name == "metrics.jsonl":
        # The first training row after a resume covers fewer steps.
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        validated = [
            (row["step"], {k: v for k, v in row.items() if k.startswith("validation/")})
            for row in rows
        ]
        return json.dumps([row for row in validated if row[1]])
    # A killed run has more starts.
    if path.name in ("checkpoint", "starts.jsonl") or path.suffix in (".index", ".pb"):
        return "present"
    if ".data-" in path.name:
        return tensors(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensors(path: Path) -> str:
    """A digest of a checkpoint's numbers; its bytes have no fixed order."""
    import tensorflow as tf

    # It runs no operation, so this process can fork later.
    reader = tf.train.load_checkpoint(str(path).partition(".data-")[0])
    found = []
    for name in reader.get_variable_to_shape_map():
        value = reader.get_tensor(name)
        if not isinstance(value, bytes) and not name.startswith("save_counter"):
            # An export numbers its variables in no fixed order.
            name = re.sub(r"^variables/\d+", "variables", name)
            found.append(hashlib.sha256(name.encode() + value.tobytes()).digest())
    digest = hashlib.sha256(b"".join(sorted(found)))
    return digest.hexdigest()


def last_checkpoints(found: dict[str, str]) -> dict[str, str]:
    """Leaves out all checkpoints of a directory but the last one."""
    steps: dict[str, int] = {}
    parts = {name: re.match(r"(.*)\bckpt-(\d+)\.", name) for name in found}
    for match in filter(None, parts.values()):
        steps[match[1]] = max(int(match[2]), steps.get(match[1], 0))
    return {
        name: digest
        for name, digest in found.items()
        if not parts[name] or int(parts[name][2]) == steps[parts[name][1]]
    }


def differences(want: dict[str, str], got: dict[str, str]) -> list[str]:
    """The names of files that differ."""
    names = sorted({*want, *got})
    return [name for name in names if want.get(name) != got.get(name)]


# --------------------------------------------------------------------- campaign


class Campaign:
    """The inputs, and for each command the state and the time of a run without a kill.

    Args:
        directory: an empty directory.
        names: the commands that it will run.
    """

    def __init__(self, directory: Path, names: list[str]):
        self._directory = directory
        self._inputs = directory / "inputs"
        self._inputs.mkdir()
        self._log = directory / "log"
        self._straight: dict[str, tuple[dict[str, str], float]] = {}
        self._largest: dict[str, int] = {}
        self._renames: dict[str, int] = {}
        with_model = any("model_dir" in str(COMMANDS[name].flags) for name in names)
        child = start(
            lambda: make_inputs(self._inputs, with_model), directory, self._log
        )
        assert finish(child) == 0, self._log.read_text()

    def _fresh(self, name: str) -> Path:
        cwd = self._directory / "run"
        shutil.rmtree(cwd, ignore_errors=True)
        cwd.mkdir()
        if "old" in name:
            (cwd / "old").mkdir()
            (cwd / "old" / "README.md").write_text("the old export")
        return cwd

    def straight(self, name: str) -> tuple[dict[str, str], float]:
        """The state after a run without a kill, and its seconds."""
        if name not in self._straight:
            cwd, began = self._fresh(name), time.monotonic()
            count = self._directory / "renames"
            count.write_text("0")
            watch = functools.partial(watch_renames, count)
            work = run_command(COMMANDS[name], self._inputs, before=watch)
            assert finish(start(work, cwd, self._log)) == 0, self._log.read_text()
            self._straight[name] = state(cwd), time.monotonic() - began
            self._renames[name] = int(count.read_text())
            sizes = [p.stat().st_size for p in cwd.rglob("*") if p.is_file()]
            self._largest[name] = max(sizes)
        return self._straight[name]

    def case(self, name: str, kind: str, share: float) -> str:
        """Kills a command after a share of its time, and runs it again.

        Returns:
            What happened at the kill: its exit code.

        Raises:
            AssertionError: a half output, a difference, or a command that fails.
        """
        command, (want, seconds) = COMMANDS[name], self.straight(name)
        cwd = self._fresh(name)
        is_full = kind == "full disk"
        most = int(share * self._largest[name]) if is_full else resource.RLIM_INFINITY
        child = self._start(name, kind, share, most, cwd)
        code = self._strike(child, kind, share, seconds, cwd)
        first = self._log.read_text()
        if is_full and self._log.stat().st_size >= most:
            return "not judged: the log of the command itself was full"
        judge_end(kind, code, first)
        if "clock" in kind:
            change_times(cwd, random.Random(_seed(share)))
        judge_outputs(command, want, cwd)
        self._judge_second_run(command, want, first, cwd)
        if kind.endswith("at a rename"):
            done = (self._directory / "renames").read_text()
            return f"exit code {code} at rename {done} of {self._renames[name]}"
        return f"exit code {code}"

    def _start(self, name: str, kind: str, share: float, most: int, cwd: Path) -> int:
        """Starts the run that a case kills: its process.

        Args:
            name, kind, share: see `case`.
            most: the largest size of a file in bytes.
            cwd: the directory of the outputs.
        """
        seed = _seed(share)
        trouble = next((t for word, t in _TROUBLES.items() if word in kind), None)
        before = trouble and functools.partial(trouble, seed)
        if kind.endswith("at a rename"):
            before = functools.partial(
                watch_renames,
                self._directory / "renames",
                kill_at=1 + seed % max(1, self._renames[name]),
                kill_before=share < 0.5,
            )
        work = run_command(COMMANDS[name], self._inputs, most, before)
        return start(work, cwd, self._log)

    def _strike(
        self, child: int, kind: str, share: float, seconds: float, cwd: Path
    ) -> int:
        """Waits for a share of a command's time and kills it: its exit code."""
        if kind == "full disk" or kind.endswith("at a rename"):
            return finish(child)
        code = wait(child, share * seconds)
        if kind.endswith("vanish") and code is None:
            come_back = vanish(self._inputs if "inputs" in kind else cwd)
            try:
                return finish(child)
            finally:
                come_back()
        for signum in _SIGNALS[kind]:
            if code is None:
                os.killpg(child, signum)
                code = wait(child, random.Random(_seed(share)).choice(_GAPS))
        return finish(child) if code is None else code

    def _judge_second_run(
        self, command: Command, want: dict[str, str], first: str, cwd: Path
    ) -> None:
        """Runs a command again: it ends as one that was not killed.

        Args:
            command: the command.
            want: the state after a run without a kill.
            first: the log of the run that was killed.
            cwd: the directory of the outputs of both runs.
        """
        again = finish(start(run_command(command, self._inputs), cwd, self._log))
        said = self._log.read_text()
        is_there = command.outputs and all((cwd / o).exists() for o in command.outputs)
        refused = again == 1 and "exists; allowed: another" in said and is_there
        assert again == 0 or refused, f"the second run ends with {again}: {said}"
        got = state(cwd)
        if refused:
            # A run with --overwrite would go on from the scores of a killed run.
            got = {k: v for k, v in got.items() if ".work/" not in k}
        if "stopped by SIG" in first:
            # Saved where the signal came; an older checkpoint went instead.
            want, got = last_checkpoints(want), last_checkpoints(got)
        other = differences(want, got)
        assert not other, f"differs from a run without a kill: {other}\n{said}"
        left = [path.name for path in self._directory.glob("cmlm-scratch-*")]
        # A run that is refused at once makes no temporary directory.
        assert refused or not left, f"temporary directories stay: {left}"


def _seed(share: float) -> int:
    """The seed of the draws of a case."""
    return int(share * 1e9)


def judge_end(kind: str, code: int, said: str) -> None:
    """Checks the exit code of a killed run, and what it said."""
    if not _SIGNALS[kind]:
        told = code == 1 and one_line(said)
        if kind == "full disk":
            # The line names a file: an output as it was given, or a path.
            told = told and re.search(r"^error: .*/.*File too large", said, re.M)
        assert code == 0 or told, f"exit code {code} after {kind}: {said}"
        return
    ends = {0}
    for signum in _SIGNALS[kind]:
        ends |= {-signum, 128 + signum}
    assert code in ends, f"exit code {code} after {kind}: {said}"
    if signal.SIGINT in _SIGNALS[kind]:
        # Before `cli.run` begins, Python itself answers with a traceback.
        assert "Traceback" not in said or "cli.run" not in said, said


def judge_outputs(command: Command, want: dict[str, str], cwd: Path) -> None:
    """Checks that the outputs of a killed run are whole if they exist."""
    for output in command.outputs:
        if (cwd / output).exists():
            wanted = {k: v for k, v in want.items() if f"{k}/".startswith(f"{output}/")}
            half = differences(wanted, state(cwd, (output,)))
            assert not half, f"half under a final name: {half}"


def concurrent(campaign: Campaign) -> None:
    """Two evaluations share a --cache_dir: one is refused or waits, none is wrong."""
    command = COMMANDS["evaluate"]
    want, _ = campaign.straight("evaluate")
    cwd = campaign._fresh("evaluate")
    (cwd / "a").mkdir()
    (cwd / "b").mkdir()
    flags = tuple(
        flag.replace("{out}/cache", "{out}/../cache") for flag in command.flags
    )
    both = dataclasses.replace(command, flags=flags)
    logs = [cwd / "log_a", cwd / "log_b"]
    children = [
        start(run_command(both, campaign._inputs), cwd / where, log)
        for where, log in zip("ab", logs, strict=True)
    ]
    codes = [finish(child) for child in children]
    for where, code, log in zip("ab", codes, logs, strict=True):
        if code:
            said = log.read_text()
            assert code == 1 and "is in use by process" in said, said
            child = start(run_command(both, campaign._inputs), cwd / where, log)
            assert finish(child) == 0, log.read_text()
        found = json.loads((cwd / where / "report" / "results.json").read_text())
        straight = json.loads(want["report/results.json"])
        for model, entry in straight["models"].items():
            assert found["models"][model]["scores"] == entry["scores"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the case to start at")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--commands", default=",".join(name.replace(",", ";") for name in COMMANDS)
    )
    parser.add_argument(
        "--kinds", default=";".join(_SIGNALS), help="separated by semicolons"
    )
    given = parser.parse_args()
    kinds = [kind.strip() for kind in given.kinds.split(";")]
    names = [name.strip().replace(";", ",") for name in given.commands.split(",")]
    sys.path.insert(0, str(ROOT))
    from cmlm import cli

    with cli.quiet_imports():
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  (before the forks)

        from cmlm.encoders import opening  # noqa: F401
        from cmlm.training import engine  # noqa: F401
        from export import saved_models  # noqa: F401

        tf.config.set_visible_devices([], "GPU")
    draw, failed = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory(prefix="cmlm-kills-") as directory:
        campaign = Campaign(Path(directory), names)
        for number in range(given.first + given.cases):
            name = names[number % len(names)]
            kind, share = draw.choice(kinds), draw.random() * 1.05
            if number < given.first:
                continue
            try:
                outcome = campaign.case(name, kind, share)
            except AssertionError as error:
                failed += 1
                outcome = f"FAILED: {error}"
            print(f"{number}  {name}  {kind} at {share:.2f}  {outcome}", flush=True)
        if "evaluate" in names:
            concurrent(campaign)
    print(f"{given.cases - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
