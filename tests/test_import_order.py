"""The one direction of imports, and that commands start quickly. Reads the sources.

A new module fails here until it has its place in `ORDER` (or, for a command, calls
`cli.run`): the place is a decision, so it is written down.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# From the ground up. A package stands for all its modules. It may import itself and the
# lines above, not its neighbours on the same line.
ORDER = [
    ["cmlm.errors"],
    ["cmlm.common"],
    ["cmlm.tokenization", "cmlm.mining"],
    ["cmlm.data", "cmlm.modeling"],
    ["cmlm.vocabulary", "cmlm.ngram_lists", "cmlm.preparation"],
    ["cmlm.objectives"],
    ["cmlm.config"],
    ["cmlm.encoders", "cmlm.evaluation"],
    ["cmlm.training", "cmlm.finetuning", "cmlm.mteb"],
]
# These see vectors, never how they were trained: (package, what it may import).
_ANYWHERE = {"cmlm.errors"} | {
    f"cmlm.common.{name}"
    for name in (
        "arrays",
        "atomic",
        "checksums",
        "choices",
        "counts",
        "files",
        "folders",
        "identity",
        "json_files",
        "language_names",
        "locks",
        "machine",
        "numbered_tasks",
        "once",
        "outputs",
        "own_files",
        "path_names",
        "progress",
        "prompts",
        "protocols",
        "scratch",
        "utf8",
        "versions",
    )
}
APART = {
    "cmlm.evaluation": {*_ANYWHERE, "cmlm.common.components", "cmlm.mining"},
    "cmlm.mining": _ANYWHERE,
}
# These touch the training loop of Model Garden.
ORBIT = {"cmlm.training.trainer", "cmlm.training.engine"}

HEAVY = {"tensorflow", "tensorflow_text", "tensorflow_hub", "official", "keras"}
HEAVY |= {"tf_keras", "orbit", "numpy", "sklearn", "scipy", "faiss"}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {
    _module(path): path
    for package in ("cmlm", "export")
    for path in sorted((ROOT / package).rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text("utf-8")) for name, path in SOURCES.items()}


def _imports(name: str) -> list[tuple[str, int]]:
    """All imports of a module, those inside functions too: (module, line)."""
    found = []
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                is_package = SOURCES[name].name == "__init__.py"
                parts = name.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base]).rstrip(".")
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.append((full if full in SOURCES else base, node.lineno))
    return found


def _is_command(name: str) -> bool:
    """Whether the module calls `cli.run(...)`."""
    return any(
        isinstance(node, ast.Call) and ast.unparse(node.func) == "cli.run"
        for node in ast.walk(TREES[name])
    )


COMMANDS = [name for name in SOURCES if _is_command(name)]


def _inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def _place(name: str) -> tuple[int, str] | None:
    """(height, entry of ORDER) of a module, None where it has no place."""
    for height, line in enumerate(ORDER):
        for entry in line:
            if _inside(name, entry):
                return height, entry
    return None


def _where(name: str, line: int) -> str:
    return f"{SOURCES[name].relative_to(ROOT)}:{line}"


def _library() -> list[str]:
    """The modules below the commands; the public face and the landing are not in it."""
    free = {"cmlm", "cmlm.__main__", "cmlm.cli", *COMMANDS}
    return [name for name in SOURCES if _inside(name, "cmlm") and name not in free]


def test_every_module_has_its_place():
    lost = [name for name in _library() if _place(name) is None]
    assert not lost, f"no place in ORDER or among the commands: {lost}"


def test_the_landing_holds_the_commands_and_little_else():
    landing = {name for name in SOURCES if name.count(".") == 1 and name[:4] == "cmlm"}
    modules = {name for name in landing if SOURCES[name].name != "__init__.py"}
    commands = modules & set(COMMANDS)
    assert len(commands) == 10
    assert modules - commands == {
        "cmlm.__main__",
        "cmlm.cli",
        "cmlm.errors",
        "cmlm.mteb",
    }


def _room(name: str) -> str:
    """The file on the landing, or the package, that a module belongs to."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "cmlm" else parts[0]


