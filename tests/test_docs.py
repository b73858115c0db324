"""README and docs/: what they name exists, and their commands parse.

A page is checked as a reader would use it: links lead somewhere, every flag belongs to
its command, every setting to the configuration, every listed file is there, and tables
that claim to be complete are.
"""

import argparse
import dataclasses
import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import commands
import printed_commands
import pytest
from test_import_order import COMMANDS, SOURCES, _imports
from walk import __main__ as walk_program
from walk import pages as walk

from cmlm.config import loading, recipes
from cmlm.evaluation import catalogue
from cmlm.objectives import OBJECTIVES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "papers").glob("*.md")),
    *sorted((ROOT / "docs" / "results").glob("*.md")),
]
LINKED = [
    *PAGES,
    *sorted((ROOT / "docs" / "log").glob("*.md")),
    *(ROOT / name for name in ("BUILD_NOTES.md", "CHANGELOG.md", "CONTRIBUTING.md")),
]
CONFIGS = sorted((ROOT / "configs").glob("*.flags"))
WORDS_OF_README = 1500


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=_name)


# ------------------------------------------------------------------- reading pages


def _printed_commands(source):
    """The commands of a page or of a configuration's header."""
    if source.suffix == ".md":
        return _fenced_commands(source)
    return printed_commands.found_in(source.read_text("utf-8"))


def _fenced_commands(page: Path) -> list[list[str]]:
    text = "\n".join(block.text for block in walk.blocks(ROOT, _name(page)))
    # A quoted value may go on over lines, as that of --beam_options.
    text = re.sub(
        r"='([^'\n]*\n[^']*)'", lambda m: f"='{' '.join(m[1].split())}'", text
    )
    return [
        words
        for words in printed_commands.found_in(text)
        if words[0].split(".")[0] in _PACKAGES
    ]


_PACKAGES = ("cmlm", "export")


@functools.cache
def _flags(module: str) -> dict[str, tuple[str, list[str]]]:
    """Kind and choices of the flags that a command's --help lists."""
    done = commands.run(module, "--helpxml")
    assert done.stdout.startswith("<?xml"), f"{module}: {done.stderr}"
    return {
        flag.findtext("name"): (
            flag.findtext("type"),
            [choice.text for choice in flag.findall("enum_value")],
        )
        for flag in ElementTree.fromstring(done.stdout).findall("flag")
        if flag.findtext("key") == "yes"
    }


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.M)
    }


# ------------------------------------------------------------------ what holds for all


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= WORDS_OF_README


@pytest.mark.parametrize("page", LINKED, ids=_name)
def test_links_lead_somewhere(page):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        if not other.exists():
            broken.append(target)
        elif anchor and anchor not in _anchors(other):
            broken.append(target)
    assert not broken, f"{_name(page)} links to {broken}"


@pytest.mark.parametrize("page", [*PAGES, *CONFIGS], ids=_name)
def test_files_that_are_named_exist(page):
    if page.name == "extending.md":  # It names files that it adds.
        return
    named = re.findall(
        r"(?<![\w/])(?:configs|benchmarks|tests|docs|cmlm|export)/[\w/]+\.\w+",
        page.read_text("utf-8"),
    )
    missing = {name for name in named if not (ROOT / name).exists()}
    assert not missing, f"{_name(page)} names {sorted(missing)}"


@pytest.mark.parametrize(
    "source",
    [*PAGES, *sorted((ROOT / "configs").rglob("*.flags"))],
    ids=_name,
)
def test_no_output_lies_in_an_input(source):
    # Every command refuses this (`outputs.check`).
    wrong = []
    for module, *words in _printed_commands(source):
        given = [word.partition("=")[::2] for word in words]
        outputs = [value for flag, value in given if flag in _OUTPUTS]
        inputs = [value for flag, value in given if flag not in _OUTPUTS]
        wrong += [
            f"{module}: {output} lies in {path}"
            for output in outputs
            for path in inputs
            if path and f"{output}/".startswith(f"{path}/")
        ]
    assert not wrong, f"{_name(source)}: {wrong}"


