"""English prose in a docstring: code, tables and markup are dropped.

Three filters leave English prose: `_prose_blocks` drops code, doctests, tables and
parameter lists, `_clean` removes inline markup, and `_is_prose` drops sentences that
still contain code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cmlm.data import sentences

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


def prose(text: str) -> list[str]:
    """Returns the clean English sentences of one docstring, in order."""
    return [
        sentence
        for block in _prose_blocks(text)
        for sentence in sentences.split(_clean(block))
        if _is_prose(sentence)
    ]


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
