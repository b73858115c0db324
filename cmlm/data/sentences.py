"""Splits raw text files of three layouts into sentences.

The splitter is sentencex, which knows the abbreviations and full stops of some 240
languages. It treats everything between two quotation marks as one sentence, so an
unclosed mark swallows the rest of a dialogue. Therefore `split` hides quotation marks
from sentencex and restores them afterwards.
"""

from __future__ import annotations

import collections
import functools
import re
from collections.abc import Iterable, Iterator, Mapping

import sentencex

from cmlm.common.choices import TEXT_LAYOUTS
from cmlm.common.progress import Bar
from cmlm.errors import UserError

# A "sentence" of more characters is a table, a list of names or binary data.
MAX_CHARACTERS = 10_000
# Longest line of raw text; longer paragraphs of wrapped lines are cut.
_MAX_PARAGRAPH_CHARACTERS = 10_000_000

# Double marks and brackets, and single marks that are not apostrophes.
_QUOTES = re.compile(r"""["“”„«»‟()\[\]「」『』]|(?<!\w)['‘]|(?<=[.!?…,])['’]""")
_CLOSING = re.compile(r"""[ ]?["”»'’)\]」』]+(?![^\s\W])""")
_OPENING = "\"'“‘„«([ "
_HEADING = re.compile(r"^\s*(=+)\s(.+?)\s\1\s*$")


def check_language(code: str, name: str = "--language") -> str:
    """Returns the language code after checking it.

    Languages for which the splitter has only its fallback are languages, too.

    Args:
        code: the code.
        name: where the user has named it, for the message.

    Raises:
        UserError: `code` is not an ISO 639 code in lower case.
    """
    import langcodes

    if not (code.isalpha() and code.islower() and langcodes.tag_is_valid(code)):
        raise UserError(
            f"{name} is {code!r}; allowed: ISO 639 codes in lower case, such as en, de,"
            " zh"
        )
    return code


def split(paragraph: str, language: str = "en") -> list[str]:
    """Splits one paragraph into its sentences.

    Args:
        paragraph: text of one paragraph; runs of white space count as one space.
        language: ISO 639 code of two or three letters; sentencex has a fallback for
            languages without rules.

    Returns:
        The sentences, stripped and not empty. Together they have all characters of the
        paragraph in order, white space aside.
    """
    text = " ".join(paragraph.split())
    hidden = _QUOTES.sub(" ", text)
    sentences: list[str] = []
    start = position = 0
    for segment in sentencex.segment(_short_code(language), hidden):
        segment = segment.strip()
        if not segment:
            continue
        position = hidden.index(segment, position) + len(segment)
        end = max(position, start)
        # A closing mark belongs to the sentence before it. A space may precede the mark
        # only if the mark cannot open the next sentence.
        closing = _CLOSING.match(text, end)
        if closing and not (closing[0][0] == " " and _opens(text, closing)):
            end = closing.end()
        following = text[end:].lstrip(_OPENING)[:1]
        if following.islower():  # 'Stop!' she said: the sentence continues.
            continue
        if text[end - 1] in ".!?" and text[end : end + 1].isalnum():  # tf.data.Dataset
            continue
        _append(sentences, text[start:end].strip())
        start = end
    _append(sentences, text[start:].strip())
    return sentences


@functools.cache
def _short_code(language: str) -> str:
    """The code by which sentencex knows a language: `de` for `deu`."""
    import langcodes

    return langcodes.standardize_tag(language)


def _opens(text: str, mark: re.Match[str]) -> bool:
    """Tells whether a mark after a space opens the next sentence."""
    return text[mark.end() : mark.end() + 1].strip() != ""


def _append(sentences: list[str], sentence: str) -> None:
    """Appends a sentence; one without letters and digits joins the last sentence."""
    if not sentence:
        return
    if sentences and not any(map(str.isalnum, sentence)):
        sentences[-1] += " " + sentence
    else:
        sentences.append(sentence)


