"""English prose in the documentation of Python and of installed packages.

It consists of the Python language reference (pydoc_data.topics) and the docstrings of
the standard library and of the packages that this project installs. They are read as
source text; nothing is imported. Three filters leave English prose: `_prose_blocks`
drops code, doctests, tables and parameter lists, `_clean` removes inline markup, and
`_is_prose` drops sentences that still contain code.
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

from cmlm.data import sentences

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


def prose(text: str) -> list[str]:
    """Returns the clean English sentences of one docstring, in order."""
    return [
        sentence
        for block in _prose_blocks(text)
        for sentence in sentences.split(_clean(block))
        if _is_prose(sentence)
    ]


# ------------------------------------------------------------------ finding docstrings


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


# ------------------------------------------------------------------ filtering prose

# Headings of lists of names, in both usual docstring styles. "Examples" and "Notes" are
# read, because other rules drop their code.
_LIST_SECTION = re.compile(
    r"(?i)^(other )?(parameters?|params|args?|arguments|keyword args|keywords?"
    r"|keyword arguments|returns?|yields?|receives?|raises?|warns?|attributes?"
    r"|methods?|see also|references?|usage|inputs?|outputs?|call arguments"
    r"|(in|out)put shape|properties|fields|options|kwargs|reference|authors?"
    r"|functions|classes|routines|exceptions?)\s*:?\s*$"
)
_UNDERLINE = re.compile(r"^\s*([-=~^*#\"'+.`])\1{2,}\s*$")
_KEPT_DIRECTIVE = re.compile(
    r"(?i)^\s*\.\. (note|warning|tip|important|caution|hint|attention|admonition)::"
)
_BULLET = re.compile(r"^\s*(?:[-*+•]|\(?\d{1,2}[.)]|\(?[a-zA-Z][.)])\s+")
_CODE_LINE = re.compile(
    r"^\s*(?:>>>|\.\.\. |[$%#@] ?\w|In \[|Out\[|\w+(?:\.\w+)*\s*=[^=]|import |from \w+ "
    r"import|def \w+\(|class \w+[(:]|for .*:$|return\b|print\(|:\w[^:`]*:(?:\s|$))"
)
_TABLE_LINE = re.compile(r"\||\+[-=]{2,}|^\s*[-=]{2,}(\s+[-=]{2,})+|\S {3,}\S.* {2,}\S")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _prose_blocks(text: str) -> Iterator[str]:
    """Yields the paragraphs and list items of a docstring that may be prose."""
    block: list[str] = []
    for line in _running_lines(text.expandtabs().splitlines()):
        indent = _indent(line)
        # A new indent inside a block starts a definition, quoted code or a
        # continuation.
        moves = len(block) > 1 and abs(indent - _indent(block[-1])) > 1
        if not line or moves or _BULLET.match(line):
            yield from _as_prose(block)
            block = []
        if line:
            block.append(_BULLET.sub(" " * indent, line))
    yield from _as_prose(block)


def _running_lines(lines: list[str]) -> Iterator[str]:
    """Yields the lines outside of code and lists of names; "" ends a paragraph."""
    dropped_above = -1  # Lines with a larger indent belong to a dropped block.
    section_ends_at = -1  # Inside a list section: the indent of its heading.
    underlined_section = False
    fenced = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        stripped, indent = line.strip(), _indent(line)
        is_fence = stripped.startswith(("```", "~~~"))
        if is_fence:
            fenced = not fenced
        if is_fence or fenced or not stripped:
            yield ""
            continue
        if dropped_above >= 0:
            if indent > dropped_above:
                continue
            dropped_above = -1
        heading = bool(_UNDERLINE.match(following)) and len(stripped) < 80
        if heading or _UNDERLINE.match(line):
            yield ""
            if heading:
                underlined_section = bool(_LIST_SECTION.match(stripped))
                section_ends_at = -1
            continue
        if underlined_section:
            continue
        opens_section = _LIST_SECTION.match(stripped)
        if section_ends_at >= 0:
            if indent > section_ends_at or opens_section:
                continue
            section_ends_at = -1
        if opens_section and stripped.endswith(":"):
            yield ""
            section_ends_at = indent
            continue
        if stripped.startswith(".."):
            yield ""
            if not _KEPT_DIRECTIVE.match(line):
                dropped_above = indent
            continue
        yield line
        if stripped.endswith("::") and not _BULLET.match(line):
            dropped_above = indent


def _as_prose(block: list[str]) -> Iterator[str]:
    """Yields a block as one paragraph unless it looks like code or a table."""
    if not block:
        return
    if any(_CODE_LINE.match(line) or _TABLE_LINE.search(line) for line in block):
        return
    yield " ".join(line.strip() for line in block)


_MARKUP = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r":[\w:+-]+:`~?(?:[\w.]+\.)?([^`<]+?)\s*(?:<[^>`]*>)?`", r"\1"),  # :role:`x`
        (r"`([^`<]+?)\s*<[^>`]*>`_{0,2}", r"\1"),  # `text <target>`_
        (r"!?\[([^\]\[]+)\]\([^)\s]*\)", r"\1"),  # [text](target)
        (r"``\s*(.+?)\s*``", r"\1"),
        (r"`([^`]+)`_{0,2}", r"\1"),
        (r"(?<![\w*])(\*\*?)(?=\S)([^*]+?)(?<=\S)\1(?![\w*])", r"\2"),
        (r"\s*\[[#\w]{1,12}\]_", ""),  # [1]_
        (r"(?<=[.\w)])\s*\[\d{1,2}\](?=\W|$)", ""),  # [1]
        (r"(?<!\w)\"([\w.]+(?:\(\))?)\"", r"\1"),  # pydoc's "name"
        (r"\b(\w[\w.]*\w)\(\)", r"\1"),  # name()
        (r"::\s*$", ":"),
        (r"\\(?=[*_`])", ""),
        (r"\s*--\s*", " - "),
    )
)


def _clean(paragraph: str) -> str:
    """Removes the inline markup of reStructuredText and Markdown from a paragraph."""
    for pattern, replacement in _MARKUP:
        paragraph = pattern.sub(replacement, paragraph)
    return paragraph


_FUNCTION_WORDS = frozenset(
    "a an the is are was be been has have of to in on for with by from as at that this"
    " it its and or not if when which will can may must should you we does do but"
    " these those".split()
)
_NOT_PROSE = re.compile(
    r"[{}<>|\\=@#$^~`*\[\]]|::|\(\)|->|https?:|www\.|__|/\w+/|\.\.\.|TODO|FIXME"
    r"|\S{35}|\b[A-Z]{2,} [A-Z]{2,} [A-Z]{2,}|(?:^|\s)[-+/%&]\S|[a-z]\.[A-Z]|\.py\b"
    r"|\w\(\w|\s[:;,.](?:\s|$)|\s\.\w|\d\s*[-+]\s+\d|Copyright|[Ll]icen[sc]e"
    r"|\bin version \d"
)
_NAME = re.compile(r"\w_\w|\w\.\w|[a-z][A-Z]|^_|\d[a-z]|\w/\w")


def _is_prose(sentence: str) -> bool:
    """Tells whether a text is a complete English sentence without code."""
    words = sentence.split()
    if not 4 <= len(words) <= 80:
        return False
    if not re.match(r"[\"'(]?[A-Z][\w'-]*[,;:]?$", words[0]) or "_" in words[0]:
        return False
    if not re.search(r"[.!?][\"')]*$", sentence) or _NOT_PROSE.search(sentence):
        return False
    if not sentence.isascii() and not sentence.translate(_TYPOGRAPHIC).isascii():
        return False
    if sentence.count("(") != sentence.count(")") or sentence.count('"') % 2:
        return False
    letters = sum(map(str.isalpha, sentence))
    if letters < 0.72 * len(sentence):
        return False
    if sum(bool(_NAME.search(word)) for word in words) > max(1, len(words) // 8):
        return False
    plain = [word.strip(".,;:!?()\"'").lower() for word in words]
    n_function_words = sum(word in _FUNCTION_WORDS for word in plain)
    return n_function_words >= (1 if len(words) < 8 else 2)


_TYPOGRAPHIC = str.maketrans("‘’“”–—…é", "''\"\"--.e")
