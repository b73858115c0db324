"""Cross-lingual transfer: a classifier trained on English, tested on other languages.

Product reviews (Prettenhofer and Stein, 2010, https://aclanthology.org/P10-1114),
books, 2,000 to train on and 2,000 to test on in each language, positive (4 or 5 stars)
or negative (1 or 2). The encoder is frozen here (`cmlm.finetune --task=amazon` trains
it); the classifier is SentEval's, C chosen by ten folds of the English training set. A
text is the summary, where there is one, and the review, cut where the encoder cuts.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import base, classifier, metrics, reading
from cmlm.evaluation.senteval import over_seeds
from cmlm.evaluation.senteval_files import Examples

CODES = {"english": "en", "german": "de", "french": "fr", "japanese": "ja"}
_ITEM = re.compile(r"<item>(.*?)</item>", re.DOTALL)


class AmazonReviews(base.Task[dict[str, Examples]]):
    """`LANGUAGE/books/train.review` and `test.review`; English to train on."""

    name = "amazon"
    main_metric = "accuracy"
    protocol = "accuracy, trained on English, mean over the other languages, x 100"

    def read(self, source: reading.DataDir) -> dict[str, Examples]:
        within = os.path.join("amazon-reviews", "amazon-dataset")
        parts = {
            "train": _reviews(
                source, source.find(path_of("english", "train"), within=within)
            )
        }
        for path in source.matching(path_of("*", "test"), within=within):
            language = path.split(os.sep)[-3]
            parts[CODES.get(language, language)] = _reviews(source, path)
        if "en" not in parts or len(parts) < 3:
            raise reading.MissingData(
                f"not there: {path_of('*', 'test')} of English and another language"
            )
        return parts

    def sentences(self, data: dict[str, Examples]) -> Iterable[str]:
        return (text for part in data.values() for (text,) in part.texts)

    def score(
        self, data: dict[str, Examples], vectors: base.Vectors
    ) -> dict[str, float]:
        tests = {name: part for name, part in data.items() if name != "train"}
        x = {name: vectors([text for (text,) in data[name].texts]) for name in data}
        ends = np.cumsum([len(part.labels) for part in tests.values()])[:-1]
        everything = np.concatenate([x[name] for name in tests])

        def one(seed: int) -> dict[str, float]:
            predicted, dev = classifier.cross_validation_then_test(
                x["train"], data["train"].labels, everything, seed
            )
            accuracies = {
                name: metrics.accuracy(part, tests[name].labels)
                for name, part in zip(tests, np.split(predicted, ends), strict=True)
            }
            others = [value for name, value in accuracies.items() if name != "en"]
            return {
                "accuracy": float(np.mean(others)),
                "dev_accuracy": dev,
                **{f"accuracy/{name}": value for name, value in accuracies.items()},
            }

        return over_seeds([one(seed) for seed in self.seeds])


def path_of(language: str, part: str) -> str:
    """Where the data set has the part `train` or `test` of a language."""
    return os.path.join(language, "books", f"{part}.review")


def _reviews(source: reading.DataDir, path: str) -> Examples:
    return parse_reviews(source.text(path), path)


def parse_reviews(content: str, path: str) -> Examples:
    """The texts and labels, 1 for a good review, of a file of <item>s.

    Args:
        content: of the file.
        path: to name it by.

    Raises:
        UserError: a rating is none, or is 3 stars, or all are alike.
    """
    texts, labels = [], []
    for number, item in enumerate(_ITEM.findall(content), 1):
        rating = reading.parse_score(
            _field(item, "rating"), 1, 5, f"{path}, item {number}"
        )
        if rating == 3:
            raise UserError(f"{path}, item {number}: 3 stars are neither good nor bad")
        parts = [_field(item, "summary"), _field(item, "text")]
        texts.append((" ".join(" ".join(parts).split()),))
        labels.append(int(rating > 3))
    if len(set(labels)) < 2:
        raise UserError(f"{path} has no <item>s of both kinds")
    return Examples(texts, np.array(labels))


def _field(item: str, name: str) -> str:
    found = re.search(f"<{name}>(.*?)</{name}>", item, re.DOTALL)
    return html.unescape(found.group(1)).strip() if found else ""


TASKS = [AmazonReviews()]
