"""Evaluation on one's own labels: classes, pairs and retrieval."""

from __future__ import annotations

import dataclasses
import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score

from cmlm.errors import UserError
from cmlm.evaluation import base, classifier, labelled_files, metrics, reading, search
from cmlm.evaluation.senteval import ClassificationTask
from cmlm.evaluation.senteval_files import Examples, Parts

_PARTS = {1: ("train",), 2: ("train", "test"), 3: ("train", "dev", "test")}
_DEPTH = 100


class ClassificationFiles(ClassificationTask):
    """Classes of texts or of pairs of texts, see `labelled_files`.

    Args:
        paths: one file (ten folds of it); training and test file; or training,
            development and test file. They are relative to the working directory or to
            the folder of test sets.
    """

    language = ""

    def __init__(self, paths: Sequence[str]):
        name = "classification:" + ":".join(paths)
        if len(paths) not in _PARTS:
            raise UserError(
                f"--tasks has {name!r}; allowed: one file, training and test file, or "
                "training, development and test file"
            )
        super().__init__(name, self._read_parts)
        self._paths = dict(zip(_PARTS[len(paths)], paths, strict=True))

    def _read_parts(self, source: reading.DataDir) -> Parts:
        rows, classes = {}, {}
        for part, name in self._paths.items():
            path = source.find_own(name)
            source.text(path)  # For its checksum.
            texts, column = labelled_files.columns_of(path)
            if column != "label":
                raise UserError(f"{path} has the column {column}; allowed: label")
            rows[part] = list(labelled_files.read(path, texts, column))
            if part == "train":
                found = sorted({label for _, _, label in rows[part]})
                if len(found) < 2:
                    raise UserError(f"{path} has the labels {found}; allowed: several")
                classes = {label: number for number, label in enumerate(found)}
                self._check_folds(path, [label for _, _, label in rows[part]])
        return {
            part: Examples(
                [texts for _, texts, _ in found],
                np.array(
                    [
                        reading.parse_label(label, classes, where)
                        for where, _, label in found
                    ]
                ),
            )
            for part, found in rows.items()
        }

    def _check_folds(self, path: str, labels: Sequence[str]) -> None:
        if "dev" in self._paths:
            return
        is_nested = "test" not in self._paths
        needed = classifier.OF_NESTED_FOLDS if is_nested else classifier.OF_FOLDS
        (first, most), (second, next_most) = Counter(labels).most_common(2)
        if most < needed[0] or next_most < needed[1]:
            raise UserError(
                f"{path} has {most} examples of {first!r} and {next_most} of "
                f"{second!r}; allowed for its folds: at least {needed[0]} of the "
                f"largest class and {needed[1]} of the next; or TRAIN:DEV:TEST"
            )


@dataclasses.dataclass
class LabelledPairs:
    """Pairs of texts.

    Attributes:
        first, second: the texts of each pair, [n].
        labels: int [n], 1 if the two belong together.
    """

    first: list[str]
    second: list[str]
    labels: np.ndarray


class PairFiles(base.Task[LabelledPairs]):
    """Do two texts belong together? Lines of `text<TAB>text<TAB>0 or 1`, or `.csv`.

    Args:
        paths: one file, as for `ClassificationFiles`.
    """

    main_metric = "ap"
    shown_metrics = ("auc", "f1", "accuracy")
    protocol = (
        "average precision of the cosine, x 100; auc; f1 and accuracy at "
        "thresholds that are tuned on these pairs, which flatters the result"
    )

    def __init__(self, paths: Sequence[str]):
        self.name = "pairs:" + ":".join(paths)
        if len(paths) != 1:
            raise UserError(f"--tasks has {self.name!r}; allowed: one file")
        (self._path,) = paths

    def read(self, source: reading.DataDir) -> LabelledPairs:
        path = source.find_own(self._path)
        rows = source.rows(path, 3)
        labels = [
            reading.parse_label(row[2].strip(), {"0": 0, "1": 1}, f"{path}, pair {n}")
            for n, row in enumerate(rows, 1)
        ]
        if len(set(labels)) < 2:
            raise UserError(f"{path} has one label only; allowed: both 0 and 1")
        return LabelledPairs(
            [row[0].strip() for row in rows],
            [row[1].strip() for row in rows],
            np.array(labels),
        )

    def sentences(self, data: LabelledPairs) -> Iterable[str]:
        return [*data.first, *data.second]

    def score(self, data: LabelledPairs, vectors: base.Vectors) -> dict[str, float]:
        cosines = metrics.cosine(vectors(data.first), vectors(data.second))
        # Pairs of equal texts tie, whatever the rounding of their vectors.
        cosines = np.round(cosines, 6)
        return {
            "ap": 100 * float(average_precision_score(data.labels, cosines)),
            "auc": 100 * float(roc_auc_score(data.labels, cosines)),
            **_at_best_thresholds(cosines, data.labels),
        }


