"""Language agnosticity: vectors should not depend on the language of a sentence.

Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 5.2 and figure 2: the same
sentences in several languages form one pool, and each sentence searches the pool for
its nearest neighbours. If vectors did not depend on language, the search would find
every language equally often. Every score is measured before and after principal
component removal (PCR).

The pool holds the first sentence of each test pair of PAWS-X (Yang et al., 2019,
https://arxiv.org/abs/1908.11828) that all 7 languages translate, 1,936 of 2,000. Yang
et al. give neither the number of neighbours nor the sentences that the components are
fitted on. This module takes 10 neighbours and fits the components on the development
files. Development and test files share no pair, but some first sentences.
With the user's own files it fits the components on every second line and pools the
other lines; components fitted on the pool itself would push its halves apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cmlm.common import arrays
from cmlm.common.components import without_component
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.evaluation import classifier, metrics, parsing
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import base
from cmlm.mining import exact

_NEIGHBOURS = 10
# Sentences in the map of a report, each in every language.
_MAPPED = 40
# Stands in PAWS-X for a missing translation; its authors ask users to remove it.
_UNTRANSLATED = "NS"
_LABELS = {"0": 0, "1": 1}


@dataclasses.dataclass
class Pool:
    """The same sentences in several languages.

    Attributes:
        texts: [n] for each language; equal rows have the same meaning.
        fitted: for each language, the sentences that its component is fitted on.
    """

    texts: dict[str, list[str]]
    fitted: dict[str, list[str]]


class LanguageAgnosticity(base.Task[Pool]):
    """Scores a pool of sentences and computes the data of its figures."""

    main_metric = "other_language"
    smaller_is_better = ("same_language", "language_probe")
    not_ranked = ("cosine",)
    protocol = (
        f"share of other languages among the {_NEIGHBOURS} nearest by cosine, x 100; "
        "pcr: first component of each language removed, fitted on other sentences"
    )

    def sentences(self, data: Pool) -> Iterable[str]:
        for texts in (*data.texts.values(), *data.fitted.values()):
            yield from texts

    def score(self, data: Pool, vectors: base.Vectors) -> dict[str, float]:
        scores = {}
        for suffix, parts in self._before_and_after(data, vectors).items():
            matrix, nearest = neighbour_languages(parts, _NEIGHBOURS, 1)
            same = 100 * float(np.mean(np.diag(matrix)))
            within, across = similarities(parts)
            scores |= {
                f"other_language{suffix}": 100 - same,
                f"same_language@{_NEIGHBOURS}{suffix}": same,
                f"same_language@1{suffix}": 100 * float(np.mean(np.diag(nearest))),
                f"language_probe{suffix}": probe(parts, self.seeds[0]),
                f"cosine_within{suffix}": within,
                f"cosine_across{suffix}": across,
                f"cosine_gap{suffix}": within - across,
            }
        return scores

    def figures(self, data: Pool, vectors: base.Vectors) -> dict[str, Any]:
        drawn: dict[str, Any] = {"languages": list(data.texts)}
        for suffix, parts in self._before_and_after(data, vectors).items():
            name = "after" if suffix else "before"
            places = metrics.plane([part[:_MAPPED] for part in parts.values()])
            (matrix,) = neighbour_languages(parts, _NEIGHBOURS)
            drawn[name] = {
                "neighbours": matrix.tolist(),
                "map": dict(zip(parts, places, strict=True)),
            }
        return drawn

    def _before_and_after(
        self, data: Pool, vectors: base.Vectors
    ) -> dict[str, dict[str, np.ndarray]]:
        before, after = {}, {}
        for language, texts in data.texts.items():
            own = vectors(texts, language)
            before[language] = arrays.unit_length(own)
            fitted = vectors(data.fitted[language], language)
            after[language] = arrays.unit_length(without_component(own, fitted))
        return {"": before, "_pcr": after}


@dataclasses.dataclass(frozen=True)
class _Layout:
    """A layout of PAWS-X.

    Attributes:
        name: the path of a file, with `part` and `language` in braces.
        within: the folders that may hold these files.
        has_header: whether the first line names the columns; without it, the first
            column is the first sentence.
    """

    name: str
    within: tuple[str, ...]
    has_header: bool

    def paths(self, source: DataDir, part: str) -> dict[str, str]:
        """The files of a part, by language."""
        named = re.compile(self.name.format(part=part, language="(..)") + r"(\.gz)?$")
        found = self.name.format(part=part, language="??")
        return {
            named.search(path)[1]: path for path in source.matching(found, self.within)
        }

    def sentences(self, source: DataDir, path: str) -> list[str]:
        """The first sentence of each pair."""
        numbered = list(enumerate(parsing.unquoted(source.table(path, 2)), 1))
        column, label = 0, 2
        if self.has_header:
            _, head = numbered.pop(0)
            column, label = parsing.columns(head, ["sentence1", "label"], path)
        for number, row in numbered:
            # XNLI's files have the same names and columns, but other labels.
            if len(row) > label:
                where = f"{path}, line {number}"
                parsing.parse_label(row[label].strip(), _LABELS, where)
        return [row[column].strip() for _, row in numbered]


def _translated(columns: dict[str, list[str]]) -> dict[str, list[str]]:
    """The rows that no language leaves untranslated."""
    rows = [
        row for row in zip(*columns.values(), strict=True) if _UNTRANSLATED not in row
    ]
    return {name: [row[place] for row in rows] for place, name in enumerate(columns)}


_LAYOUTS = (
    # The files that XTREME's script makes of PAWS-X.
    _Layout("{part}-{language}.tsv", ("pawsx",), False),
    # PAWS-X's own archive.
    _Layout("{language}/{part}_2k.tsv", ("x-final", "pawsx", "pawsx/x-final"), True),
)


class PawsX(LanguageAgnosticity):
    """The first sentence of each pair, in one of `_LAYOUTS`."""

    name = "pawsx"
    languages = ("de", "en", "es", "fr", "ja", "ko", "zh")

    def read(self, source: DataDir) -> Pool:
        layout = self._layout(source)
        texts = self._read(source, layout, "test")
        fitted = self._read(source, layout, "dev")
        of_one_part = texts.keys() ^ fitted.keys()
        for language in sorted(of_one_part - source.left_out.keys()):
            # Looks for the missing file, so that its error names it.
            with source.part(language):
                for part in ("dev", "test"):
                    name = layout.name.format(part=part, language=language)
                    source.find(name, within=layout.within)
        both = [name for name in texts if name in fitted]
        source.check_found(both)
        pool = Pool(
            texts=_translated({name: texts[name] for name in both}),
            fitted=_translated({name: fitted[name] for name in both}),
        )
        _check_pool(pool.texts)
        _check_pool(pool.fitted)
        return pool

    def _layout(self, source: DataDir) -> _Layout:
        """The first layout that the folder holds; the first of all if it holds none."""
        for layout in _LAYOUTS:
            with contextlib.suppress(MissingData):
                layout.paths(source, "test")
                return layout
        return _LAYOUTS[0]

    def _read(
        self, source: DataDir, layout: _Layout, part: str
    ) -> dict[str, list[str]]:
        paths = layout.paths(source, part)
        columns: dict[str, list[str]] = {}
        for name in sorted(paths, key=lambda name: name != "en"):
            with source.part(name):
                lines = layout.sentences(source, paths[name])
                # A language is damaged if its lines are not those of the first one.
                first = next(iter(columns), name)
                both = {paths[first]: columns.get(first, lines), paths[name]: lines}
                parsing.check_parallel(both)
                columns[name] = lines
        return {name: columns[name] for name in paths if name in columns}


class AgnosticityFiles(LanguageAgnosticity):
    """The user's own bitext: one file per language, aligned line by line.

    Args:
        paths: the files, see `DataDir.find_own`.
    """

    def __init__(self, paths: Sequence[str]):
        self.name = "agnosticity:" + ":".join(paths)
        self._paths = paths

    def read(self, source: DataDir) -> Pool:
        files = dict(source.find_own(self._paths))
        columns = {
            path: [line.strip() for line in source.lines(path)] for path in files
        }
        _check_pool(columns)
        names = parsing.names_of_files([*files.items()])
        named = dict(zip(names, columns.values(), strict=True))
        return Pool(
            {name: lines[0::2] for name, lines in named.items()},
            {name: lines[1::2] for name, lines in named.items()},
        )


def _check_pool(columns: dict[str, list[str]]) -> None:
    parsing.check_parallel(columns)
    if len(columns) < 2:
        raise UserError(f"{', '.join(columns)}: one language; allowed: at least two")
    for path, lines in columns.items():
        if len(lines) < 4:
            raise UserError(
                f"{path} has {counted(len(lines), 'line')}; allowed: at least 4"
            )


def neighbour_languages(parts: dict[str, np.ndarray], *counts: int) -> np.ndarray:
    """For each language, the share of each language among the nearest neighbours.

    Args:
        parts: the unit vectors of each language, float [n, dim].
        *counts: numbers of neighbours; a sentence is not its own neighbour.

    Returns:
        float [numbers, languages, languages]: row i of a matrix holds the shares of all
        languages among the neighbours of language i, and sums to 1.
    """
    pool = np.concatenate(list(parts.values()))
    sizes = [len(part) for part in parts.values()]
    language = np.repeat(np.arange(len(parts)), sizes)
    starts = np.cumsum([0, *sizes])
    matrices = np.zeros([len(counts), len(parts), len(parts)])
    for row, part in enumerate(parts.values()):
        _, found = exact.nearest(part, pool, max(counts) + 1)
        own = np.arange(starts[row], starts[row + 1])[:, np.newaxis]
        others = found != own
        # If the pool holds a duplicate, a sentence may be missing from its own
        # neighbours. Then the last neighbour is dropped instead.
        others[others.all(axis=1), -1] = False
        # A small pool has fewer neighbours.
        languages = language[found[others]].reshape([len(part), -1])
        for matrix, count in zip(matrices, counts, strict=True):
            nearest = languages[:, :count].ravel()
            matrix[row] = np.bincount(nearest, minlength=len(parts)) / len(nearest)
    return matrices


def similarities(parts: dict[str, np.ndarray]) -> tuple[float, float]:
    """The mean cosine of sentence pairs within a language and across languages.

    Both means cover pairs of different meaning: rows i and j with i != j.
    """
    sums = np.stack([part.sum(axis=0, dtype=np.float64) for part in parts.values()])
    products = sums @ sums.T
    stacked = np.stack(list(parts.values())).astype(np.float64)
    same_rows = np.einsum("and,bnd->ab", stacked, stacked)
    count = stacked.shape[1]
    cosines = (products - same_rows) / (count * (count - 1))
    same = np.eye(len(parts), dtype=bool)
    return float(cosines[same].mean()), float(cosines[~same].mean())


def probe(parts: dict[str, np.ndarray], seed: int) -> float:
    """The accuracy, times 100, of a linear classifier of the language.

    The classifier is trained on the first half of the sentences and tested on the
    second half, so that no meaning occurs in both.
    """
    stacked = np.stack(list(parts.values()))
    languages, count, dim = stacked.shape
    half = count // 2
    x, x_test = stacked[:, :half], stacked[:, half:]
    y, y_test = (np.repeat(np.arange(languages), n) for n in (half, count - half))
    train = classifier.Rows(x.reshape(-1, dim), y)
    test = classifier.Rows(x_test.reshape(-1, dim))
    model = classifier.Classifier(classifier.LOGISTIC, seed, jobs=1)
    predicted = model.fitted(train, test, strength=1.0)
    return metrics.accuracy(predicted, y_test)


TASKS = [PawsX()]