def test_the_plan_stays_small():
    rooms = {_room(name) for name in SOURCES if name != "cmlm"}
    arrows = {
        (_room(name), _room(imported))
        for name in SOURCES
        if name != "cmlm"
        for imported, _ in _imports(name)
        if _room(imported) in rooms and _room(imported) != _room(name)
    }
    print(f"{len(rooms)} rooms, {len(arrows)} arrows")
    assert len(rooms) <= 36
    assert len(arrows) <= 150


def test_imports_go_one_way():
    wrong = []
    for name in _library():
        place = _place(name)
        for imported, line in _imports(name):
            if place is None or not _inside(imported, "cmlm"):
                continue
            other = _place(imported)
            if other is None or (other[0] >= place[0] and other[1] != place[1]):
                wrong.append(f"{_where(name, line)}: {name} imports {imported}")
    assert not wrong, "against the order:\n" + "\n".join(wrong)


def test_parts_that_stand_apart_see_no_training_code():
    wrong = [
        f"{_where(name, line)}: {name} imports {imported}"
        for package, allowed in APART.items()
        for name in SOURCES
        if _inside(name, package)
        for imported, line in _imports(name)
        if _inside(imported, "cmlm")
        and not any(_inside(imported, entry) for entry in allowed)
        and not _inside(imported, package)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_export_and_only_commands_import_cli():
    wrong = [
        f"{_where(name, line)}: {name} imports {imported}"
        for name in SOURCES
        for imported, line in _imports(name)
        if (_inside(imported, "export") and not _inside(name, "export"))
        or (imported == "cmlm.cli" and name not in {*COMMANDS, "cmlm.__main__"})
    ]
    assert not wrong, "\n".join(wrong)


def test_one_module_picks_keras():
    wrong = []
    for name, tree in TREES.items():
        if name == "cmlm.common.keras":
            continue
        for imported, line in _imports(name):
            parts = imported.split(".")
            if parts[0] in ("keras", "tf_keras") or (
                parts[0] == "tensorflow" and "keras" in parts
            ):
                wrong.append(f"{_where(name, line)}: imports {imported}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr == "keras":
                if ast.unparse(node).split(".")[0] in ("tf", "tensorflow"):
                    wrong.append(f"{_where(name, node.lineno)}: {ast.unparse(node)}")
    assert not wrong, "use `from cmlm.common.keras import keras`:\n" + "\n".join(wrong)


def test_orbit_stays_where_the_training_loop_is():
    wrong = [
        f"{_where(name, line)}: {name} imports {imported}"
        for name in SOURCES
        if name not in ORBIT
        for imported, line in _imports(name)
        if _inside(imported, "orbit")
    ]
    assert not wrong, "\n".join(wrong)


def _run(program: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_commands_import_the_encoders_quietly():
    """tensorflow_text, which they load, warns about the packages that it loads."""
    encoders = []
    for name in COMMANDS:
        quiet = {
            id(inner)
            for node in ast.walk(TREES[name])
            if isinstance(node, ast.With)
            and "cli.quiet_imports" in ast.unparse(node.items[0])
            for inner in ast.walk(node)
        }
        found = [
            node
            for node in ast.walk(TREES[name])
            if isinstance(node, ast.ImportFrom) and node.module == "cmlm.encoders"
            if {"opening", "by_language"} & {alias.name for alias in node.names}
        ]
        encoders += found
        assert all(id(node) in quiet for node in found), name
    assert encoders


def test_importing_the_package_is_cheap():
    result = _run(
        "import cmlm, cmlm.errors, sys, json; print(json.dumps(sorted(sys.modules)))"
    )
    assert not HEAVY & set(json.loads(result.stdout)), result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_quick_and_quiet(command):
    program = f"""
import json, runpy, sys
sys.argv = [{command!r}, "--help"]
try:
    runpy.run_module({command!r}, run_name="__main__", alter_sys=True)
except SystemExit as leaving:
    sys.__stdout__.flush()
    print(json.dumps([leaving.code, sorted(sys.modules)]), file=sys.stderr)
"""
    result = _run(program)
    lines = result.stderr.splitlines()
    assert len(lines) == 1, f"expected nothing on stderr:\n{result.stderr}"
    code, modules = json.loads(lines[0])
    assert code == 0
    heavy = HEAVY & set(modules)
    assert not heavy, f"--help of {command} imports {sorted(heavy)}"
    docstring = ast.get_docstring(TREES[command])
    assert docstring, f"{command} has no docstring: --help shows it"
    assert docstring.splitlines()[0] in result.stdout
