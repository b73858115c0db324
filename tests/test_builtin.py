"""The built-in corpus is prose: only sentences of docstrings stay."""

import os
import signal
import time
from pathlib import Path

import commands
import pytest

from cmlm.common import files
from cmlm.data import builtin, docstrings
from cmlm.data.prose import prose

_DOCSTRING = """Compute the weighted average along the specified axis.

The average is taken over the *flattened* array by default [1]_. See
:func:`~numpy.mean` and `the guide <https://example.org>`_ for a plain one.

.. note::
    The sum of the weights must not be zero.

Parameters
----------
a : array_like
    Array containing data to be averaged. It is not a copy.

Returns
-------
The result is a number. It is a scalar.

.. versionadded:: 1.7
    This text belongs to the directive above and goes with it.

Notes
-----
The calculation is::

    This is the code. It is not prose.

A list of what can happen to the data:

- The first item is a sentence of its own.
- short item

>>> average([1, 2])
The output of the code is this line.

=====  ======
Here   There
=====  ======

```
This is the fenced code, and it is not prose.
```

Call the function with numpy.average(x, axis=0) for it.

Args:
  x: The parameter is an array. It is needed.

Raises:
  ValueError: The shapes are not equal.

The ``weights`` are kept as they are.
"""


def test_prose_of_a_docstring():
    assert prose(_DOCSTRING) == [
        "Compute the weighted average along the specified axis.",
        "The average is taken over the flattened array by default.",
        "See mean and the guide for a plain one.",
        "The sum of the weights must not be zero.",
        "The first item is a sentence of its own.",
        "The weights are kept as they are.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "no capital letter at the start of it.",
        "The full stop at the end of this is missing",
        "Too short.",
        "The x[0] = {1: 2} is in the y->z of it.",
        "Ein Satz in einer anderen Sprache zählt hier gar nicht.",
        "The foo_bar and baz_qux of spam_eggs use a_b with c_d.",
        "See https://example.org for what is in the rest of it.",
        "The bracket (is never closed in this sentence.",
    ],
)
def test_no_prose(text):
    assert prose(text) == []


def test_docstrings_come_in_source_order_without_running_the_module(tmp_path):
    filler = " It is long enough to be read, since that takes more than a few words."
    path = tmp_path / "module.py"
    path.write_text(
        f'"""Module.{filler * 2}"""\n'
        "raise RuntimeError\n"
        f'class A:\n    """Class.{filler * 2}"""\n'
        f'    def f(self):\n        """Method.{filler * 2}"""\n'
        f'def g():\n    """Function.{filler * 2}"""\n'
        'def h():\n    """Too short."""\n'
    )
    found = [text.split(".")[0] for text in docstrings._docstrings(str(path))]
    assert found == ["Module", "Class", "Method", "Function"]
    (tmp_path / "broken.py").write_text('"""Text.""" def def')
    assert list(docstrings._docstrings(str(tmp_path / "broken.py"))) == []


def test_the_corpus_is_unique_sentences_in_documents_of_two_or_more(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(docstrings, "_PACKAGES", ())
    # A fifth of the standard library: all of it takes seconds.
    some = docstrings.modules()[::5]
    monkeypatch.setattr(docstrings, "modules", lambda: some)
    path = builtin.python_docs(str(tmp_path))
    with files.open_text(path) as file:
        documents = [text.splitlines() for text in file.read().split("\n\n") if text]
    sentences = [sentence for document in documents for sentence in document]
    assert len(sentences) > 1_000
    assert len(set(sentences)) == len(sentences)
    assert min(map(len, documents)) >= 2
    # The language reference comes first.
    assert "assert statement" in sentences[0]

    def fail():
        raise AssertionError("gathered again")

    monkeypatch.setattr(builtin, "_documents", fail)
    assert builtin.python_docs(str(tmp_path)) == path


def _runs(process: int | str) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_killed_run_leaves_no_process(tmp_path):
    run = int(
        commands.source(
            "import os\n"
            "if run := os.fork():\n"
            "    print(run)\n"
            "else:\n"
            f"    os.chdir({str(tmp_path)!r})\n"
            "    from cmlm.data import builtin\n"
            f"    builtin.python_docs({str(tmp_path)!r})\n"
        )
    )
    children = Path(f"/proc/{run}/task/{run}/children")
    deadline = time.monotonic() + 120
    try:
        # The first of them is Python's own, which cleans up after the others.
        while len(started := children.read_text().split()) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(run, signal.SIGKILL)
    while any(map(_runs, [run, *started])):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not list(tmp_path.glob("*.txt"))
