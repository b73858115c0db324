"""From raw text to sentences: three layouts of files, one splitter.

The splitting itself is sentencex's, which knows the abbreviations and full stops of
some 240 languages. It takes everything between two quotation marks for one sentence,
though, and a mark that is never closed swallows the rest of a dialogue. So the marks
are hidden from it, and put back where they belong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import sentencex

from cmlm.errors import UserError

LAYOUTS = ("lines", "wrapped", "wikitext")

# Double marks and brackets always; single ones only where they are no apostrophe.
_QUOTES = re.compile(r"""["“”„«»‟()\[\]「」『』]|(?<!\w)['‘]|(?<=[.!?…,])['’]""")
_CLOSING = re.compile(r"""[ ]?["”»'’)\]」』]+(?![^\s\W])""")
_OPENING = "\"'“‘„«([ "
_HEADING = re.compile(r"^\s*(=+)\s(.+?)\s\1\s*$")


def split(paragraph: str, language: str = "en") -> list[str]:
    """Splits one paragraph into its sentences.

    Args:
      paragraph: text of one paragraph; runs of white space count as one space.
      language: ISO 639 code; a language that sentencex does not know is split by
        the rules of its fallback.

    Returns:
      The sentences, stripped, none of them empty. Joined by spaces they give the
      paragraph back.
    """
    text = " ".join(paragraph.split())
    hidden = _QUOTES.sub(" ", text)
    sentences: list[str] = []
    start = position = 0
    for segment in sentencex.segment(language, hidden):
        segment = segment.strip()
        if not segment:
            continue
        position = hidden.index(segment, position) + len(segment)
        end = max(position, start)
        # A closing mark belongs to the sentence it closes. A space may stand between
        # the two only if the mark would otherwise hang in the air.
        closing = _CLOSING.match(text, end)
        if closing and not (closing[0][0] == " " and _opens(text, closing)):
            end = closing.end()
        following = text[end:].lstrip(_OPENING)[:1]
        if following.islower():  # 'Stop!' she said: no sentence starts here.
            continue
        _append(sentences, text[start:end].strip())
        start = end
    _append(sentences, text[start:].strip())
    return sentences


def _opens(text: str, mark: re.Match[str]) -> bool:
    """Whether a mark after a space is the opening one of the next sentence."""
    return text[mark.end() : mark.end() + 1].strip() != ""


def _append(sentences: list[str], sentence: str) -> None:
    """Appends a sentence; a piece without letter or digit joins the one before."""
    if not sentence:
        return
    if sentences and not any(map(str.isalnum, sentence)):
        sentences[-1] += " " + sentence
    else:
        sentences.append(sentence)


def detokenize_wikitext(text: str) -> str:
    """Undoes WikiText's tokenisation: ` @-@ `, ` @,@ `, spaced marks and quotes."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([.,;:!?%)\]}]|'s\b|'(?:t|re|ve|ll|d|m)\b|n't\b)", r"\1", text)
    text = re.sub(r"([(\[{$£€]) ", r"\1", text)
    text = re.sub(r'" (.*?) "', r'"\1"', text)
    text = re.sub(r"(?<= )' (\w[^']*?) '(?=[ .,;:!?]|$)", r"'\1'", text)
    text = re.sub(r"(\w) ' (?=s\b)", r"\1'", text)
    text = re.sub(r"(\w) – (?=\d)", r"\1–", text)
    return re.sub(r"(?<=\d) / (?=\d)", "/", text)


def paragraphs(lines: Iterable[str], layout: str) -> Iterator[str | None]:
    """Reads the paragraphs of a raw text file.

    Args:
      lines: the lines of the file.
      layout: `lines` (one paragraph a line, a blank line ends a document),
        `wrapped` (hard-wrapped lines, a blank line ends a paragraph, the file is one
        document) or `wikitext` (one paragraph a line in WikiText's tokenisation,
        a `= Title =` heading starts a document).

    Yields:
      Paragraphs, and None wherever a document ends.

    Raises:
      UserError: an unknown layout.
    """
    if layout not in LAYOUTS:
        raise UserError(f"layout {layout!r}: allowed are {', '.join(LAYOUTS)}")
    if layout == "wrapped":
        wrapped: list[str] = []
        for line in lines:
            if line.strip():
                wrapped.append(line.strip())
            elif wrapped:
                yield " ".join(wrapped)
                wrapped = []
        if wrapped:
            yield " ".join(wrapped)
        return
    for line in lines:
        line = line.strip()
        if layout == "wikitext":
            heading = _HEADING.match(line)
            if heading:
                # Section headings (`= = Name = =`) are no prose and end nothing.
                if not heading[2].startswith("="):
                    yield None
            elif line:
                yield detokenize_wikitext(line)
        else:
            yield line or None