def detokenize_wikitext(text: str) -> str:
    """Reverts WikiText's tokenisation: ` @-@ `, ` @,@ `, spaced marks and quotes."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([.,;:!?%)\]}]|'s\b|'(?:t|re|ve|ll|d|m)\b|n't\b)", r"\1", text)
    text = re.sub(r"([(\[{$£€]) ", r"\1", text)
    text = _join_quotes(text)
    text = re.sub(r"(?<= )' (\w[^']*?) '(?=[ .,;:!?]|$)", r"'\1'", text)
    text = re.sub(r"(\w) ' (?=s\b)", r"\1'", text)
    text = re.sub(r"(\w) – (?=\d)", r"\1–", text)
    return re.sub(r"(?<=\d) / (?=\d)", "/", text)


def _join_quotes(text: str) -> str:
    """`" a "` becomes `"a"`.

    A regular expression takes quadratic time for many quotes without an end.
    """
    parts, position = [], 0
    while (start := text.find('" ', position)) >= 0:
        end = text.find(' "', start + 2)
        if end < 0:
            break
        parts += [text[position:start], '"', text[start + 2 : end], '"']
        position = end + 2
    return "".join(parts) + text[position:]


def paragraphs(lines: Iterable[str], layout: str) -> Iterator[str | None]:
    """Reads the paragraphs of a raw text file.

    Args:
        lines: the lines of the file.
        layout: `lines` (one paragraph a line, a blank line ends a document), `wrapped`
            (hard-wrapped lines, a blank line ends a paragraph, the file is one
            document) or `wikitext` (one paragraph a line in WikiText's tokenisation, a
            `= Title =` heading starts a document).

    Yields:
        Paragraphs, and None at the end of each document.

    Raises:
        UserError: `layout` is unknown.
    """
    if layout not in TEXT_LAYOUTS:
        raise UserError(f"layout is {layout!r}; allowed: {', '.join(TEXT_LAYOUTS)}")
    read = {"lines": _lines, "wrapped": _wrapped, "wikitext": _wikitext}[layout]
    yield from read(lines)


def _lines(lines: Iterable[str]) -> Iterator[str | None]:
    for line in lines:
        yield line.strip() or None


def _wrapped(lines: Iterable[str]) -> Iterator[str | None]:
    paragraph: list[str] = []
    size = 0
    for line in lines:
        line = line.strip()
        if line:
            paragraph.append(line)
            size += len(line)
        if paragraph and (not line or size > _MAX_PARAGRAPH_CHARACTERS):
            yield " ".join(paragraph)
            paragraph, size = [], 0
    if paragraph:
        yield " ".join(paragraph)


def _wikitext(lines: Iterable[str]) -> Iterator[str | None]:
    for line in lines:
        line = line.strip()
        heading = _HEADING.match(line)
        # `= = Section = =` is a heading inside a document.
        if heading and not heading[2].startswith("="):
            yield None
        elif line and not heading:
            yield detokenize_wikitext(line)


def write_sentences(
    path: str, target: str, layout: str, language: str, progress: bool = False
) -> collections.Counter:
    """Splits a raw text file into the training format, atomically.

    Args:
        path: raw text, plain or packed; bytes that are not UTF-8 become U+FFFD.
        target: file to write, one sentence a line, a blank line between documents.
        layout: see `paragraphs`.
        language: ISO 639 code.
        progress: show a progress bar.

    Returns:
        The number of `documents` and `sentences`, of dropped sentences with `no letter`
        or `too long` (over MAX_CHARACTERS), and of written sentences with `invalid
        UTF-8`.

    Raises:
        UserError: the file cannot be read, or has a line of over 10 million characters.
    """
    from cmlm.common import files  # Imports TensorFlow, which `split` does not need.

    counts: collections.Counter = collections.Counter()
    with (
        files.open_text(path, _MAX_PARAGRAPH_CHARACTERS) as lines,
        files.atomic_text(target) as output,
    ):
        if progress:
            name = path.rsplit("/", 1)[-1]
            # Short work shows no bar.
            lines = Bar(lines, name, unit=" lines", leave=False, delay=1)
        open_document = False
        for paragraph in paragraphs(lines, layout):
            if paragraph is None:
                if open_document:
                    output.write("\n")
                open_document = False
                continue
            for sentence in split(paragraph, language):
                if not any(map(str.isalpha, sentence)):
                    counts["no letter"] += 1
                elif len(sentence) > MAX_CHARACTERS:
                    counts["too long"] += 1
                else:
                    counts["sentences"] += 1
                    counts["invalid UTF-8"] += "\ufffd" in sentence
                    counts["documents"] += not open_document
                    open_document = True
                    output.write(f"{sentence}\n")
    return counts


def describe_dropped(counts: Mapping[str, int]) -> str:
    """Describes the dropped sentences among the counts of `write_sentences`."""
    return (
        f"{counts['no letter']:,} without a letter, {counts['too long']:,} with more"
        f" than {MAX_CHARACTERS:,} characters"
    )
