"""What a user meets at the edge of every command, seen from outside the process."""

import ast
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import commands
import pytest

from cmlm.common import flagfiles, versions

ROOT = Path(__file__).resolve().parent.parent

COMMAND = '''
"""Prints a number.

It is 100 % a toy.
"""

import logging
import os

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

_NUMBER = flags.DEFINE_integer("number", 1, "The number to print.")
_SHARE = flags.DEFINE_float("share", 0.5, "A share.", 0, 1)
_RATE = flags.DEFINE_float("rate", 1.0, "A number.")
_MODE = flags.DEFINE_enum("mode", "print", ["print", "import"], "What to do.")
_BODY = flags.DEFINE_string("body", "", "Python to run.")


def main(_):
    if _MODE.value == "import":
        with cli.quiet_imports():
            import official.core.base_task
            import official.core.exp_factory
            import official.modeling.multitask.base_trainer
            import official.nlp.modeling
            import official.nlp.tools.export_tfhub_lib
            import tensorflow as tf
            import tensorflow_hub
            import tensorflow_text
        with tf.distribute.MirroredStrategy().scope():
            tf.Variable(1.0)
    exec(_BODY.value, globals())
    print("number", _NUMBER.value)


if __name__ == "__main__":
    cli.run(main)
'''


@pytest.fixture
def run(tmp_path):
    """Runs the toy command with arguments, in tmp_path, on this source tree."""
    command = tmp_path / "toy.py"
    command.write_text(COMMAND.lstrip())

    def run(*arguments, **environment):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TF_CPP")}
        return subprocess.run(
            [sys.executable, str(command), *arguments],
            cwd=tmp_path,
            env={**inherited, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def assert_one_error(result, *parts):
    assert result.returncode == 1, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    for part in parts:
        assert part in result.stderr
    assert result.stdout == ""


def test_success_is_silent_on_stderr(run):
    result = run("--number=3")
    assert (result.returncode, result.stdout, result.stderr) == (0, "number 3\n", "")


def test_help_shows_the_docstring_and_only_our_flags(run):
    result = run("--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert "Prints a number.\n\nIt is 100 % a toy." in result.stdout
    assert "--number: The number to print." in result.stdout
    assert "--verbosity" not in result.stdout
    assert "--pdb" not in result.stdout


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        ("--nubmer=3", ["nubmer", "Did you mean", "number"]),
        ("--number=three", ["flag --number=three: allowed: a whole number\n"]),
        ("--share=half", ["flag --share=half: allowed: a number\n"]),
        ("--share=nan", ["--share is nan; allowed: a finite number"]),
        ("--rate=-inf", ["--rate is -inf; allowed: a finite number"]),
        ("--mode=show", ["mode", "show", "print|import"]),
        ("number=3", ["number=3", "--name=value"]),
        ("--flagfile=nowhere.flags", ["nowhere.flags: there is no such file", "cmlm"]),
        ("--flagfile=configs/en_smal.flags", ["did you mean en_small?"]),
    ],
)
def test_mistake_in_a_flag_is_one_line(run, argument, parts):
    assert_one_error(run(argument), *parts)


def test_flagfile_nests_takes_comments_and_the_later_flag_wins(run, tmp_path):
    (tmp_path / "base.flags").write_text("# all of it\n--number=10\n--mode=print\n")
    (tmp_path / "own.flags").write_text(
        "# a comment\n--flagfile=base.flags\n\n--number=11\n"
    )
    assert run("--flagfile=own.flags").stdout == "number 11\n"
    assert run("--flagfile=own.flags", "--number=12").stdout == "number 12\n"
    assert run("--number=12", "--flagfile=own.flags").stdout == "number 11\n"
    assert run("--flagfile", "own.flags", "--number=12").stdout == "number 12\n"
    assert_one_error(run("--flagfile", "nowhere"), "--flagfile=nowhere: there is no")


def test_a_prompt_in_a_flagfile_keeps_its_last_space(tmp_path):
    path = tmp_path / "own.flags"
    path.write_text("  --prompts=query=query: \r\n--prompt=passage: \n --number=1 \n")
    assert flagfiles.expand([f"--flagfile={path}"]) == [
        *("--prompts=query=query: ", "--prompt=passage: ", "--number=1")
    ]


def test_a_text_that_the_terminal_cannot_show_is_escaped(run):
    done = run(r"--body=print('caf\udce9')")
    assert (done.returncode, done.stdout) == (0, "caf\\udce9\nnumber 1\n")


def test_bytes_that_are_not_utf8_are_refused_except_in_texts(run, tmp_path):
    given = os.fsdecode(b"--body=# caf\xe9")
    said = (
        r"error: --body is # caf\xe9; allowed: UTF-8 (a file needs another name), in "
    )
    assert_one_error(run(given), said)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert_one_error(
        run("--body=# é", **plain), r"--body is # \xe9; allowed", "LC_ALL="
    )
    path = tmp_path / "toy.py"
    source = path.read_text().replace("run(main)", "run(main, texts=['body'])")
    path.write_text(source.replace("exec(_BODY.value, globals())", ""))
    assert run(given).stdout == "number 1\n"


def test_flagfile_line_without_dashes_does_not_swallow_the_rest(run, tmp_path):
    (tmp_path / "bad.flags").write_text("number=4\n--number=5\n")
    assert_one_error(run("--flagfile=bad.flags"), "number=4")


def test_a_flag_of_thousands_of_characters_is_unknown(run):
    # absl looks for similar names by recursion.
    assert_one_error(
        run(f"--numb{'e' * 5000}r=4"), "Unknown command line flag '--numbee"
    )


def test_flagfile_that_is_not_text(run, tmp_path):
    (tmp_path / "bad.flags").write_bytes(b"--number=\xff\n")
    assert_one_error(run("--flagfile=bad.flags"), "UTF-8")


def test_user_error_is_one_line(run):
    result = run("--body=raise UserError('size: 0 is too\\nsmall; 1 to 9')")
    assert_one_error(result, "error: size: 0 is too small; 1 to 9\n")


def test_a_line_that_quotes_a_long_value_is_shortened(run):
    result = run(
        "--body=from cmlm.errors import UserError; raise UserError('x' * 9999)"
    )
    assert_one_error(result, "x... (9,999 characters)")
    assert len(result.stderr) < 2100


def test_names_of_others_do_not_steer_the_terminal(run):
    body = """
from cmlm.errors import UserError
logging.getLogger("cmlm").warning("a\\tb\\nc\\x1b[2J\\x9b1m")
raise UserError("no file matches 'a\\x07\\x1b]0;title\\x07'")
"""
    result = run(f"--body={body}")
    assert result.returncode == 1
    assert result.stderr == (
        "warning: a\tb\nc\\x1b[2J\\x9b1m\n"
        "error: no file matches 'a\\x07\\x1b]0;title\\x07'\n"
    )


def test_unexpected_exception_keeps_its_traceback(run):
    result = run("--body=raise ValueError('a bug')")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("ValueError: a bug\n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("open('/dev/null/x', 'w')", "/dev/null/x: Not a directory"),
        ("raise OSError(28, os.strerror(28), 'a b.npy.tmp-0a1b2c3d')", "a b.npy: No"),
        ("raise PermissionError(13, os.strerror(13), 'x')", "x: Permission denied"),
        ("raise MemoryError", "out of memory"),
        ("import numpy; numpy.empty(1 << 60, numpy.int8)", "out of memory: Unable to"),
    ],
)
def test_an_error_of_the_system_is_one_line(run, body, said):
    assert_one_error(run(f"--body={body}"), f"error: {said}")


