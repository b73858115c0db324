"""English prose in the documentation of Python and of installed packages.

It consists of the Python language reference (pydoc_data.topics) and the docstrings of
the standard library and of the packages that this project installs. They are read as
source text; nothing is imported.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator

from cmlm.data.prose import prose

# Installed packages with much prose in their docstrings, the largest first. All other
# packages together have a tenth as much prose and take as long to read.
_PACKAGES = (
    "tensorflow",
    "scipy",
    "sklearn",
    "pandas",
    "keras",
    "numpy",
    "official",
    "matplotlib",
    "tensorflow_datasets",
    "tensorflow_text",
    "tensorflow_model_optimization",
    "tensorflow_hub",
    "PIL",
    "joblib",
    "werkzeug",
)
_SKIPPED_DIRECTORIES = {
    "site-packages",
    "dist-packages",
    "__pycache__",
    "test",
    "tests",
    "testing",
    "idle_test",
    "lib2to3",
    "pydoc_data",
}
_SHORTEST_DOCSTRING = 120  # characters; a shorter one rarely has two sentences
_LEGAL = re.compile(r"(?i)redistribution and use|without warrant|express or implied")


def reference() -> Iterator[list[str]]:
    """Yields the sentences of each topic of the language reference."""
    stdlib = sysconfig.get_paths()["stdlib"]
    topics = os.path.join(stdlib, "pydoc_data", "topics.py")
    if os.path.exists(topics):
        for node in ast.walk(_parse(topics)):
            if isinstance(node, ast.Dict):
                for value in node.values:
                    yield prose(ast.literal_eval(value))


def modules() -> list[str]:
    """The paths of the modules whose docstrings are read, in a fixed order."""
    roots = [sysconfig.get_paths()["stdlib"]]
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        roots.extend(spec.submodule_search_locations or [] if spec else [])
    return [path for root in roots for path in _modules(root)]


def of_module(path: str) -> list[list[str]]:
    """The sentences of each docstring of a module, in source order."""
    # Syntax trees have many nodes but no cycles: garbage collection would take half of
    # the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        return [prose(text) for text in _docstrings(path)]
    finally:
        if collects:
            gc.enable()


def _modules(root: str) -> Iterator[str]:
    """Yields the modules below a directory, tests left out, in a fixed order."""
    for directory, directories, names in os.walk(root):
        directories[:] = sorted(set(directories) - _SKIPPED_DIRECTORIES)
        for name in sorted(names):
            if name.endswith(".py") and not re.search(r"^test_|_test\.py$", name):
                yield os.path.join(directory, name)


def _parse(path: str) -> ast.Module:
    """Parses a module; returns an empty one if that fails."""
    with open(path, "rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other packages
        source = file.read()
        if b'"""' not in source and b"'''" not in source:
            return ast.Module([], [])  # no multi-line docstring
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return ast.Module([], [])


def _docstrings(path: str) -> Iterator[str]:
    """Yields a module's docstrings in source order, except short and legal ones."""
    stack: list[ast.AST] = [_parse(path)]
    while stack:
        node = stack.pop()
        docstring = ast.get_docstring(node, clean=False)
        if (
            docstring
            and len(docstring) >= _SHORTEST_DOCSTRING
            and not _LEGAL.search(docstring)
        ):
            yield inspect.cleandoc(docstring)
        stack.extend(
            child
            for child in reversed(node.body)
            if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        )
