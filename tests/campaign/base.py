"""Writes small whole inputs that need no training: text, a run, exports, folders."""

import gzip
import shutil
from pathlib import Path

import model_dirs
import numpy as np
import toys

from cmlm.encoders import components_file
from export import huggingface_folder

FLAGFILE = """\
--experiment=cmlm/english
# a comment
--params_override=model.preset=tiny
--params_override=trainer.train_steps=5
"""


def write(directory: Path, made: model_dirs.Export) -> None:
    """Writes them, given a run and its export."""
    shutil.copytree(made.path, directory / "export")
    shutil.copytree(made.source, directory / "run")
    components_file.save(str(directory / "pcr.npz"), made.components)
    (directory / "hf").mkdir()
    huggingface_folder.write(
        made.trained, str(directory / "hf"), model_dirs.SEQ_LENGTH, False
    )
    text = Path(toys.write_corpus(directory / "corpus.txt")).read_text()
    lines = [line for line in text.splitlines() if line]
    packed = gzip.compress(text.encode(), mtime=0)
    (directory / "corpus.txt.gz").write_bytes(packed)
    for name, last in (("bitext", ""), ("nli", "\tneutral")):
        rows = [f"{a}\t{b}{last}" for a, b in zip(lines, lines[7:], strict=False)]
        (directory / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    (directory / "ngrams.tsv").write_text("the river\t3\nold boat\t2.5\nand small\t1\n")
    (directory / "f.flags").write_text(FLAGFILE)
    shutil.copy(directory / "run" / "params.yaml", directory / "params.yaml")
    (directory / "lines.txt").write_text("".join(f"{line}\n" for line in lines[:20]))
    random = np.random.default_rng(0)
    vectors = random.normal(size=(20, 16)).astype(np.float32)
    np.save(directory / "vectors.npy", vectors)
