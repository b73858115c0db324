"""Draws cases from a seed, runs them and judges them."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from . import judge, later, warm
from .formats import FORMATS, Format


@dataclasses.dataclass(frozen=True)
class Case:
    """One damaged input and what a command did with it.

    Attributes:
        number: its number; with the seed it gives the case again.
        format: a key of `FORMATS`.
        damage: the damaged file and the mutation.
        result: what the command did.
        faults: what it should not have done.
    """

    number: int
    format: str
    damage: str
    result: warm.Result
    faults: list[str]


def write_base(process: warm.Process, directory: Path) -> None:
    """Writes the whole inputs; every case damages one of them."""
    result = process.run(
        "tests.campaign.whole", str(directory), cwd=directory, seconds=600
    )
    if result.code:
        raise RuntimeError(result.stderr)
    for module, *arguments in later.COMMANDS:
        result = process.run(module, *arguments, cwd=directory, seconds=600)
        if result.code:
            raise RuntimeError(f"{module}: {result.stderr}")


def refused_whole(process: warm.Process, base: Path, names: tuple[str, ...]):
    """Yields what a command says of an input that is whole, where it refuses it.

    A format with such a command would test nothing: its damage would not be read.

    Args:
        process: runs the commands.
        base: the folder of `write_base`.
        names: keys of `FORMATS`; empty: all.
    """
    for name in names or FORMATS:
        for module, *arguments in FORMATS[name].commands:
            with tempfile.TemporaryDirectory() as directory:
                _copy(FORMATS[name], base, Path(directory))
                result = process.run(module, *arguments, cwd=directory)
            if result.code:
                yield f"{name}: {module} ends with {result.code}: {result.stderr}"


def cases(
    process: warm.Process,
    base: Path,
    seed: int,
    numbers: range,
    formats: tuple[str, ...] = (),
    keep: Path | None = None,
) -> Iterator[Case]:
    """Runs cases.

    Args:
        process: runs the commands.
        base: the folder of `write_base`.
        seed: with the number, decides everything about a case.
        numbers: the cases to run.
        formats: keys of `FORMATS`; empty: all.
        keep: a directory for the inputs of cases with faults.
    """
    names = formats or tuple(FORMATS)
    weights = [FORMATS[name].weight for name in names]
    for number in numbers:
        draw = random.Random(f"{seed} {number}")
        name = draw.choices(names, weights)[0]
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            damage = _damage(FORMATS[name], base, folder, draw)
            case = _run(process, number, name, damage, folder, draw)
            if case.faults and keep:
                shutil.copytree(folder, keep / f"{seed}-{number}", dirs_exist_ok=True)
        yield case


def _copy(made: Format, base: Path, folder: Path) -> None:
    """Copies the whole inputs of a format."""
    copied = {path.partition("/")[0] for path in made.damaged}
    copied |= {path for path in made.needs if not path.startswith("-")}
    for path in sorted(copied):
        if (base / path).is_dir():
            shutil.copytree(base / path, folder / path)
        else:
            shutil.copy(base / path, folder / path)
    for path in made.needs:
        if path.startswith("-"):
            (folder / path[1:]).unlink()
    (folder / judge.OUT).mkdir()


def _damage(made: Format, base: Path, folder: Path, draw: random.Random) -> str:
    _copy(made, base, folder)
    path = folder / draw.choice(made.damaged)
    if path.is_dir():
        path = draw.choice(sorted(p for p in path.rglob("*") if p.is_file()))
    content = path.read_bytes()
    for _ in range(20):
        mutation = draw.choice(made.mutations)
        try:
            changed = mutation(content, draw)
        # A mutation of YAML has no use for a binary file.
        except (ValueError, IndexError, KeyError, TypeError, OSError):
            continue
        if changed != content:
            break
    path.write_bytes(changed)
    return f"{path.relative_to(folder)} {mutation.__qualname__.split('.')[0]}"


def _run(process, number, name, damage, folder, draw) -> Case:
    made = FORMATS[name]
    module, *arguments = draw.choice(made.commands)
    before = judge.snapshot(folder)
    result = process.run(module, *arguments, cwd=folder)
    right = None if made.right is None else (lambda: made.right(folder))
    found = judge.faults(result, before, judge.snapshot(folder), made.may_write, right)
    return Case(number, name, damage, result, found)
