"""What a user meets at the edge of every command, seen from outside the process."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
    exec(_BODY.value)
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
        ("--number=three", ["number", "three"]),
        ("--mode=show", ["mode", "show", "print|import"]),
        ("number=3", ["number=3", "--name=value"]),
        ("--flagfile=nowhere.flags", ["flagfile", "nowhere.flags"]),
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


def test_flagfile_line_without_dashes_does_not_swallow_the_rest(run, tmp_path):
    (tmp_path / "bad.flags").write_text("number=4\n--number=5\n")
    assert_one_error(run("--flagfile=bad.flags"), "number=4")


def test_flagfile_that_is_not_text(run, tmp_path):
    (tmp_path / "bad.flags").write_bytes(b"--number=\xff\n")
    assert_one_error(run("--flagfile=bad.flags"), "UTF-8")


def test_user_error_is_one_line(run):
    result = run("--body=raise UserError('size: 0 is too\\nsmall; 1 to 9')")
    assert_one_error(result, "error: size: 0 is too small; 1 to 9\n")


def test_unexpected_exception_keeps_its_traceback(run):
    result = run("--body=raise ValueError('a bug')")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("ValueError: a bug\n")


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
        ("encode", ["--model=m", "--input=i"], ".npy"),
        ("pcr", ["--model=m", "--text=de=t"], ".npz"),
        ("quality", ["--good=g", "--bad=b"], ".npz"),
    ],
)
def test_an_output_that_exists_is_kept(tmp_path, command, arguments, suffix):
    output = tmp_path / f"output{suffix}"
    output.write_bytes(b"a day's work")
    result = subprocess.run(
        [sys.executable, "-m", f"cmlm.{command}", *arguments, f"--output={output}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert_one_error(result, f"{output} exists", "--overwrite")
    assert output.read_bytes() == b"a day's work"