@pytest.fixture
def fork(run, tmp_path):
    """Runs the toy command with a body of TensorFlow, in a fork of a warm process."""

    def forked(body):
        return commands.run("toy", f"--body={TENSORFLOW}{body}", cwd=tmp_path)

    return forked


TENSORFLOW = """
with cli.quiet_imports():
    import tensorflow as tf
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "with tf.io.gfile.GFile('/dev/full', 'w') as file: file.write('x')",
            "/dev/full: No space left on device",
        ),
        (
            "tf.train.CheckpointManager(tf.train.Checkpoint(v=tf.Variable(0.)), "
            "'/dev/null/x', 2).save(1)",
            "/dev/null: not a directory",
        ),
        ("tf.io.gfile.makedirs('/dev/null/x')", "/dev/null: not a directory"),
        (
            "tf.io.gfile.exists('http://localhost:8501/v1/models/it')",
            "the path is http://localhost:8501/v1/models/it; allowed: a path without",
        ),
        (
            # As TensorFlow 2.15 and 2.20 write it; a real one needs a network.
            "raise tf.errors.PermissionDeniedError(None, None, 'Error executing an "
            "HTTP request: HTTP response code 403\\n\\t when reading metadata of "
            "gs://mine/a.txt')",
            "gs://mine/a.txt: HTTP response code 403",
        ),
        ("tf.zeros([1 << 20, 1 << 20])", "out of memory: OOM when allocating"),
    ],
)
def test_an_error_of_tensorflow_with_a_file_is_one_line(fork, body, said):
    assert_one_error(fork(body), f"error: {said}")


def test_an_input_that_vanishes_in_a_compiled_loop_is_one_line(fork, tmp_path):
    # TensorFlow names the lines of a source file first, so the function needs a file.
    (tmp_path / "loop.py").write_text("""