_OUTPUTS = ("--output", "--marked_output", "--export_dir")


@pytest.mark.parametrize("source", [*PAGES, *CONFIGS], ids=_name)
def test_flags_belong_to_their_command(source):
    wrong = []
    for module, *words in _printed_commands(source):
        known = _flags(module)
        for word in words:
            if not word.startswith("--"):
                # In headers `...` stands for the rest of a command.
                if word != "...":
                    wrong.append(f"{module} {word}")
                continue
            flag, _, value = word[2:].partition("=")
            if flag == "flagfile":  # absl's own, which its help does not list.
                continue
            kind, choices = known.get(flag, (None, []))
            if kind is None and flag.startswith("no"):
                kind, choices = known.get(flag[2:], (None, []))
                kind = kind if kind == "bool" else None
            if kind is None or (choices and value not in choices):
                wrong.append(f"{module} {word}")
    assert not wrong, f"{_name(source)}: {wrong}"


@each_page
def test_training_commands_make_a_configuration(page):
    for module, *words in _fenced_commands(page):
        if module != "cmlm.train":
            continue
        given = [word.partition("=") for word in words]
        flagfiles = [value for flag, _, value in given if flag == "--flagfile"]
        overrides = []
        experiment = "cmlm/english"
        lines = [
            line
            for path in flagfiles
            for line in (ROOT / path).read_text("utf-8").splitlines()
        ]
        for line in [*lines, *words]:
            flag, _, value = line.partition("=")
            if flag == "--experiment":
                experiment = value
            elif flag == "--params_override":
                overrides.append(value)
        # Raises UserError for a setting or a value that does not exist.
        loading.load(experiment, overrides=overrides)


@each_page
def test_settings_that_are_named_exist(page):
    text = page.read_text("utf-8")
    named = re.findall(
        r"`((?:task|trainer|model|runtime|vocabulary)\.[\w.]+)(?:=[^`]*)?`", text
    )
    configuration = loading.load("cmlm/english") if named else None
    for name in named:
        node = configuration
        for key in name.replace("NAME", "cmlm").split("."):
            fields = {field.name for field in dataclasses.fields(node)}
            assert key in fields, f"{_name(page)} names {name}"
            node = getattr(node, key)


# --------------------------------------------------------------- tables are complete


