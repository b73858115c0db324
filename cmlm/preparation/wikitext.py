"""Finds the prose in the wikitext of an article."""

from __future__ import annotations

import re
from collections.abc import Iterable

import mwparserfromhell
from mwparserfromhell import nodes

# The marks of list items, each a tag of its own for mwparserfromhell.
_LIST_MARKS = frozenset("*#:;")
# `strip_code` would keep the text inside these tags.
_NO_PROSE = {
    *("ref", "table", "gallery", "references", "timeline", "imagemap", "mapframe"),
    *("code", "syntaxhighlight", "source", "pre", "chem", "ce", "hiero"),
}
# These tags end a line. Nodes of a tree would take long to replace, and line ends would
# end the item of a list, so a control character stands for them.
_BREAK = re.compile(r"</?[bh]r\b[^<>]*>", re.IGNORECASE)
_MARK = "\x1e"
# `-{zh-hans:软件; zh-hant:軟體}-`: a text for each variant of the language, or one text
# for all of them, behind flags. The flags H, T and - show no text.
_VARIANTS = re.compile(r"-\{(?:([^{}|\[\]]*)\|)?([^{}]*)\}-")
_VARIANT = re.compile(r"\s*[a-z]{2,3}(?:-[a-z]+)*\s*:((?:&#?\w+;|[^;])*)")
_SHOWS_NOTHING = re.compile("[HT-]")
# `File:A.jpg` or `de:Ameise`. Behind a space a colon is part of a title, unless the
# name before it is a namespace of the wiki.
_PREFIX = re.compile(r"\s*(?::\s*)?[^\W\d_][\w ]*:(?! )")
# Dumps do not list the other names of a namespace, such as `Bild` for `Datei`.
_FILE = re.compile(
    r"\.(bmp|djvu|flac|gif|jpe?g|midi?|mp[34]|mpe?g|og[agv]|opus|pdf|png|stl|svg|tiff?"
    r"|wav|web[mp]|xcf)\s*$",
    re.IGNORECASE,
)
_NAMESPACES = frozenset(("file", "image", "category", "media"))


def paragraphs(markup: str, namespaces: Iterable[str] = ()) -> list[str]:
    """The paragraphs of an article: no templates, tables, lists, notes or headings.

    Args:
        markup: the wikitext.
        namespaces: the names of the wiki's namespaces in its language, such as `Datei`;
            links to their pages are dropped. English names are known.
    """
    known = _NAMESPACES.union(map(str.casefold, filter(None, namespaces)))
    markup = _BREAK.sub(_MARK, _VARIANTS.sub(_first_variant, markup))
    code = mwparserfromhell.parse(markup)
    _drop_list_items(code)
    for node in code.ifilter(
        recursive=True, matches=lambda node: _is_no_prose(node, known)
    ):
        try:
            code.remove(node)
        except ValueError:  # inside a node that was already removed
            continue
    lines = (line.split() for line in re.split(f"[\n{_MARK}]", code.strip_code()))
    return [" ".join(words) for words in lines if words]


def _first_variant(found: re.Match[str]) -> str:
    """The text of the first variant; `N-{4-phenyl}-2` is the name of a chemical."""
    flags, text = found.groups()
    variant = _VARIANT.match(text)
    before = found.string[found.start() - 1 : found.start()]
    if flags is None and not variant and before.isascii() and before.isalnum():
        return found[0]
    if _SHOWS_NOTHING.fullmatch((flags or "").strip()):
        return ""
    return (variant[1] if variant else text).strip()


def _tag(node) -> str:
    return str(node.tag).strip().lower() if isinstance(node, nodes.Tag) else ""


def _drop_list_items(code) -> None:
    """Drops everything from the mark of a list item to the end of its line.

    A template or note is one node: one that ends in a later line goes with its item,
    and one that contains list items stays whole.
    """
    kept, in_item = [], False
    for node in code.nodes:
        is_tag = isinstance(node, nodes.Tag)
        in_item |= is_tag and node.wiki_markup in _LIST_MARKS
        if in_item:
            text = str(node) if isinstance(node, nodes.Text) else ""
            _, end, rest = text.partition("\n")
            if not end:
                continue
            node, in_item = nodes.Text(end + rest), False
        elif is_tag and node.contents:
            _drop_list_items(node.contents)
        kept.append(node)
    code.nodes = kept


def _is_no_prose(node, namespaces: frozenset[str]) -> bool:
    if isinstance(node, nodes.Heading) or _tag(node) in _NO_PROSE:
        return True
    if not isinstance(node, nodes.Wikilink):
        return False
    title = str(node.title)
    name, colon, _ = title.strip(": \n").partition(":")
    name = " ".join(name.replace("_", " ").split()).casefold()
    if colon and name in namespaces:
        return True
    # Behind another prefix, the label of a link to another wiki is a part of the
    # sentence; the label of a picture is not.
    is_shown = node.text and not _FILE.search(title)
    return bool(_PREFIX.match(title)) and not is_shown