import tensorflow as tf

@tf.function
def count(lines):
    total = 0
    for _ in tf.range(2):
        total += tf.size(next(lines))
    return total

count(iter(tf.data.TextLineDataset("/dev/null/x")))
""")
    body = "import runpy; runpy.run_path('loop.py')"
    assert_one_error(fork(body), "error: /dev/null/x: Not a directory")


def test_other_errors_of_tensorflow_keep_their_traceback(fork):
    result = fork("tf.reshape(tf.zeros([2]), [3])")
    assert result.returncode == 1 and "Traceback" in result.stderr


def test_a_second_interrupt_ends_a_command_that_stops_slowly(run):
    body = """
import atexit, signal, time
atexit.register(os.kill, os.getpid(), signal.SIGINT)
raise KeyboardInterrupt
"""
    result = run(f"--body={body}")
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "interrupted\n")


def test_interrupt(run):
    result = run("--body=raise KeyboardInterrupt")
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("argument", ["--number=1", "--help"])
def test_reader_of_stdout_leaves(tmp_path, run, argument):
    # A pipe whose reading end is closed before the command starts.
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(
        [sys.executable, str(tmp_path / "toy.py"), argument],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_broken_pipe_elsewhere_is_not_hidden(run):
    result = run("--body=raise BrokenPipeError('a worker died')")
    assert result.returncode == 1
    assert "a worker died" in result.stderr


def test_messages_of_ours_are_plain_and_those_of_libraries_only_errors(run):
    body = """
        for name in ("cmlm.data", "export", "tensorflow", "absl"):
            logging.getLogger(name).info("info of %s", name)
            logging.getLogger(name).warning("warning of %s", name)
    """
    result = run(f"--body={textwrap.dedent(body)}")
    assert result.stderr.splitlines() == [
        "info of cmlm.data",
        "warning: warning of cmlm.data",
        "info of export",
        "warning: warning of export",
    ]


def test_importing_tensorflow_says_nothing(run):
    result = run("--mode=import")
    assert (result.returncode, result.stdout, result.stderr) == (0, "number 1\n", "")


NOISE = "with cli.quiet_imports(): os.write(2, b'noise\\n')"


def test_quiet_imports_drop_noise_unless_asked_for_it(run):
    assert run(f"--body={NOISE}").stderr == ""
    assert run(f"--body={NOISE}", TF_CPP_MIN_LOG_LEVEL="0").stderr == "noise\n"


def test_quiet_imports_need_no_folder_to_write(run):
    body = "import tempfile\ntempfile._get_default_tempdir = None\n" + NOISE
    assert run(f"--body={body}").stderr == ""


def test_quiet_imports_give_everything_back_when_the_import_fails(run):
    result = run(f"--body={NOISE}; import nothing_of_that_name")
    assert result.stderr.startswith("noise\n")
    assert "No module named 'nothing_of_that_name'" in result.stderr


def test_a_missing_extra_is_named_in_one_line(run):
    body = NOISE.replace("()", "('mine')") + "; import nothing_of_that_name"
    message = "nothing_of_that_name is not installed: pip install 'cmlm[mine]'\n"
    assert run(f"--body={body}").stderr.endswith(f": {message}")
    assert run(f"--body={body}").stderr.count("\n") == 1


def test_stderr_works_after_quiet_imports(run):
    assert run(f"--body={NOISE}\nos.write(2, b'after\\n')").stderr == "after\n"


WITHOUT_STDERR = """
import sys
from cmlm.common import native_log, progress
with native_log.dropped(), progress.bar(1):
    print("a message", file=sys.stderr)
print("a result")
"""


WITHOUT_STDOUT = """
import sys
from cmlm import cli
def body():
    print("a result")
    print("a message", file=sys.stderr)
