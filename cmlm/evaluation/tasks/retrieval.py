"""Retrieval from one's own collection: BEIR's layout, or queries and passages."""

from __future__ import annotations

import dataclasses
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cmlm.common import language_names, prompts
from cmlm.errors import UserError, shown
from cmlm.evaluation import parsing, search
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base

_DEPTH = 100
_GRADE = re.compile("-?[0-9]{1,9}")
# A file of queries and passages; any other path is a folder.
_PAIRS = re.compile(r"\.(csv|tsv|txt)(\.gz)?$", re.IGNORECASE)


@dataclasses.dataclass
class Collection:
    """Documents with queries and judgements.

    Attributes:
        queries: the text of each judged query, [n].
        documents: the text of each document, [m], and `document_ids`.
        judgements: for each query, the grade of the rows of `documents` that are
            relevant, above 0; empty if all its grades are 0. A relevant document that
            the collection lacks has a negative row: no search finds it, but the best
            order and the recall count it.
        left_out: for each query, the row of `documents` that its search leaves out, if
            any.
        languages: the languages of the queries and of the documents; empty if unknown.
    """

    queries: list[str]
    documents: list[str]
    document_ids: list[str]
    judgements: list[dict[int, int]]
    left_out: list[int | None]
    languages: tuple[str, str] = ("", "")


