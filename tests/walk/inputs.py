"""The inputs that README and docs/ name, cut from a folder of public text.

The folder holds `text/LANGUAGE/*.txt.gz`, one paragraph a line, `text/en/novels/`,
`bitext/en-de/*.tsv.gz`, and `eval/` with the public test sets.
"""

import bz2
import gzip
import io
import itertools
import json
from pathlib import Path
from xml.sax.saxutils import escape

from warcio.warcwriter import WARCWriter

_DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10"
 xml:lang="de"><siteinfo><sitename>Wikipedia</sitename><namespaces>
<namespace key="0" case="first-letter"/></namespaces></siteinfo>%s</mediawiki>"""
_ARTICLE = """<page><title>T%d</title><ns>0</ns><id>%d</id><revision><id>1</id>
<timestamp>2020-01-01T00:00:00Z</timestamp><text>%s</text></revision></page>"""
_FOLDERS = """raw/articles raw/books raw/crawl raw/wiki raw/docs raw/po raw/bitext
raw/news data/en data/de data/en-de data/nli"""


def write(texts: Path, root: Path) -> None:
    """Writes `raw/` and `data/` below `root`, and links `testsets`."""
    for folder in _FOLDERS.split():
        (root / folder).mkdir(parents=True)
    english = _documents(texts / "text/en/wikipedia-mlqa.txt.gz")
    german = _documents(texts / "text/de/wikipedia-mlqa.txt.gz")
    reviews = _documents(texts / "text/en/imdb-reviews.txt.gz")
    paragraphs = "\n\n".join("\n".join(review) for review in reviews[4000:12000])
    (root / "raw/articles/reviews.txt").write_text(paragraphs + "\n", "utf-8")
    for path in sorted((texts / "text/en/novels").glob("*.txt.gz"))[:12]:
        (root / "raw/books" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    _crawl(root / "raw/crawl/a.warc.wet.gz", [*english[:400], *german[:200]])
    _wiki(root / "raw/wiki/de.xml.bz2", german)
    with gzip.open(root / "raw/docs/reviews.jsonl.gz", "wt", encoding="utf-8") as file:
        for review in reviews[:4000]:
            file.write(json.dumps({"content": "\n".join(review)}) + "\n")
    bitext = texts / "bitext/en-de"
    _gettext(root / "raw/po/help.po", bitext / "libreoffice-help.tsv.gz")
    short = bitext / "tatoeba-pairs.tsv.gz"
    (root / "raw/bitext" / short.name).symlink_to(short)
    pairs = [line.split("\t") for line in _lines(bitext / "newstest.tsv.gz")]
    for language, column in (("en", 0), ("de", 1)):
        text = "".join(f"{pair[column]}\n" for pair in pairs[:2000])
        (root / f"raw/news/{language}.txt").write_text(text, encoding="utf-8")
    for language, documents in (("en", english), ("de", german)):
        _sentences(root / f"data/{language}/wikipedia.txt.gz", documents)
        _nli(root / f"data/nli/{language}.tsv", texts / f"eval/xnli/dev-{language}.tsv")
    (root / "data/en-de" / short.name).symlink_to(short)
    (root / "testsets").symlink_to(texts / "eval")


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def _documents(path: Path) -> list[list[str]]:
    """The paragraphs of every document; a blank line ends a document."""
    groups = itertools.groupby(_lines(path), key=lambda line: bool(line.strip()))
    return [list(paragraphs) for has_text, paragraphs in groups if has_text]


def _crawl(path: Path, documents: list[list[str]]) -> None:
    with open(path, "wb") as file:
        writer = WARCWriter(file, gzip=True)
        for number, paragraphs in enumerate(documents):
            page = io.BytesIO("\n".join(paragraphs).encode())
            writer.write_record(
                writer.create_warc_record(f"http://a.org/{number}", "conversion", page)
            )


def _wiki(path: Path, documents: list[list[str]]) -> None:
    articles = [
        _ARTICLE % (number, number, escape("\n\n".join(paragraphs)))
        for number, paragraphs in enumerate(documents, 1)
    ]
    path.write_bytes(bz2.compress((_DUMP % "\n".join(articles)).encode()))


def _gettext(path: Path, bitext: Path) -> None:
    header = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n'
    rows = [line.split("\t") for line in _lines(bitext)[:3000]]
    entries = [
        f"msgid {json.dumps(source, ensure_ascii=False)}\n"
        f"msgstr {json.dumps(target, ensure_ascii=False)}\n"
        for source, target in dict(rows).items()
    ]
    path.write_text("\n".join([header, *entries]), encoding="utf-8")


def _sentences(path: Path, documents: list[list[str]]) -> None:
    """One sentence a line, roughly: a full stop and a space end a sentence."""
    text = "\n\n".join(
        "\n".join(paragraph.replace(". ", ".\n") for paragraph in paragraphs)
        for paragraphs in documents
    )
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write(text + "\n")


def _nli(path: Path, xnli: Path) -> None:
    rows = [line.split("\t") for line in xnli.read_text("utf-8").splitlines()]
    path.write_text("".join("\t".join(row[:3]) + "\n" for row in rows), "utf-8")
