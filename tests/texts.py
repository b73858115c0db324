"""Small corpora in the training format, together with what they hold; a vocabulary."""

import gzip
import random
from collections.abc import Iterable
from pathlib import Path

from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.word_pieces import WordPiece


def write(path: Path, text: str | bytes, encoding: str = "utf-8") -> str:
    """Writes a file and the folders above it; a name in .gz packs it."""
    data = text if isinstance(text, bytes) else text.encode(encoding)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def write_lines(path: Path, lines: Iterable[str]) -> str:
    """Does `write` for lines."""
    return write(path, "".join(f"{line}\n" for line in lines))


def word_piece(directory: Path, tokens: Iterable[str]) -> WordPiece:
    """A tokenizer of five special tokens, ids 0 to 4, and of these tokens."""
    lines = [*vocabulary_file.SPECIAL_TOKENS, *tokens]
    return WordPiece(write_lines(directory / "vocab.txt", lines))


def make_corpus(directory, n_files=7, seed=0, documents_a_file=30):
    """Writes files of documents with unique lines; returns paths and the documents."""
    rng = random.Random(seed)
    paths, documents = [], []
    for f in range(n_files):
        text = rng.choice(["", "\n", " \n\n"])
        for d in range(documents_a_file):
            length = rng.choice([1, 1, 2, 3, 7, 40, 300])
            document = [f"file {f} document {d} line {i}" for i in range(length)]
            documents.append(document)
            text += rng.choice(["\n", "\r\n"]).join(document)
            text += "\n" + rng.choice(["\n", "\n\n", " \t\n"])
        suffix = ".txt.gz" if f % 2 else ".txt"
        paths.append(write(directory / f"part-{f}{suffix}", text.rstrip()))
    return paths, documents


def neighbours(documents):
    return [pair for lines in documents for pair in zip(lines, lines[1:], strict=False)]