class RetrievalFiles(base.PredictingTask[Collection]):
    """Retrieval from one's own collection, by cosine.

    Thakur et al., 2021, https://arxiv.org/abs/2104.08663. A folder holds `corpus.jsonl`
    (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and `qrels/test.tsv` (a
    header; query, document and grade). A file of lines `query<TAB>passage` is a
    collection, too (`.csv`: rows of two cells): its different passages, and those of
    further columns, are the documents, and each line judges its passage relevant.

    The texts get the model's prompts for queries and documents, if it has them.

    Args:
        paths: the folder, and the name of another file of qrels: `DIR:dev`; or one file
            of pairs. A language may precede the path, as in `en=DIR`; or those of
            queries and documents, as in `de-en=DIR`.
    """

    main_metric = "ndcg@10"
    shown_metrics = ("recall@10", "recall@100", "mrr@10")
    protocol = (
        "nDCG@10 of the cosine by trec_eval's formula, x 100; documents of equal "
        "cosine stand in the order of the search; as in BEIR, a document with the id "
        "of its query is left out, and a query without a relevant document counts as "
        "0; texts get the model's prompts for queries and documents, if it has them"
    )

    def __init__(self, paths: Sequence[str]):
        self.name = "retrieval:" + ":".join(paths)
        self._is_file = bool(_PAIRS.search(paths[0]))
        if len(paths) > (1 if self._is_file else 2):
            raise UserError(
                f"the task is {self.name!r}; allowed: retrieval:DIR, "
                "retrieval:DIR:QRELS or retrieval:FILE"
            )
        self._path = paths[0]
        self._part = paths[1] if len(paths) > 1 else "test"

    def read(self, source: DataDir) -> Collection:
        return self._pairs(source) if self._is_file else self._collection(source)

    def _pairs(self, source: DataDir) -> Collection:
        """Reads a file of queries and passages.

        Raises:
            UserError: a line has fewer than two columns or a blank one, or all passages
                are equal.
        """
        ((path, language),) = source.find_own([self._path])
        rows = [[*map(str.strip, row)] for row in source.rows(path, 2)]
        for column in (0, 1):
            cells = [row[column] for row in rows]
            parsing.check_parallel({f"{path}, column {column + 1}": cells})
        documents = dict.fromkeys(row[1] for row in rows)
        documents |= dict.fromkeys(cell for row in rows for cell in row[2:] if cell)
        if len(documents) < 2:
            raise UserError(f"{path} has one passage; allowed: at least 2")
        places = {text: place for place, text in enumerate(documents)}
        judged: dict[str, dict[int, int]] = {}
        for query, passage, *_ in rows:
            judged.setdefault(query, {})[places[passage]] = 1
        return Collection(
            list(judged),
            list(documents),
            list(documents),
            list(judged.values()),
            [None] * len(judged),
            language_names.of_two_texts(language),
        )

    def _collection(self, source: DataDir) -> Collection:
        """Reads a folder in BEIR's layout.

        Raises:
            UserError: a file is damaged, or judges no document of the collection.
        """
        names = ("corpus.jsonl", "queries.jsonl", f"qrels/{self._part}.tsv")
        found = source.find_own([os.path.join(self._path, name) for name in names])
        (path, language), (queries_path, _), (qrels, _) = found
        documents = _texts(source, path, ("title", "text"))
        queries = _texts(source, queries_path, ("text",))
        places = {name: row for row, name in enumerate(documents)}
        judged: dict[str, dict[int, int]] = {}
        pairs: set[tuple[str, str]] = set()
        lines = io.StringIO(source.text(qrels), newline="")
        for number, row in parsing.csv_rows(qrels, lines, "\t"):
            is_judgement = len(row) == 3 and _GRADE.fullmatch(row[2].strip())
            # A file without the line of names begins with a judgement.
            if not row or (number == 1 and not is_judgement):
                continue
            where = f"{qrels}, line {number}"
            if not is_judgement:
                raise UserError(
                    f"{where} is {shown(row)}; allowed: query, document and a whole "
                    "number"
                )
            query, document, grade = row[0], row[1], int(row[2])
            if query not in queries:
                raise UserError(f"{where}: query {query!r} is not in queries.jsonl")
            if (query, document) in pairs:
                raise UserError(
                    f"{where} repeats query {query!r} and document {document!r}; "
                    "allowed: each pair once"
                )
            pairs.add((query, document))
            relevant = judged.setdefault(query, {})
            if grade > 0:
                # Documents that the collection lacks get the rows -1, -2 and so on.
                place = len(documents) - len(places) - 1
                relevant[places.setdefault(document, place)] = grade
        if not any(row >= 0 for relevant in judged.values() for row in relevant):
            raise UserError(
                f"{qrels} grades no document of {path} above 0; allowed: at least one"
            )
        return Collection(
            [queries[name] for name in judged],
            list(documents.values()),
            list(documents),
            list(judged.values()),
            [*map(places.get, judged)],
            language_names.of_two_texts(language),
        )

    def check(self) -> None:
        search.check_faiss()

    def sentences(self, data: Collection) -> Iterable[str]:
        return [*data.queries, *data.documents]

    def by_role(self, data: Collection) -> Mapping[str, Iterable[str]]:
        return {prompts.QUERY: data.queries, prompts.DOCUMENT: data.documents}

    def remarks(self, data: Collection) -> list[str]:
        rows = {row for relevant in data.judgements for row in relevant}
        lacking = sum(row < 0 for row in rows)
        if not lacking:
            return []
        return [
            "relevant documents that corpus.jsonl lacks, counted as not found: "
            f"{lacking:,}"
        ]

    def outcome(self, data: Collection, vectors: base.Vectors) -> base.Outcome:
        """Predicts the id of the nearest document; the value of a query is nDCG@10."""
        names, ranked = data.document_ids, self._ranked(data, vectors)
        scores = [*map(_rank_scores, ranked, data.judgements)]
        predictions = base.Predictions(
            [data.queries],
            [
                " ".join(names[row] for row in relevant if row >= 0)
                for relevant in data.judgements
            ],
            np.array([score[self.main_metric] for score in scores]),
            answers=[names[rows[0]] if rows else "" for rows in ranked],
        )
        means = {
            metric: 100 * float(np.mean([score[metric] for score in scores]))
            for metric in scores[0]
        }
        return base.Outcome(means, {"": predictions})

    def _ranked(self, data: Collection, vectors: base.Vectors) -> list[list[int]]:
        """The nearest rows of `documents` for each query, the nearest first."""
        # One more than is scored, for the document with the id of its query.
        k = min(_DEPTH + 1, len(data.documents))
        of_queries, of_documents = data.languages
        found = search.nearest_of_pool(
            vectors.on_disk(data.queries, of_queries, prompts.QUERY),
            vectors.on_disk(data.documents, of_documents, prompts.DOCUMENT),
            k,
        )
        return [
            [row for row in rows.tolist() if row != left_out][:_DEPTH]
            for rows, left_out in zip(found, data.left_out, strict=True)
        ]


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


def _texts(source: DataDir, path: str, parts: Sequence[str]) -> dict[str, str]:
    """The texts of a `.jsonl` file by `_id`; their parts are joined by a blank.

    Raises:
        UserError: a line is damaged, or an id occurs twice.
    """
    found: dict[str, str] = {}
    for where, item in source.json_lines(path, ("_id", "text")):
        name = item["_id"]
        if name in found:
            raise UserError(f"{where}: the id {name!r} occurs twice")
        words = [item.get(part) or "" for part in parts]
        found[name] = " ".join(" ".join(map(str, words)).split())
    return found