def _at_best_thresholds(cosines: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """F1 and accuracy at the thresholds that make them largest, times 100."""
    order = np.argsort(-cosines, kind="stable")
    cosines, labels = cosines[order], labels[order]
    hits, taken = np.cumsum(labels), np.arange(1, len(labels) + 1)
    # A threshold lies between two different cosines.
    ends = np.append(cosines[1:] != cosines[:-1], True)
    f1 = 2 * hits / (taken + labels.sum())
    right = hits + (len(labels) - labels.sum()) - (taken - hits)
    none = len(labels) - labels.sum()
    return {
        "f1": 100 * float(f1[ends].max()),
        "accuracy": 100 * float(max(right[ends].max(), none) / len(labels)),
    }


@dataclasses.dataclass
class Retrieval:
    """A collection with queries and judgements.

    Attributes:
        queries: the text of each judged query, [n], and `query_ids`.
        documents: the text of each document, [m], and `document_ids`.
        judgements: for each query, the grade of the rows of `documents` that are
            relevant, above 0; empty if all its grades are 0.
    """

    queries: list[str]
    query_ids: list[str]
    documents: list[str]
    document_ids: list[str]
    judgements: list[dict[int, int]]


class RetrievalFiles(base.Task[Retrieval]):
    """Retrieval from a collection in BEIR's layout, by cosine.

    Thakur et al., 2021, https://arxiv.org/abs/2104.08663. A folder holds `corpus.jsonl`
    (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and `qrels/test.tsv` (a
    header; query, document and grade).

    Args:
        paths: the folder, and the name of another file of qrels: `DIR:dev`.
    """

    main_metric = "ndcg@10"
    shown_metrics = ("recall@10", "recall@100", "mrr@10")
    protocol = (
        "nDCG@10 of the cosine as trec_eval computes it, x 100; as in BEIR, a document "
        "with the id of its query is left out, and a query without a relevant document "
        "counts as 0"
    )

    def __init__(self, paths: Sequence[str]):
        self.name = "retrieval:" + ":".join(paths)
        if len(paths) > 2:
            raise UserError(f"--tasks has {self.name!r}; allowed: DIR or DIR:QRELS")
        self._folder, self._part = paths[0], (*paths, "test")[1]

    def read(self, source: reading.DataDir) -> Retrieval:
        def find(name):
            return source.find_own(os.path.join(self._folder, name))

        path = find("corpus.jsonl")
        documents = _texts(source, path, ("title", "text"))
        queries = _texts(source, find("queries.jsonl"), ("text",))
        qrels = find(os.path.join("qrels", f"{self._part}.tsv"))
        places = {name: row for row, name in enumerate(documents)}
        judged: dict[str, dict[int, int]] = {}
        lines = io.StringIO(source.text(qrels), newline="")
        for number, row in reading.csv_rows(qrels, lines, "\t"):
            if number == 1 or not row:
                continue
            where = f"{qrels}, line {number}"
            if len(row) != 3 or not row[2].strip().lstrip("-").isdecimal():
                raise UserError(
                    f"{where} is {row}; allowed: query, document and a whole number"
                )
            query, document, grade = row[0], row[1], int(row[2])
            if query not in queries:
                raise UserError(f"{where}: query {query!r} is not in queries.jsonl")
            if document not in places:
                raise UserError(f"{where}: document {document!r} is not in {path}")
            relevant = judged.setdefault(query, {})
            if grade > 0:
                relevant[places[document]] = grade
        if not any(judged.values()):
            raise UserError(f"{qrels} has no document with a grade above 0")
        return Retrieval(
            [queries[name] for name in judged],
            list(judged),
            list(documents.values()),
            list(documents),
            list(judged.values()),
        )

    def sentences(self, data: Retrieval) -> Iterable[str]:
        return [*data.queries, *data.documents]

    def score(self, data: Retrieval, vectors: base.Vectors) -> dict[str, float]:
        # One more than is scored, for the document with the id of its query.
        k = min(_DEPTH + 1, len(data.documents))
        found = search.nearest_of_pool(
            vectors.stored(data.queries), vectors.stored(data.documents), k
        )
        places = {name: row for row, name in enumerate(data.document_ids)}
        scores = []
        for name, rows, relevant in zip(
            data.query_ids, found, data.judgements, strict=True
        ):
            own = places.get(name, -1)
            ranked = [row for row in rows.tolist() if row != own][:_DEPTH]
            scores.append(_rank_scores(ranked, relevant))
        return {
            metric: 100 * float(np.mean([score[metric] for score in scores]))
            for metric in scores[0]
        }


def _rank_scores(ranked: Sequence[int], relevant: Mapping[int, int]) -> dict:
    """The metrics of a query, as trec_eval defines them.

    nDCG@k = DCG(ranked) / DCG(best order), DCG = sum_i grade_i / log2(i + 1).

    Args:
        ranked: documents, the best first.
        relevant: the grades of relevant documents, above 0. Without any, all metrics
            are 0.
    """
    grades = [relevant.get(document, 0) for document in ranked[:10]]
    best = sorted(relevant.values(), reverse=True)[:10]
    first = next((i for i, grade in enumerate(grades, 1) if grade), 0)
    return {
        "ndcg@10": _dcg(grades) / _dcg(best) if relevant else 0.0,
        **{
            f"recall@{k}": sum(document in relevant for document in ranked[:k])
            / max(len(relevant), 1)
            for k in (10, _DEPTH)
        },
        "mrr@10": 1 / first if first else 0.0,
    }


def _dcg(grades: Sequence[int]) -> float:
    return float(np.sum(np.array(grades) / np.log2(np.arange(2, len(grades) + 2))))


def _texts(source: reading.DataDir, path: str, parts: Sequence[str]) -> dict[str, str]:
    """The texts of a `.jsonl` file by `_id`; their parts are joined by a blank.

    Raises:
        UserError: a line is damaged, or an id occurs twice.
    """
    found: dict[str, str] = {}
    for number, item in enumerate(
        reading.parse_json_lines(source.lines(path), path), 1
    ):
        name, text = item.get("_id"), item.get("text")
        if not isinstance(name, str) or not isinstance(text, str):
            raise UserError(f"{path}, line {number}: no texts '_id' and 'text'")
        if name in found:
            raise UserError(f"{path}, line {number}: the id {name!r} occurs twice")
        words = [item.get(part) or "" for part in parts]
        found[name] = " ".join(" ".join(map(str, words)).split())
    return found
