"""Mutates a module by cosmic-ray's operators; the tests given should notice.

    pip install cosmic-ray
    python -m tests.campaign.mutants --sample=30 --seed=1 \\
        cmlm/mining/margins.py tests/test_metrics.py [more of pytest's arguments]

Each mutant runs in a fork of one process that has imported TensorFlow, so it costs the
tests' own time. A mutant that hangs counts as killed. Prints every survivor as a diff,
and the score. Annotations are left alone: no program reads them.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.machinery
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OURS = ("cmlm", "export", "tests", "campaign", "__main__")
_SLACK_SECONDS = 60


def mutants(source: str, draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yields the operator and the text of mutants that differ when they run.

    Args:
        source: the text of the module.
        draw: decides their order.
    """
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.operators.provider import OperatorProvider

    nodes, operators = list(ast_nodes(get_ast(source))), OperatorProvider()
    places = [
        (name, number)
        # These two need arguments.
        for name in sorted({*operators} - {"VariableReplacer", "VariableInserter"})
        for number in range(
            sum(len(list(operators[name]().mutation_positions(n))) for n in nodes)
        )
    ]
    draw.shuffle(places)
    seen = {_meaning(source)}
    for name, number in places:
        mutated = mutate_code(source, operators[name](), number)
        try:
            meaning = _meaning(mutated)
        except SyntaxError:
            continue
        if meaning not in seen:
            seen.add(meaning)
            yield name, mutated


def _meaning(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(0)
    return ast.dump(tree)


def run(path: Path, source: str, arguments: list[str], seconds: float) -> int | None:
    """Runs pytest in a fork in which a module has another text.

    Returns:
        pytest's exit code; None if it was not done in time.
    """
    child = os.fork()
    if not child:
        _run(path, source, arguments)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _run(path: Path, source: str, arguments: list[str]) -> None:
    os.setsid()
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    loader = importlib.machinery.SourceFileLoader
    whole = loader.get_code

    def get_code(self, name):
        if Path(self.path) == path:
            return compile(source, self.path, "exec")
        return whole(self, name)

    loader.get_code = get_code
    import pytest

    code = 1
    try:
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *arguments])
    finally:
        os._exit(int(code))


def import_libraries(arguments: list[str]) -> None:
    """Imports here what the tests import, without the modules of the project."""
    with tempfile.NamedTemporaryFile("r") as names:
        child = os.fork()
        if not child:
            import pytest

            pytest.main(["-q", "--collect-only", *arguments])
            Path(names.name).write_text("\n".join(sys.modules))
            os._exit(0)
        os.waitpid(child, 0)
        for name in names.read().split("\n"):
            ours = name.partition(".")[0] in _OURS
            if not ours and not (ROOT / "tests" / f"{name}.py").exists():
                try:
                    importlib.import_module(name)
                except Exception:  # A module that only another may import.
                    pass


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign.mutants",
        usage="%(prog)s [--sample=N] [--seed=N] MODULE TESTS...",
        epilog="TESTS are arguments of pytest.",
    )
    parser.add_argument("module", type=Path, metavar="MODULE", help="file to mutate")
    parser.add_argument("--sample", type=int, default=0, help="0: all mutants")
    parser.add_argument("--seed", type=int, default=1, help="of the mutants' order")
    chosen, tests = parser.parse_known_args()
    path = chosen.module.resolve()
    source = path.read_text("utf-8")
    drawn = mutants(source, random.Random(chosen.seed))
    found = list(itertools.islice(drawn, chosen.sample or None))
    import_libraries(tests)
    start = time.monotonic()
    if run(path, source, tests, 3600) != 0:
        print(f"{chosen.module}: its tests fail without a mutation")
        return 2
    limit = 3 * (time.monotonic() - start) + _SLACK_SECONDS
    killed = 0
    for name, mutated in found:
        if run(path, mutated, tests, limit) == 0:
            lines = (source.splitlines(), mutated.splitlines())
            print(f"survives: {name}")
            for line in list(difflib.unified_diff(*lines, n=0, lineterm=""))[2:]:
                print(f"    {line}", flush=True)
        else:
            killed += 1
    print(f"{chosen.module}: {killed} of {len(found)} killed")
    return int(killed < len(found))


if __name__ == "__main__":
    sys.exit(main())