cli.guard(body)
"""


def test_a_process_without_stderr_works_and_keeps_stdout_clean(tmp_path):
    for program, wanted in [
        (["-c", WITHOUT_STDERR], (0, "a result\n")),
        (["-m", "cmlm", "nothing"], (1, "")),
    ]:
        done = subprocess.run(
            ["sh", "-c", 'exec "$0" "$@" 2>&-', sys.executable, *program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert (done.returncode, done.stdout) == wanted


ON_FULL_DISK = """
import logging, sys
from cmlm import cli
from cmlm.common import native_log, progress
def body():
    with native_log.dropped(), progress.bar(1):
        print("a message", file=sys.stderr, flush=True)
    logging.warning("a warning")
    # More than the buffer of stdout holds reaches the disk at once.
    print(*["a result"] * RESULTS, sep="\\n")
cli.guard(body)
"""


@pytest.mark.parametrize(
    "streams, wanted",
    [
        ("2>/dev/full", (0, "a result\n", "")),
        # A reader that has gone.
        ("2> >(exec true); sleep 0.2", (0, "a result\n", "")),
        # A file at its largest size.
        ("2>log; ulimit -f 0", (0, "a result\n", "")),
        (">/dev/full", (1, "", "error: stdout: No space left on device")),
    ],
)
@pytest.mark.parametrize("results", [1, 9999])
def test_a_full_disk_loses_messages_and_reports_lost_results(
    tmp_path, streams, wanted, results
):
    code, stdout, *last_line = wanted
    done = subprocess.run(
        ["bash", "-c", f'exec {streams}; exec "$0" -c "$1"', sys.executable]
        + [ON_FULL_DISK.replace("RESULTS", str(results))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    last = done.stderr.splitlines()[-1:] or [""]
    assert (done.returncode, done.stdout) == (code, stdout * results)
    assert last == last_line


def test_a_process_without_stdout_works(tmp_path):
    for streams, wanted in ((">&-", "a message\n"), (">&- 2>&-", "")):
        done = subprocess.run(
            [
                *("sh", "-c", f'exec "$0" "$@" {streams}'),
                *(sys.executable, "-c", WITHOUT_STDOUT),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, wanted)


IN_TWO_THREADS = """
import threading
from cmlm.common import native_log
second_is_in, first_is_out = threading.Event(), threading.Event()
def second():
    with native_log.dropped():
        second_is_in.set()
        first_is_out.wait()
thread = threading.Thread(target=second)
with native_log.dropped():
    thread.start()
    second_is_in.wait(0.3)
first_is_out.set()
thread.join()
os.write(2, b'after\\n')
"""


def test_stderr_works_after_two_threads_have_dropped_it(run):
    assert run(f"--body={IN_TWO_THREADS}").stderr == "after\n"


IN_A_THREAD = """
import threading
from cmlm.common import native_log
is_in, is_written = threading.Event(), threading.Event()
def second():
    with native_log.dropped():
        is_in.set()
        is_written.wait()
