"""Some cases of the campaign of damaged inputs, see tests/campaign."""

import dataclasses
import random

import numpy as np
import pytest
from campaign import base as inputs
from campaign import formats, judge, mutations, run

SEED, CASES = 20, 16
# Those that answer within a second; `python -m tests.campaign` draws from all.
QUICK = (
    *("gz", "flagfile", "params", "config.json", "tokenizer.json", "hf vocab.txt"),
    *("safetensors", "export", "export.json", "hub", "vectors"),
)


@pytest.fixture(scope="module")
def base(toy_export, tmp_path_factory):
    directory = tmp_path_factory.mktemp("base")
    inputs.write(directory, toy_export)
    return directory


def test_damaged_inputs_end_in_one_line_or_a_right_result(commands, base):
    cases = list(run.cases(commands, base, SEED, range(CASES), QUICK))
    faulty = [
        f"{case.number} {case.format}, {case.damage}: {case.faults}"
        for case in cases
        if case.faults
    ]
    assert not faulty
    # Or the damage would not have been read.
    assert sum(case.result.code == 1 for case in cases) >= CASES // 2


def test_whole_inputs_are_read(commands, base):
    names = ("flagfile", "params", "vectors")
    assert list(run.refused_whole(commands, base, names)) == []
    (base / "vectors.npy").rename(base / "kept")
    (base / "vectors.npy").write_text("")
    refused = list(run.refused_whole(commands, base, names))
    (base / "kept").rename(base / "vectors.npy")
    assert len(refused) == 1 and "vectors: cmlm.encode ends with 1: " in refused[0]


def test_a_fault_is_noticed(commands, tmp_path):
    """A traceback, a second line, a file outside and a wrong result."""

    def judged(program, right=None):
        (tmp_path / "case.py").write_text(program)
        before = judge.snapshot(tmp_path)
        result = commands.run("case", cwd=tmp_path)
        return judge.faults(result, before, judge.snapshot(tmp_path), (), right)

    fail = "import sys; print('error: x', file=sys.stderr); sys.exit(1)"
    assert judged("") == []
    assert judged(fail) == []
    assert "traceback" in judged("1 / 0")[0]
    assert "0 error lines" in judged("import sys; sys.exit(1)")[0]
    assert (
        "lines after"
        in judged(fail.replace("; sys.e", "; print(1, file=sys.stderr); sys.e"))[0]
    )
    assert "signal 9" in judged("import os; os.kill(os.getpid(), 9)")[0]
    assert "exit code 3" in judged("import sys; sys.exit(3)")[0]
    assert "touched" in judged("open('outside', 'w').close()")[0]
    assert "wrong result" in judged("", lambda: "x")[0]
    large = dataclasses.replace(commands.run("case", cwd=tmp_path), peak_gb=4.1)
    assert judge.faults(large, {}, {}) == ["4.1 GB"]


@pytest.mark.parametrize("hanging", ["while True: pass", "import time; time.sleep(60)"])
def test_a_command_that_hangs_is_ended(commands, tmp_path, hanging):
    (tmp_path / "case.py").write_text(hanging)
    result = commands.run("case", cwd=tmp_path, seconds=0.5)
    assert result.seconds < 10
    assert judge.faults(result, {}, {}) == ["took too long"]


@pytest.mark.parametrize("name", QUICK)
def test_a_seed_gives_the_same_damage_again(base, name):
    path = base / formats.FORMATS[name].damaged[0]
    if path.is_dir():
        path = sorted(p for p in path.rglob("*") if p.is_file())[0]
    content = path.read_bytes()
    changed = 0
    for mutation in dict.fromkeys(formats.FORMATS[name].mutations):
        for seed in range(3):
            try:
                first = mutation(content, random.Random(seed))
            except (ValueError, IndexError, KeyError, TypeError, OSError):
                continue
            assert first == mutation(content, random.Random(seed))
            changed += first != content
    assert changed > 10


def test_vectors_are_checked(tmp_path):
    path = tmp_path / "o.npy"
    assert "missing" in judge.whole_vectors(path)
    np.save(path, np.ones([2, 3], np.float32))
    assert judge.whole_vectors(path) == ""
    np.save(path, np.full([2, 3], np.nan, np.float32))
    assert "finite: False" in judge.whole_vectors(path)
    assert mutations.flip_bit(b"\0", random.Random(0)) != b"\0"
