"""The programs of benchmarks/: their names and flags exist, and the runs of claims."""

import ast
import gzip
import importlib
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import commands
import numpy as np
import pytest
from absl import flags

from cmlm.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted((ROOT / "benchmarks").glob("*.py"))
each_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)


def _found(module: str, name: str):
    owner = importlib.import_module(module)
    if not hasattr(owner, name):  # Perhaps a module that nothing has imported yet.
        importlib.import_module(f"{module}.{name}")
    return getattr(owner, name)


@each_program
def test_names_of_cmlm_exist(program):
    nodes = list(ast.walk(ast.parse(program.read_text("utf-8"))))
    imported = {
        alias.asname or alias.name: _found(node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        and node.module.partition(".")[0] in ("cmlm", "export")
        for alias in node.names
    }
    lost = {
        f"{node.value.id}.{node.attr}"
        for node in nodes
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in imported
        and not hasattr(imported[node.value.id], node.attr)
    }
    assert not lost


def _flags(program: str) -> set[str]:
    source = (ROOT / "benchmarks" / program).read_text("utf-8")
    named = re.findall(r'(?:DEFINE_\w+|add_argument)\(\s*"(?:--)?(\w+)"', source)
    shared = _flags("claims.py") if "\nimport claims\n" in source else set()
    return {*named, *(f"no{name}" for name in named), *shared}


@pytest.mark.parametrize(
    "page",
    [
        *(ROOT / "README.md", *PROGRAMS),
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs" / "papers").glob("*.md")),
    ],
    ids=lambda path: path.name,
)
def test_flags_of_printed_commands_exist(page):
    text = re.sub(r"\\+\n\s*", "", page.read_text("utf-8"))
    wrong = [
        f"{program} --{flag}"
        for program, words in re.findall(r"benchmarks/(\w+\.py)([^`\n]*)", text)
        for flag in re.findall(r" --(\w+)", words)
        if flag not in _flags(program)
    ]
    assert not wrong


# ------------------------------------------------------------------ runs of claims

# In place of cmlm.train: writes a checkpoint, and fails beside a file "fail".
_TRAINER = """
import os, sys
(directory,) = (a.partition("=")[2] for a in sys.argv if a.startswith("--model_dir="))
open(os.path.join(directory, "ckpt-1.index"), "w").close()
open(os.path.join(directory, "starts"), "a").write(".")
sys.exit(os.path.exists("fail"))
"""


@pytest.fixture
def claims(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module("claims")
    known = types.SimpleNamespace(
        output=str(tmp_path / "runs"),
        precision="float32",
        results="results.jsonl",
        base=None,
    )
    monkeypatch.setattr(module, "FLAGS", known)
    return module


def _train(claims, *overrides) -> str:
    return claims.train("run", overrides, program=("-c", _TRAINER))


def test_a_row_has_the_cost_of_all_starts(claims, tmp_path):
    (tmp_path / "fail").touch()
    with pytest.raises(subprocess.CalledProcessError):
        _train(claims)
    (tmp_path / "fail").unlink()
    record = tmp_path / "runs" / "run" / ".claim.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps(known | {"seconds": [100, 1000]}))
    claims.run_arm({"arm": "a"}, lambda: _train(claims), lambda _: {"score": 1})
    _train(claims)  # Finished: nothing starts.
    assert (record.parent / "starts").read_text() == ".."
    (row,) = claims.rows("results.jsonl")
    assert list(row)[:2] == ["arm", "precision"] and row["score"] == 1
    assert 100 <= row["train_cpu_seconds"] < 200
    assert 1000 <= row["train_wall_seconds"] < 1100
    # More steps: the increment.
    _train(claims, "trainer.train_steps=2")
    assert claims._cost(record.parent)["train_wall_seconds"] < 100
    assert (record.parent / "starts").read_text() == "..."


@pytest.mark.parametrize("checkpoints", [True, False])
def test_an_unknown_cost_is_left_out(claims, checkpoints):
    """This program was killed in a start, perhaps before the first checkpoint."""
    record = Path(_train(claims)) / ".claim.json"
    known = json.loads(record.read_text())
    record.write_text(json.dumps(known | {"finished": False, "seconds": None}))
    if not checkpoints:
        (record.parent / "ckpt-1.index").unlink()
    assert claims._cost(_train(claims)) == {}


def test_a_run_with_other_flags_is_refused(claims):
    _train(claims)
    claims.FLAGS.precision = "bfloat16"
    with pytest.raises(UserError, match="dtype=float32.* than .*dtype=bfloat16"):
        _train(claims)
    claims.FLAGS.precision = "float32"
    with pytest.raises(UserError, match="rate=1"):
        _train(claims, "rate=1")
    # A run of a program that kept no record of its flags.
    (record,) = Path(claims.FLAGS.output).glob("*/.claim.json")
    record.unlink()
    with pytest.raises(UserError, match="run holds a run without .claim.json"):
        _train(claims)
    # Without a checkpoint, it begins again.
    (record.parent / "ckpt-1.index").unlink()
    _train(claims, "rate=1")


def test_fewer_steps_than_those_of_a_run_are_refused(claims):
    record = Path(_train(claims, "trainer.train_steps=20")) / ".claim.json"
    before = record.read_text()
    with pytest.raises(
        UserError, match="steps is 9, .* of 20 steps; allowed: at least"
    ):
        _train(claims, "trainer.train_steps=9")
    assert record.read_text() == before


def test_rows_of_another_start_are_other_rows(claims):
    case = {"arm": "a", "seed": 0}
    claims.run_start(case, lambda: {"score": 1})
    claims.FLAGS.base = "second"
    assert claims.is_open(case)
    claims.run_arm(case, lambda: _train(claims), lambda _: {"score": 2})
    assert not claims.is_open(case)
    claims.FLAGS.base = None
    claims.run_start(case, lambda: {"score": 3})  # Is there.
    first, second = claims.rows("results.jsonl")
    assert first == {**case, "score": 1}
    assert second["base"] == "second" and second["score"] == 2


def test_a_row_in_another_precision_is_refused(claims):
    case = {"arm": "a", "seed": 0}
    claims.append("results.jsonl", {**case, "precision": "bfloat16"})
    with pytest.raises(UserError, match="is float32; results.jsonl has .* bfloat16"):
        claims.is_open(case)
    claims.FLAGS.precision = "bfloat16"
    assert not claims.is_open(case)


def test_a_row_with_other_settings_is_refused(claims):
    case = {"arm": "a", "seed": 0}
    claims.FLAGS.params_override = ["trainer.train_steps=9"]
    claims.run_arm(case, lambda: _train(claims), lambda _: {"score": 2})
    (row,) = claims.rows("results.jsonl")
    assert row["params_override"] == ["trainer.train_steps=9"]
    assert not claims.is_open(case)
    claims.FLAGS.params_override = []
    with pytest.raises(
        UserError, match="is \\[\\]; results.jsonl has .* with .*steps=9"
    ):
        claims.is_open(case)


def test_an_output_with_files_of_other_inputs_is_refused(claims, monkeypatch, tmp_path):
    def begin(*given):
        known = flags.FlagValues()
        for name in ("teacher", "train_data", "data_dir", "output"):
            flags.DEFINE_string(name, None, "", flag_values=known)
        flags.DEFINE_bool("table", False, "", flag_values=known)
        flags.DEFINE_list("arms", [], "", flag_values=known)
        known(["program", f"--output={tmp_path}/runs", "--data_dir=d", *given])
        monkeypatch.setattr(claims, "FLAGS", known)
        monkeypatch.setattr(flags, "FLAGS", known)
        monkeypatch.setattr(claims.cli, "run", lambda command: command(None))
        # No arm, which runs the start alone, is allowed.
        claims.main(lambda: None, lambda: None, [])

    begin("--teacher=a")
    begin("--teacher=a", "--train_data=b")
    begin("--teacher=a")
    for given in ("--teacher=c", "--train_data=c", "--data_dir=c"):
        with pytest.raises(UserError, match=f"{given[:-2]} is c, .* has files of "):
            begin(given)


def test_a_table_has_a_line_for_each_start(claims, capsys):
    rows = [{"arm": "a", "score": 1}, {"arm": "a", "score": 3}]
    claims.print_table(rows, ("arm",), ("score",))
    claims.print_table([rows[0], rows[1] | {"base": "b"}], ("arm",), ("score",))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| arm | seeds | score |" and len(lines) == 3 + 4
    assert lines[3] == "| base | arm | seeds | score |"
    assert lines[5:] == ["|  | a | 1 | 1 |", "| b | a | 1 | 3 |"]


@pytest.mark.parametrize(
    "program, column",
    [("multilingual_stages", "stsb"), ("distill_claims", "stsb, other languages")],
)
def test_the_mean_of_stsb_is_over_named_languages(program, column, tmp_path):
    """Older rows have one mean, and rows may differ in their languages."""
    results = tmp_path / "results.jsonl"
    old = {"arm": "a", "stsb-multilingual": 50, "amazon": 1, "tatoeba-de": 3}
    new = {"arm": "b", "stsb-multilingual-de": 40, "stsb-multilingual-zh": 60}
    results.write_text(f"{json.dumps(old)}\n{json.dumps(new | {'tatoeba-zh': 7})}\n")
    asked = "import claims, {0} as program; claims.FLAGS(sys.argv)"
    asked += "; claims.scores = lambda *a: print(*a[-1])"
    asked += "; program._score(*['both'] * program._score.__code__.co_argcount)"
    asked += "; program._table()"
    done = _run(tmp_path, asked.format(program), f"--results={results}")
    printed = done.stdout.splitlines()
    stsb = {task for task in printed[0].split() if task.startswith("stsb-m")}
    assert stsb == {
        f"stsb-multilingual-{name}" for name in ("de", "es", "fr", "ru", "zh")
    }
    head, _, *lines = ([c.strip() for c in line.split("|")] for line in printed[1:])
    first, second = (dict(zip(head, line, strict=True)) for line in lines)
    assert first[column] == second[column] == "50"
    assert (first["tatoeba"], second["tatoeba"]) == ("3", "7")
    if program == "multilingual_stages":
        assert first["amazon"] == "1" and second["tatoeba-zh"] == "7"


def test_gains_over_another_wrong_neighbour_are_not_drawn(claims, monkeypatch):
    plots = importlib.import_module("plots")
    row = {"arm": "cmlm", "conditioning_gain": {"100": 0.1}}
    starts = (None, "third", "fourth", "fifth")
    rows = [row | ({"base": base} if base else {}) for base in starts]
    monkeypatch.setattr(plots, "_rows", lambda name: rows)
    (axes,) = plots.conditioning_gain().axes
    zero = 1
    assert len(axes.lines) == 2 + zero


# Prints the cases and settings of a program's arms, and trains nothing.
_DRY = """
import claims, {program}
claims.FLAGS(sys.argv)
claims.train = lambda name, overrides, *_, **others: print(*overrides) or "run"
claims.run = claims.run_start = lambda *_: None
claims.run_arm = lambda case, train, score: (print(case), train())
{program}._run()
"""


def _run(directory: Path, source: str, *flags: str) -> subprocess.CompletedProcess:
    """Runs Python source beside the programs, in a fork of the warm process."""
    folder = str(ROOT / "benchmarks")
    source = f"import sys\nsys.path.insert(0, {folder!r})\n{source}"
    (directory / "beside_the_programs.py").write_text(source)
    return commands.run("beside_the_programs", *flags, cwd=directory)


def _dry(program: str, directory: Path, *flags: str) -> list[str]:
    given = (f"--output={directory}", "--results=none.jsonl", *flags)
    done = _run(directory, _DRY.format(program=program), *given)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "program, flags, objectives",
    [
        ("cmlm_claims", ["--arms=both", "--train_data=a"], ["cmlm", "quickthought"]),
        (
            "distill_claims",
            ["--arms=both", "--teacher=a", "--bitext_data=b"],
            ["bitext", "distill_bitext"],
        ),
        (
            "multilingual_stages",
            ["--arms=s1", "--train_data=a", "--bitext_data=en-de=b"],
            ["cmlm", "bitext"],
        ),
    ],
)
def test_a_seed_changes_the_order_of_the_data(program, flags, objectives, tmp_path):
    *_, last = _dry(program, tmp_path, "--seeds=7", *flags)
    wanted = {f"task.{name}.train_data.seed=7" for name in objectives}
    assert {"trainer.seed=7", *wanted} <= set(last.split())


def test_misad_has_an_arm_in_the_papers_form(tmp_path):
    *_, last = _dry("misad_claims", tmp_path, "--arms=misad_paper", "--seeds=0")
    # A later setting replaces an earlier one.
    settings = dict(setting.split("=", 1) for setting in last.split())
    wanted = {
        "task.misad.form": "paper",
        "task.misad.choice": "model",
        "task.misad.misad_weight": "1",
        "model.pooling": "cls",
        "trainer.optimizer.learning_rate": "5e-5",
    }
    assert wanted.items() <= settings.items()


def test_the_squared_distance_of_misad_weighs_the_width_of_the_start(tmp_path):
    (tmp_path / "params.yaml").write_text("model:\n  hidden_size: 512\n")
    flags = ("--arms=misad_distance", "--seeds=0", f"--model={tmp_path}")
    *_, last = _dry("misad_claims", tmp_path, *flags)
    assert "model.pooling=cls" in last and last.split()[-1].endswith("weight=512")


def test_the_ngram_of_a_composition_is_of_whole_words(tmp_path):
    with gzip.open(tmp_path / "held.txt.gz", "wt") as file:
        file.write("Here the cart is near, and old art is far away\tart is\n")
        file.write("Only the cart is near us on this old road\tart is\n")
        file.write("We see at the end of this road the sea.\tthe sea\n")
    composed = "import misad_claims as m; m.FLAGS(sys.argv); print(m._composed())"
    given = (f"--heldout={tmp_path}/held.txt.gz", f"--output={tmp_path}")
    path = _run(tmp_path, composed, "--results=none.jsonl", *given).stdout.strip()
    assert Path(path).read_text().splitlines() == [
        "here the cart is near, and old art is far away",
        *("art is", "here the cart is near, and old far away"),
        "we see at the end of this road the sea.",
        *("the sea", "we see at the end of this road ."),
    ]


def test_nli_has_its_own_steps(tmp_path):
    flags = ("--arms=nli", "--seeds=0", "--steps=20", "--nli_steps=10")
    lines = _dry("multilingual_stages", tmp_path, *flags)
    assert "'steps': 10}" in lines[0] and "trainer.train_steps=10" in lines[-1]


def test_few_pairs_come_from_all_files_of_a_language(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pairs.tsv").write_text(f"{folder}\tx\n")
    flags = ("--arms=bitext", "--seeds=0", "--pairs=2")
    named = f"--bitext_data=en-de={tmp_path}/a/*.tsv,{tmp_path}/b/*.tsv"
    _dry("multilingual_stages", tmp_path, *flags, named)
    with gzip.open(tmp_path / "bitext-2" / "en-de.tsv.gz", "rt") as file:
        assert sorted(file) == ["a\tx\n", "b\tx\n"]


# In place of libraries that the environment of the tests may lack.
_PEER = """
import json, types, sys
import numpy as np
sys.path.insert(0, "benchmarks")
class SentenceTransformer:
    max_seq_length = 256
    def __init__(self, path, device): pass
    def to(self, precision): return self
    def encode(self, texts, batch_size=1): return np.full([1], self.max_seq_length)
torch = types.SimpleNamespace(set_num_threads=lambda count: None, float32=None)
sys.modules["torch"] = torch
sys.modules["sentence_transformers"] = types.SimpleNamespace(
    SentenceTransformer=SentenceTransformer
)
import inference_torch
inference_torch.main()
"""


def test_torch_cuts_where_our_arms_do(tmp_path):
    (tmp_path / "texts.json").write_text("[]")
    command = [sys.executable, "-c", _PEER, "model", str(tmp_path / "texts.json")]
    asked = json.dumps({"do": "save", "path": str(tmp_path / "vectors.npy")})
    subprocess.run([*command, "1", "float32", "99"], input=asked.encode(), cwd=ROOT)
    assert np.load(tmp_path / "vectors.npy").tolist() == [99]


# --------------------------------------------------------------- errors in one line


def _error(program: str, directory: Path, *flags: str) -> str:
    path = str(ROOT / "benchmarks" / f"{program}.py")
    source = f"import runpy\nrunpy.run_path({path!r}, run_name='__main__')"
    done = _run(directory, source, *flags)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    return line


def test_laser_alone_needs_a_flat_index(tmp_path):
    line = _error("mining", tmp_path, "--arms=laser")
    assert "allowed: --arms=cmlm,laser or --index=flat" in line
    assert "allowed: cmlm, laser" in _error("mining", tmp_path, "--arms=lasre")


@pytest.mark.parametrize(
    "program", [p.stem for p in PROGRAMS if "claims.main(" in p.read_text("utf-8")]
)
def test_an_unknown_arm_is_refused(program, tmp_path):
    line = _error(program, tmp_path, "--arms=lasre", "--results=none.jsonl")
    assert line.startswith("error: --arms is lasre; allowed: ")


def test_words_of_mirror_have_no_arm_with_a_span(tmp_path):
    given = ("--model=a", "--strings=a", "--results=none.jsonl", "--data_dir=none")
    line = _error(
        *("mirror_claims", tmp_path, "--words", "--arms=none,span", *given),
        f"--output={tmp_path}",
    )
    assert "--arms is none,span; allowed: none, dropout, drophead, controlled" in line


def test_too_little_text_for_the_requests_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("a sentence of some length\n" * 9)
    given = (f"--text={tmp_path}/a.txt", "--export=none", "--requests=1,5")
    line = _error("exports", tmp_path, *given, "--rounds=1")
    assert "--text has 9 lines" in line and "allowed: 10 or more" in line


def test_a_student_needs_the_test_sets_that_it_leaves_out(tmp_path):
    given = ("--teacher=none", "--train_data=none", "--results=none.jsonl")
    line = _error(
        *(
            "distill_claims",
            tmp_path,
            f"--data_dir={tmp_path}",
            f"--output={tmp_path}",
            *given,
        )
    )
    assert f"--data_dir={tmp_path} has no text below senteval/" in line
