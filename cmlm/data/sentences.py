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
from cmlm.common.progress import bar
from cmlm.errors import UserError

# A "sentence" of more characters is a table, a list of names or binary data.
MAX_CHARACTERS = 10_000
_NO_LETTER, _TOO_LONG = "sentence without a letter", f"sentence over {MAX_CHARACTERS:,}"
# Letters of scripts without spaces between words, as a part of a character class: Thai,
# Lao, Khmer, Myanmar, Tibetan, Han, kana.
_HAN_AND_KANA = "぀-ヿ㐀-鿿\uf900-\ufaff"
UNSPACED = f"฀-໿ༀ-႟ក-៿{_HAN_AND_KANA}"
# Their punctuation, in full width.
_WIDE_MARKS = "\u3000-\u303f\uff00-\uff60"
_HANGUL = "가-힣"
# Longest line of raw text; longer paragraphs of wrapped lines are cut.
_MAX_PARAGRAPH_CHARACTERS = 10_000_000

# Double marks and brackets, and single marks that are not apostrophes.
_QUOTES = re.compile(r"""["“”„«»‟‚‹›()\[\]「」『』]|(?<!\w)['‘]|(?<=[.!?…,])['’]""")
# Behind the end of a sentence:
_CLOSING = re.compile(
    # “ ‘ « ‹ open a quotation in English or French, and close one in German, Czech or
    # Danish. The closing one stands before a space or a further mark.
    r"""["”»›'’)\]」』“‘«‹]+(?=[\s,;:.!?]|$)"""
    r"""|[ ]?["”»›'’)\]」』]+(?![^\s\W])"""
    # A Korean particle follows without a space; an opening mark has one before it.
    rf"""|["'”’」』]+(?=[{_HANGUL}])"""
    # Here no space separates the quotation from the next word.
    rf"""|[”’」』]+(?:(?<=[」』])|(?=[{UNSPACED}]))"""
)
_OPENING = "\"'“‘„‚«»‹›([ "
# « and ‹ close a quotation only if it began with one of these: French puts a space
# behind them where they open.
_OPENERS = "„‚»›"
_LONGEST_QUOTATION = 2_000
# A particle binds a quotation to the rest of its sentence: 고 in Korean, と in
# Japanese. Chinese has none, so there a quoted sentence ends.
_PARTICLE = re.compile(f"[とっなをがはのにもでかよへや{_HANGUL}]")
# 'Why?', he said: a sentence does not begin with a comma, but may with a smiley.
_INSIDE = re.compile("[,，；：、،؛]|[;:](?![-')(DPp])")
# `tf.data.Dataset`, 2.15. Chinese and Japanese have no space between sentences, but a
# full stop behind a digit is part of a number there, too, and one behind a Latin letter
# ends an initial or an abbreviation. Thai has abbreviations: พ.ศ.
_IN_WORD = re.compile(
    rf"(?<=[.!?])(?<![{_HAN_AND_KANA}][!?])(?!(?<![A-Za-z]\.)[{_HAN_AND_KANA}])[^\W_]"
    r"|(?<=\d\.)[^\W_]"
)
_UNSPACED_BREAK = re.compile(
    rf"(?<=[{UNSPACED}{_WIDE_MARKS}])\n(?=[{UNSPACED}{_WIDE_MARKS}])"
    # A quotation of whole sentences ends its sentence, unless と or って follows.
    r"(?:(?<![。！？][」』]\n)|(?=[とっ]))"
)
# Abbreviations that sentencex lacks, as patterns of the letters before the full stop;
# the last part stands for all. None of them often ends a sentence: Finnish `eaa.` does,
# and so do units of measure, but hardly in the languages of India.
_ABBREVIATIONS = {
    # A single letter is an initial or an abbreviation, but for the eras ه and م.
    "ar": r"(?<!\d)[ء-لنوي]",
    "bn": "ড|ডা|ডঃ|মো|মোঃ|মোছা|খ্রি|কি|সে|মি|বি|জ|মৃ",
    "fi": "[Kk]s|[Vv]rt|lyh|oik|alk|synt|kuol|engl|ruots|saks|saam|kreik|lat|ven|ransk"
    "|ital|esp|jap|es|tri|[Nn]ro|klo|[Pp]uh|St|Bros",
    "hi": "डॉ|डा|प्रो|श्री|श्रीमती|पं|मि|पू|कि|मी|उदा|कु|रु|रू",
    "mr": r"डॉ|प्रा|श्री|श्रीमती|सौ|पं|कि|कि\.मी|इ\.स|पू|उदा|रु",
    "ta": "திரு|திருமதி|மு|ரூ",
    "te": "డా|కి|మీ|సెం|మి|క్రీ|శ|పూ|సా|సం|శ్రీ|రూ|ప్రొ|ఉదా|నం",
    # No full stop ends a Thai sentence.
    "th": "[ก-ฮ]|ดร|ผศ|รศ|กม|ซม|มม|กก|มก|มล|นพ|พญ|รร|รพ|โทร|บมจ|บจก|หจก",
}
# sentencex takes quadratic time for a long text without spaces, so it reads parts of at
# least so many characters, which end at such a border.
_PART = 5_000
_PART_END = re.compile(
    # sentencex keeps these brackets whole, so no border lies inside.
    rf"[（<{{][^）>}}]{{0,{_LONGEST_QUOTATION}}}+[）>}}]"
    rf"|《[^》]{{0,{_LONGEST_QUOTATION}}}+》"
    rf"|(?P<border>(?:[。！？．]|(?<=[{_HAN_AND_KANA}])[.!?]) *)"
    rf"(?=[{_HAN_AND_KANA}A-Z（《])"
)
# Khmer and Tibetan stops, which sentencex lacks; ។ល។ is "and so on".
_STOP = re.compile("(?<=[។៕།༎])(?![។៕།༎]|ល។)")
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
    has_capitals = text != text.lower()
    abbreviation = _abbreviation(language)
    sentences: list[str] = []
    start = position = 0
    for segment in _segments(hidden, _short_code(language)):
        segment = segment.strip()
        if not segment:
            continue
        position = hidden.index(segment, position) + len(segment)
        end = max(position, start)
        # A closing mark belongs to the sentence before it. A space may precede the mark
        # only if the mark cannot open the next sentence.
        closing = _CLOSING.match(text, end)
        if closing and not _opens(text, closing):
            end = closing.end()
            if _PARTICLE.match(text, end):
                continue
        following = text[end:].lstrip(_OPENING)[:1]
        # 'Stop!' she said: the sentence continues. Georgian letters have no capitals at
        # the beginning of a sentence, and neither has a lower-cased corpus.
        may_tell = has_capitals or (closing and text[position - 1] in "!?,")
        if may_tell and following.islower() and following != following.title():
            continue
        if _INSIDE.match(text, end) or _IN_WORD.match(text, end):
            continue
        if abbreviation and abbreviation.search(text, max(start, end - 10), end):
            continue
        _append(sentences, text[start:end])
        start = end
    _append(sentences, text[start:])
    return [sentence.strip() for sentence in sentences]