def _table_names(page: str, heading: str) -> set[str]:
    """What stands in backquotes in the first column of the first table below."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    below = text[text.index(f"\n{heading}\n") :]
    rows = re.search(r"(?:^\|.*\n)+", below, re.M)[0].splitlines()[2:]
    return {
        name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])
    }


def test_a_reader_finds_every_page():
    """README links to each page of docs/, an index to each page of a folder in it."""
    for index in (
        ROOT / "README.md",
        ROOT / "docs" / "papers" / "README.md",
        ROOT / "docs" / "log" / "README.md",
        ROOT / "docs" / "results.md",
    ):
        folder = ROOT / "docs" if index.parent == ROOT else index.parent
        if index.name == "results.md":
            folder = index.with_suffix("")
        pages = {*folder.glob("*.md"), *folder.glob("*/README.md")} - {index}
        names = {str(page.relative_to(index.parent)) for page in pages}
        text = index.read_text("utf-8")
        assert not {name for name in names if f"({name})" not in text}


def test_objectives_are_all_told():
    assert _table_names("training.md", "## Objectives") == set(OBJECTIVES)


def test_families_are_all_told():
    assert _table_names("evaluation.md", "## Tasks") == set(catalogue.FAMILIES)


def test_recipes_are_all_told():
    text = (ROOT / "docs" / "training.md").read_text("utf-8")
    paragraph = text[re.search(r"The recipes are\s", text).start() :].partition("\n\n")[
        0
    ]
    assert re.findall(r"`([^`]+)`", paragraph) == recipes.names()


def test_points_of_the_frontier_stand_in_its_table():
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    section = text.partition("\n## Encoders worth using\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    told = {
        (shape, speed, stsb.partition(" ")[0])
        for _, _, shape, _, speed, stsb, *_ in rows
    }
    for line in (ROOT / "docs" / "results" / "frontier.jsonl").open(encoding="utf-8"):
        point = json.loads(line)
        times = point["times_minilm"]
        speed = "" if times == 1 else f"{times:.2f} times"
        shape = f"{point['layers']}, {point['width']}"
        assert (shape, speed, str(point["stsb_test"])) in told, point


def test_configurations_are_all_told():
    text = (ROOT / "docs" / "training.md").read_text("utf-8")
    start = text.index("## Configurations")
    told = text[start : text.index("## Settings", start)]
    lost = [
        path.name
        for path in CONFIGS
        if path.name not in told and f"_{path.stem.rpartition('_')[2]}`" not in told
    ]
    assert not lost


def test_flags_that_prose_names_exist():
    known = {name for module in COMMANDS for name in _flags(module)}
    known |= {f"no{name}" for name in known}
    known.add("flagfile")  # absl's own, of every command.
    # TensorFlow Serving's.
    known |= {"tensorflow_intra_op_parallelism", "rest_api_timeout_in_ms"}
    for page in PAGES:
        prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.S | re.M)
        if page.name == "cluster.md":  # It tells Beam's options as well.
            continue
        for name in re.findall(r"`--(\w+)", prose):
            assert name in known, f"{_name(page)} names --{name}"


# ---------------------------------------------------------------- walk through pages


def test_a_clone_half_made_is_made_again(monkeypatch, tmp_path):
    def clone(command, check):
        command[-1].mkdir()

    def write(texts, checkout):
        (checkout / "data").mkdir()
        if full:
            raise OSError("disk full")

    monkeypatch.setattr(walk_program.subprocess, "run", clone)
    monkeypatch.setattr(walk_program.inputs, "write", write)
    chosen = argparse.Namespace(directory=tmp_path, texts=tmp_path, minilm=tmp_path)
    full = True
    with pytest.raises(OSError):
        walk_program.prepare(chosen)
    full = False
    checkout = walk_program.prepare(chosen)
    assert checkout == tmp_path / "cmlm" and (checkout / "pretrained/minilm").exists()
    assert not (tmp_path / "cmlm.new").exists()
    assert walk_program.prepare(chosen) == checkout


# ------------------------------------------------------------ exercises of extending

# The most files that each may edit.
EXERCISES = {
    "A pooling": 3,
    "An export signature": 3,
    "An objective": 2,
    "An evaluation task": 2,
    "A published row": 2,
    "An average": 1,
    "A recipe": 2,
}
_AFTER_THEM = """
import os
import sys
from official.core import exp_factory

# This process has imported the code without the changes.
for name in [*sys.modules]:
    if name.partition(".")[0] in ("cmlm", "export"):
        del sys.modules[name]
exp_factory._REGISTERED_CONFIGS.clear()
sys.path.insert(0, os.path.abspath("changed"))

import tensorflow as tf
import cmlm
from cmlm.config import loading
from cmlm.encoders.signatures import SIGNATURES
from cmlm.evaluation import averages, catalogue, published
from cmlm.modeling import pooling
from export import serving

