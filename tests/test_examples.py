"""The notebooks of examples/ run, here on toys; they keep the outputs of a real run."""

import json
import os
import string
import subprocess
import sys
from pathlib import Path

import model_dirs
import pytest

from cmlm.data import vocabulary_file

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
    program = "\n".join("".join(cell["source"]) for cell in code_cells(path))
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={
            **os.environ,
            "CMLM_MODEL": model,
            "CMLM_SOURCE": model,
            "CMLM_STEPS": "2",
            "MPLBACKEND": "agg",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    wanted = "numbers a vector" if "search" in path.stem else "after"
    assert wanted in done.stdout