thread = threading.Thread(target=second)
thread.start()
is_in.wait()
os.write(2, b'a line of the first\\n')
is_written.set()
thread.join()
"""


def test_another_thread_leaves_the_lines_of_the_first(run):
    assert run(f"--body={IN_A_THREAD}").stderr == "a line of the first\n"


def test_folders_named_like_the_packages_do_not_hide_them(tmp_path):
    (tmp_path / "cmlm").mkdir()
    (tmp_path / "export" / "preprocessor").mkdir(parents=True)
    code = (
        "from importlib.util import find_spec as f\n"
        "print(f('cmlm.train').origin, f('export.preprocessor').origin)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    train, preprocessor = result.stdout.split()
    assert train.endswith("cmlm/train.py")
    assert preprocessor.endswith("export/preprocessor.py")


@pytest.mark.parametrize(
    ("command", "arguments", "suffix"),
    [
        ("cmlm.encode", ["--model=m", "--input=i"], ".npy"),
        ("cmlm.pcr", ["--model=m", "--text=de=t"], ".npz"),
        ("cmlm.quality", ["--good=g", "--bad=b"], ".npz"),
        ("cmlm.evaluate", ["--model=m", "--data_dir=d"], ".json"),
        ("cmlm.ngrams", ["--input=i"], ".tsv"),
        ("cmlm.vocab", ["--input=i"], ".txt"),
        ("cmlm.mine", ["--model=m", "--bitext=b"], ".tsv"),
        ("cmlm.finetune", ["--model=m", "--data_dir=d", "--task=rte"], ""),
        ("export.client", ["--server=http://localhost:1", "--text=a"], ".npy"),
    ],
)
def test_an_output_that_exists_is_kept(tmp_path, command, arguments, suffix):
    output = tmp_path / f"output{suffix}"
    output.write_bytes(b"a day's work")
    result = commands.run(command, *arguments, f"--output={output}", cwd=tmp_path)
    assert_one_error(result, f"{output} exists", "--overwrite")
    assert output.read_bytes() == b"a day's work"


@pytest.mark.parametrize(
    ("command", "arguments", "said"),
    [
        (
            "cmlm.vocab",
            "--output=o.txt.gz",
            "a path without the ending of a compressed file",
        ),
        ("cmlm.vocab", "--output=o.json", "--output is o.json; allowed: a name such"),
        ("cmlm.ngrams", "--output=o.tsv.bz2", "of a compressed file, or in .gz"),
        ("cmlm.ngrams", "--output=o --marked_output=o.zip", "--marked_output is o.zip"),
        ("cmlm.vocab", "--output=o --dotless_i --nolower_case", "with --lower_case"),
        ("cmlm.vocab", "--output=o --input=d=t.txt,en=t.txt", "'d=t.txt' in 'd=t.txt,"),
        (
            "cmlm.vocab",
            "--output=o --prune_model=m --size=99 --nolower_case --workers=1",
            "--size=99 is given; allowed: without --prune_model, because pruning",
        ),
        (
            "cmlm.vocab",
            "--output=o --workers=1 --max_text_bytes=99",
            "--max_text_bytes=99 is given; allowed: without --workers and",
        ),
        (
            "cmlm.ngrams",
            "--output=o --unit=pieces --vocab_file=v.txt --nolower_case",
            "--lower_case is False; allowed: True, as v.txt.json says",
        ),
        (
            "cmlm.ngrams",
            "--output=o --vocab_file=v.txt --nolower_case",
            "--lower_case is False; allowed: True, as v.txt.json says",
        ),
        ("cmlm.ngrams", "--output=o --unit=pieces", "--unit is pieces; allowed: with"),
    ],
)
def test_flags_that_would_mislead_are_refused(tmp_path, command, arguments, said):
    (tmp_path / "t.txt").write_text("One here.\nTwo here.\n")
    (tmp_path / "v.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\none\n")
    (tmp_path / "v.txt.json").write_text('{"lower_case": true}')
    before = sorted(tmp_path.iterdir())
    given = ["--input=t.txt", *arguments.split()]
    result = commands.run(command, *given, cwd=tmp_path)
    assert_one_error(result, said, "allowed: ")
    assert sorted(tmp_path.iterdir()) == before


def test_printed_commands_quote_paths():
    """A command that a command prints works as it stands, whatever the path."""
    flag, bare = re.compile(r"--\w+=\W?$"), []
    for path in [*ROOT.glob("cmlm/*.py"), *ROOT.glob("export/*.py")]:
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "print":
                continue
            for node in ast.walk(call):
                parts = node.values if isinstance(node, ast.JoinedStr) else []
                for before, value in zip(parts, parts[1:]):
                    source = ast.unparse(value)
                    text = getattr(before, "value", "")
                    if "FLAGS." in source and flag.search(str(text)):
                        bare.append(f"{path.name}: {source}")
    assert not [each for each in bare if "shlex.quote" not in each]


def test_the_version_is_one_line():
    result = commands.run("cmlm", "--version")
    assert result.stdout == f"cmlm {versions.VERSION}\n" and not result.stderr


@pytest.mark.parametrize(
    "command, arguments, missing",
    [
        *((f"cmlm.{name}", "", "input") for name in ("vocab", "ngrams", "prepare")),
        *((f"cmlm.{name}", "", "model") for name in ("encode", "evaluate", "pcr")),
        ("cmlm.vocab", "--input=t", "output"),
        ("cmlm.quality", "", "good"),
        ("cmlm.quality", "--good=g --bad=b", "output"),
        ("cmlm.pcr", "--model=m", "output"),
        ("cmlm.evaluate", "--model=m", "data_dir"),
        ("cmlm.finetune", "", "model"),
        ("cmlm.finetune", "--model=m", "task"),
        ("cmlm.finetune", "--model=m --task=rte", "data_dir"),
        ("cmlm.finetune", "--model=m --predict=p.tsv", "output"),
        ("cmlm.mine", "--source=s", "output"),
        ("cmlm.mine", "--source=s --output=o.tsv", "target"),
        ("cmlm.mine", "--bitext=t.tsv --output=o.tsv", "model"),
        ("cmlm.train", "", "model_dir"),
        ("export.client", "", "server"),
        ("export.serve", "", "model"),
        ("export.tfhub", "--model_dir=m", "export_dir"),
    ],
)
def test_a_missing_flag_is_named_with_what_it_takes(
    tmp_path, command, arguments, missing
):
    (tmp_path / "t.tsv").write_text("a\tb\n")
    result = commands.run(command, *arguments.split(), cwd=tmp_path)
    assert_one_error(result, f"--{missing} is not given; allowed: ")


# The outputs of every command that writes, with an input that each would damage.
DAMAGING = [
    ("cmlm.train", "--train_data=D/*.txt", "--model_dir=D"),
    ("cmlm.train", "--train_data=en=t.txt,de=D/a.txt", "--model_dir=L"),
    ("cmlm.encode", "--model=m --input=t.npy", "--output=t.npy"),
    ("cmlm.encode", "--model=best:M --input=t.txt", "--output=M/v.npy"),
    ("cmlm.evaluate", "--model=m --data_dir=D", "--output=D/report"),
    ("cmlm.evaluate", "--model=bow:M --data_dir=d", "--output=M"),
    ("cmlm.evaluate", "--model=m --data_dir=D", "--sentences=D/a.txt"),
    ("cmlm.evaluate", "--model=m --data_dir=D", "--cache_dir=D"),
    ("cmlm.evaluate", "--model=m --data_dir=d --tasks=sts:t.npy", "--output=t.npy"),
    ("cmlm.finetune", "--model=M --data_dir=d --task=rte", "--output=M"),
    ("cmlm.prepare", "--input=D/*.txt", "--output=D"),
    ("cmlm.prepare", "--input=t.txt --remove_sentences_of=D/*.txt", "--output=L"),
    ("cmlm.vocab", "--input=D/a.txt,t.txt", "--output=t.txt"),
    ("cmlm.vocab", "--input=t.txt --prune_model=best:M", "--output=M"),
    ("cmlm.ngrams", "--input=D/a.txt", "--output=D/a.txt"),
    ("cmlm.ngrams", "--input=D/a.txt --output=o", "--marked_output=D"),
    ("cmlm.quality", "--good=D/*.txt --bad=t.npz", "--output=t.npz"),
    ("cmlm.pcr", "--model=m --text=de=t.npz", "--output=t.npz"),
    ("cmlm.mine", "--model=m --bitext=t.tsv", "--output=t.tsv"),
    ("cmlm.mine", "--model=m --source=t.txt --target=t.scores", "--output=t.tsv"),
    ("cmlm.mine", "--model=m --bitext=D/a.txt --output=o.tsv", "--work_dir=D"),
    ("export.tfhub", "--model_dir=M", "--export_dir=M"),
    ("export.tfhub", "--model_dir=M", "--export_dir=M/export"),
    ("export.tfhub", "--from=D", "--export_dir=L"),
    ("export.huggingface", "--model_dir=M", "--output=M/"),
    ("export.huggingface", "--model_dir=M --checkpoint=M/ckpt-3", "--output=."),
    ("export.client", "--server=http://localhost:1 --input=t.npy", "--output=t.npy"),
]


@pytest.mark.parametrize("command", dict.fromkeys(case[0] for case in DAMAGING))
def test_no_command_damages_its_inputs(tmp_path, command):
    files = ["D/a.txt", "t.txt", "t.npy", "t.npz", "t.tsv", "t.scores"]
    files += ["M/params.yaml", "M/ckpt-3.index", "d/x"]
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a day's work\n")
    (tmp_path / "L").symlink_to("D")
    for _, arguments, output in [case for case in DAMAGING if case[0] == command]:
        given = [*arguments.split(), output]
        if command != "cmlm.train":
            given.append("--overwrite")
        result = commands.run(command, *given, cwd=tmp_path)
        assert_one_error(result)
        said = "is the input|contains|lies in|the folder of a run|is an encoder"
        assert re.search(said, result.stderr), given
    there = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert there == {tmp_path / name for name in files}
    assert all((tmp_path / name).read_text() == "a day's work\n" for name in files)
