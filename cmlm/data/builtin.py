"""A corpus without a download: `builtin:python-docs`, see `docstrings`."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
from collections.abc import Iterator

import tensorflow as tf

from cmlm.common import atomic, machine, progress
from cmlm.data import docstrings

PYTHON_DOCS = "builtin:python-docs"
_FILE_NAME = "python-docs.txt"
# Modules that a process reads at once.
_CHUNK = 64

logger = logging.getLogger(__name__)


def python_docs(directory: str) -> str:
    """Returns the path of the corpus, and writes the corpus on first use.

    Args:
        directory: directory of the file, normally inside model_dir.
    """
    path = os.path.join(directory, _FILE_NAME)
    if tf.io.gfile.exists(path):
        return path
    logger.info("gathering %s, once, in %s", PYTHON_DOCS, path)
    seen: set[str] = set()
    with atomic.text(path) as output:
        for text in _documents():
            document = []
            for sentence in text:
                key = re.sub(r"\W+", " ", sentence.lower())
                if key not in seen:  # Drops repeated licences, inherited docstrings.
                    seen.add(key)
                    document.append(sentence)
            if len(document) > 1:
                output.write("\n".join(document) + "\n\n")
    return path


def _documents() -> Iterator[list[str]]:
    """Yields the sentences of the reference's topics, then those of docstrings."""
    yield from docstrings.reference()
    modules = docstrings.modules()
    # New processes, because a fork of one that runs TensorFlow may hang. Unlike those
    # of concurrent.futures, these end with a killed parent and do not outlive an error.
    # An interrupt is the parent's, or each of them would print a traceback.
    pool = multiprocessing.get_context("spawn").Pool(
        machine.processors(), signal.signal, (signal.SIGINT, signal.SIG_IGN)
    )
    with pool, progress.bar(len(modules), "reading docstrings", "files") as bar:
        for texts in pool.imap(docstrings.of_module, modules, _CHUNK):
            bar.update()
            yield from texts