print(cmlm.__file__)
print(float(pooling.pool("sqrt", tf.ones([1, 4, 1]), tf.ones([1, 4]))[0, 0]))
print({row.output for row in SIGNATURES.values()} == set(serving.OUTPUTS))
print([task.name for task in catalogue.select(["sick-r-trial", "entailment"])])
print([row.averages for row in published.ROWS if "BERT base, superv" in row.model])
years = {f"sts{year}": {"spearman": float(year)} for year in range(12, 17)}
print(averages.of(years)["sts/years"])
print(list(loading.load("simcse/unsupervised").task.enabled()))
"""


def test_exercises_work_on_the_code_of_today(tmp_path):
    changed = tmp_path / "changed"
    for name in ("cmlm", "export", "configs"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, changed / name, ignore=ignored)
    text = (ROOT / "docs" / "extending.md").read_text("utf-8")
    for heading, limit in EXERCISES.items():
        section = text[text.index(f"\n## {heading}\n") + 1 :].partition("\n## ")[0]
        diffs = re.findall(r"^```diff\n(.*?)^```", section, re.S | re.M)
        assert diffs, heading
        for diff in diffs:
            touched = re.findall(r"^\+\+\+ b/(.*)$", diff, re.M)
            assert 1 <= len(touched) <= limit, f"{heading}: {touched}"
            done = subprocess.run(
                ["git", "apply", "-"],
                input=diff,
                cwd=changed,
                # Else a repository around the folder would be the one that is changed.
                env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)},
                capture_output=True,
                text=True,
            )
            assert not done.returncode, f"{heading}: {done.stderr}"
    (tmp_path / "after_them.py").write_text(_AFTER_THEM)
    done = commands.run("after_them", cwd=tmp_path)
    assert done.stdout.splitlines() == [
        str(changed / "cmlm" / "__init__.py"),
        "2.0",
        "True",
        "['sick-r-trial', 'snli-auc']",
        "[{'sts': 81.57}]",
        "14.0",
        "['simcse']",
    ], done.stderr


# ---------------------------------------------------------- the picture of the house

_ON_THE_LANDING = {"cmlm", "cli", "errors", "mteb"}


def _room(module: str) -> str:
    package, _, rest = module.partition(".")
    if package == "export" or not rest:
        return package
    name = rest.partition(".")[0]
    return name if (ROOT / "cmlm" / name).is_dir() else "commands"


def _room_imports() -> dict[str, set[str]]:
    """Which rooms a room imports, without those that every room may."""
    graph: dict[str, set[str]] = {}
    for name in SOURCES:
        rest = name.partition(".")[2]
        if name != "export" and (not rest or rest in _ON_THE_LANDING):
            continue
        room = _room(name)
        targets = graph.setdefault(room, set())
        for imported, _ in _imports(name):
            if imported.split(".")[0] not in ("cmlm", "export"):
                continue
            rest = imported.partition(".")[2]
            if rest and rest not in _ON_THE_LANDING and _room(imported) != room:
                targets.add(_room(imported))
    return graph


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found, waiting = set(), list(graph[start])
    while waiting:
        room = waiting.pop()
        if room not in found:
            found.add(room)
            waiting += graph[room]
    return found


def test_picture_of_the_rooms_is_true():
    graph = _room_imports()
    needed = {
        (room, other)
        for room, others in graph.items()
        for other in others
        if not any(other in _reachable(graph, via) for via in others - {other})
    }
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    picture = re.search(r"^```mermaid\n(.*?)^```", text, re.S | re.M)[1]
    assert set(re.findall(r"^ +(\w+)\[", picture, re.M)) == set(graph)
    assert set(re.findall(r"^ +(\w+) --> (\w+)$", picture, re.M)) == needed


# -------------------------------------------------------------------------- the walk


def test_the_walk_runs_every_page_with_commands():
    found = {
        _name(page)
        for page in PAGES
        if any(b.language == "bash" for b in walk.blocks(ROOT, _name(page)))
    }
    # Commands of docs/papers run in test_papers.py; extending.md shows changes of code.
    papers = {page for page in found if page.startswith("docs/papers/")}
    assert set(walk.IN_ORDER) == found - papers - {"docs/extending.md"}


def test_the_walk_shortens_long_blocks_only():
    for page in walk.IN_ORDER:
        for block in walk.blocks(ROOT, page):
            short = block.shortened()
            trained = len(re.findall(r"python -m cmlm\.train ", block.text))
            shorter = len(re.findall(r"trainer\.train_steps=20'", short))
            assert shorter == bool(block.long) * trained, block.name
            assert (short != block.text) == bool(block.long), block.name
