"""The programs of benchmarks/: the names and flags that they use and print exist."""

import ast
import importlib
import re
from pathlib import Path

import pytest

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
