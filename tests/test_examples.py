"""The notebooks of examples/ run, here on toys; they keep the outputs of a real run."""

import json
import string
from pathlib import Path

import commands
import model_dirs
import pytest

from cmlm.tokenization import vocabulary_file

NOTEBOOKS = sorted((Path(__file__).parent.parent / "examples").glob("*.ipynb"))
# Any text in small letters, letter by letter.
LETTERS = string.ascii_lowercase + string.digits + string.punctuation
VOCAB = [
    *vocabulary_file.SPECIAL_TOKENS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS if letter.isalnum()),
]


def code_cells(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_those_of_one_run_in_order(path):
    cells = code_cells(path)
    counts = [cell["execution_count"] for cell in cells]
    assert counts == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "stream" in kinds and "error" not in kinds
    said = json.dumps([cell["outputs"] for cell in cells])
    assert "Warning" not in said and str(Path.home()) not in said


@pytest.mark.large
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    settings = {"model.max_position_embeddings": 64}
    model = model_dirs.write(tmp_path / "model", vocab=VOCAB, **settings)
    environment = {
        "CMLM_MODEL": model,
        "CMLM_SOURCE": model,
        "CMLM_STEPS": "2",
        "MPLBACKEND": "agg",
    }
    python = commands.eager_python(tmp_path / "python")
    program = ["import os, sys", f"os.environ.update({environment})"]
    program.append(f"sys.executable = {python!r}")
    if "search" not in path.stem:
        # It trains on all of Python's topics, and the search reads some by name.
        program += ["from pydoc_data.topics import topics", "while len(topics) > 20:"]
        program.append("    topics.popitem()")
    program += ["".join(cell["source"]) for cell in code_cells(path)]
    (tmp_path / "cells.py").write_text("\n".join(program), encoding="utf-8")
    done = commands.run("cells", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    wanted = "numbers a vector" if "search" in path.stem else "after"
    assert wanted in done.stdout