def _segments(text: str, code: str) -> Iterator[str]:
    """Yields the segments of sentencex, cut at its missing stops; they are the text."""
    begin = 0
    while begin < len(text):
        end = _part_end(text, begin)
        for segment in sentencex.segment(code, text[begin:end]):
            yield from _STOP.split(segment)
        begin = end


def _part_end(text: str, begin: int) -> int:
    """Returns where the part ends that begins at a place of the text."""
    if len(text) - begin > _PART:
        for match in _PART_END.finditer(text, begin):
            if match["border"] and match.end() >= begin + _PART:
                return match.end()
    return len(text)


@functools.cache
def _short_code(language: str) -> str:
    """The code by which sentencex knows a language: `de` for `deu`."""
    import langcodes

    return langcodes.standardize_tag(language)


@functools.cache
def _abbreviation(language: str) -> re.Pattern[str] | None:
    """The pattern of an abbreviation that ends a text in the language, if any."""
    letters = _ABBREVIATIONS.get(_short_code(language))
    # A word goes on behind a vowel sign, which is not \w.
    return letters and re.compile(rf"(?<![^\s\d.,(\[/\"'“‘«„–-])(?:{letters})\.$")


def _opens(text: str, mark: re.Match[str]) -> bool:
    """Tells whether a mark behind a sentence opens the next one."""
    first, start = mark[0][0], mark.start()
    if first == " ":
        return text[mark.end() : mark.end() + 1].strip() != ""
    begin = max(start - _LONGEST_QUOTATION, 0)
    return first in "«‹" and not any(
        text.find(each, begin, start) >= 0 for each in _OPENERS
    )


def _append(sentences: list[str], piece: str) -> None:
    """Appends a piece of text; one without letters and digits joins the last one."""
    if sentences and not any(map(str.isalnum, piece)):
        sentences[-1] += piece
    elif piece.strip():
        sentences.append(piece)


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
            yield _joined(paragraph)
            paragraph, size = [], 0
    if paragraph:
        yield _joined(paragraph)


def _joined(lines: list[str]) -> str:
    """Joins hard-wrapped lines with a space, unless their script has none."""
    return _UNSPACED_BREAK.sub("", "\n".join(lines)).replace("\n", " ")


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
        The number of `documents` and `sentences`, of dropped sentences by `fault`, of
        `lines` read, and of those with `invalid UTF-8`.

    Raises:
        UserError: the file cannot be read, or has a line of over 10 million characters.
    """
    # TensorFlow, which `split` does not need.
    from cmlm.common import atomic, files

    counts: collections.Counter = collections.Counter()
    with (
        files.open_text(path, _MAX_PARAGRAPH_CHARACTERS) as lines,
        atomic.text(target) as output,
    ):
        read: Iterable[str] = lines
        if progress:
            name = path.rsplit("/", 1)[-1]
            read = bar(None, name, "lines", iterable=lines)
        open_document = False
        for paragraph in paragraphs(read, layout):
            if paragraph is None:
                if open_document:
                    output.write("\n")
                open_document = False
                continue
            for sentence in split(paragraph, language):
                if reason := fault(sentence):
                    counts[reason] += 1
                else:
                    counts["sentences"] += 1
                    counts["documents"] += not open_document
                    open_document = True
                    output.write(f"{sentence}\n")
        counts["lines"], counts["invalid UTF-8"] = lines.number, lines.invalid
    return counts


def fault(sentence: str) -> str | None:
    """Returns why training text leaves out a sentence, or None."""
    if not any(map(str.isalpha, sentence)):
        return _NO_LETTER
    if len(sentence) > MAX_CHARACTERS:
        return _TOO_LONG
    return None


def describe_dropped(counts: Mapping[str, int]) -> str:
    """Describes the dropped sentences among the counts of `write_sentences`."""
    return (
        f"{counts[_NO_LETTER]:,} without a letter, {counts[_TOO_LONG]:,} with more"
        f" than {MAX_CHARACTERS:,} characters"
    )
