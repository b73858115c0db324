"""Cross-lingual transfer: a classifier trained on English, tested on other languages.

Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 4.5.2 and table 6: Amazon
reviews (Prettenhofer and Stein, 2010, https://aclanthology.org/P10-1114) of books, DVDs
and music. Reviews with more than 3 stars are positive, the others negative. The 6,000
English training reviews are split into 90 % for training and 10 % for development. A
two-way classifier on [u, v, |u - v|, u * v] is tested on 6,000 reviews in each of
English, French, German and Japanese.

The paper does not define u and v. Here they are the vectors of the title (summary) and
of the text of a review. The encoder is frozen; `cmlm.finetune --task=amazon` trains it
too. The classifier is one of SentEval's, by default the logistic regression, and its
regularization is chosen on the development part.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import html
import math
import os
import re
from collections.abc import Iterable

import numpy as np
from sklearn.model_selection import train_test_split

from cmlm.errors import UserError
from cmlm.evaluation import classifier, metrics, parsing
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import base
from cmlm.evaluation.tasks.senteval import over_seeds, predictions_of
from cmlm.evaluation.tasks.senteval_files import Examples

# The folders of the processed and of the unprocessed data set, by language.
FOLDERS = {
    "en": ("english", "en"),
    "fr": ("french", "fr"),
    "de": ("german", "de"),
    "ja": ("japanese", "jp"),
}
DOMAINS = ("books", "dvd", "music")
WITHIN = ("amazon-reviews/amazon-dataset", "cls-acl10-unprocessed")
DEV_SHARE = 0.1
# Parts that are English and not tested.
_LEARNT = ("train", "dev")
_ITEM = re.compile(r"<item>(.*?)</item>", re.DOTALL)


@dataclasses.dataclass
class Reviews(Examples):
    """The reviews of a language.

    Attributes:
        domains: the number of reviews by domain, of the domains that exist.
    """

    domains: dict[str, int]


class TransferTask(
    base.PredictingTask[dict[str, Examples]], base.DivisibleTask[dict[str, Examples]]
):
    """A classifier of pairs that learns English and is tested on each language.

    Attributes:
        trained_on: the metric that holds the number of training pairs.
        setup: the part of the protocol that follows the features.
    """

    main_metric = "accuracy"
    not_ranked = ("train",)
    trained_on = "train_pairs"
    setup: str

    @property
    def protocol(self) -> str:
        about = classifier.ABOUT[self.classifier]
        return f"accuracy of {about}, on [u, v, |u - v|, u * v] of {self.setup}, x 100"

    @abc.abstractmethod
    def read_languages(self, source: DataDir) -> dict[str, Examples]:
        """Reads `train` in English, perhaps `dev`, and the test pairs by language.

        `dev` is English too, and chooses the regularization; without it, a tenth of
        `train` does.
        """

    def read(self, source: DataDir) -> dict[str, Examples]:
        data, only = self.read_languages(source), self._only
        # Pairs that cannot be learnt from are refused before any is encoded.
        if "dev" not in data:
            split(data["train"].labels, self.seeds[0])
        elif len(set(data["train"].labels.tolist())) < 2:
            raise UserError("training examples of one class; allowed: two or more")
        if not only:
            return data
        source.check_found(data, only)
        # The damage of another language does not concern this one.
        source.left_out.clear()
        there = _tested(data)
        if only not in there:
            raise MissingData(f"no {only!r}; there are {', '.join(there)}")
        return {name: data[name] for name in data if name == only or name not in there}

    def sentences(self, data: dict[str, Examples]) -> Iterable[str]:
        return (text for part in data.values() for pair in part.texts for text in pair)

    def outcome(self, data: dict[str, Examples], vectors: base.Vectors) -> base.Outcome:
        """Trains on English for each seed, and tests on every language.

        Args:
            data: `train`, perhaps `dev`, and the test pairs by language.
            vectors: the vectors of a list of texts in a language.

        Returns:
            `accuracy`, the mean over the languages but English, or English if it is
            alone; `dev_accuracy`; the number of training pairs; and with several
            languages `parts`, their number, and `accuracy/LANGUAGE`. The predictions
            are the labels in each language of the main metric.
        """
        x = _features(data, vectors)
        found = over_seeds([self._of_seed(data, x, seed) for seed in self.seeds])
        count = float(len(data["train"].labels))
        return base.Outcome({**found.scores, self.trained_on: count}, found.predictions)

    def _of_seed(
        self, data: dict[str, Examples], x: dict[str, np.ndarray], seed: int
    ) -> base.Outcome:
        predicted, dev_accuracy = _predict(data, x, seed, self.classifier)
        accuracies = {
            name: metrics.accuracy(part, data[name].labels)
            for name, part in predicted.items()
        }
        averaged = _averaged(accuracies)
        scores = {
            "accuracy": float(np.mean([accuracies[name] for name in averaged])),
            "dev_accuracy": dev_accuracy,
        }
        if len(accuracies) > 1:
            scores["parts"] = float(len(accuracies))
            scores |= {f"accuracy/{name}": value for name, value in accuracies.items()}
        predictions = {
            name: predictions_of(data[name], predicted[name]) for name in averaged
        }
        return base.Outcome(scores, predictions)


def _features(
    data: dict[str, Examples], vectors: base.Vectors
) -> dict[str, np.ndarray]:
    """[u, v, |u - v|, u * v] of the texts of each pair, float [n, 4 dim], by part."""
    found = {}
    for name, part in data.items():
        language = "en" if name in _LEARNT else name
        columns = map(list, zip(*part.texts, strict=True))
        u, v = (vectors(column, language) for column in columns)
        found[name] = np.concatenate([u, v, np.abs(u - v), u * v], axis=1)
    return found


def _tested(data: Iterable[str]) -> list[str]:
    """The languages of the test pairs."""
    return [name for name in data if name not in _LEARNT]


def _averaged(languages: Iterable[str]) -> list[str]:
    """The languages whose mean is the main metric: all but English, if there are."""
    return [name for name in languages if name != "en"] or list(languages)


def _predict(
    data: dict[str, Examples], x: dict[str, np.ndarray], seed: int, kind: str
) -> tuple[dict[str, np.ndarray], float]:
    """Trains on English, and predicts the test pairs.

    Args:
        data, x: the examples and the features: `train`, perhaps `dev`, and by
            language.
        seed: the seed of the split into training and development part, without `dev`,
            and of the classifier.
        kind: the classifier.

    Returns:
        The labels, int [n] by language, and the accuracy on the development part.
    """
    languages = _tested(data)
    labels = data["train"].labels
    train = classifier.Rows(x["train"], labels)
    if "dev" in data:
        dev = classifier.Rows(x["dev"], data["dev"].labels)
    else:
        train, dev = map(train.of, split(labels, seed))
    test = classifier.Rows(np.concatenate([x[name] for name in languages]))
    model = classifier.Classifier(kind, seed, jobs=1)
    predicted, dev_accuracy = model.tested_by(train, dev, test)
    ends = np.cumsum([len(x[name]) for name in languages])[:-1]
    parts = np.split(predicted, ends)
    return dict(zip(languages, parts, strict=True)), dev_accuracy


class AmazonReviews(TransferTask):
    """Files `LANGUAGE/DOMAIN/train.review` and `test.review`; trained on English."""

    name = "amazon"
    languages = tuple(FOLDERS)
    trained_on = "train_reviews"
    setup = (
        "title and text, encoder frozen, trained on 90 % of English, regularization "
        "chosen on 10 %; mean over the other languages"
    )

    def read_languages(self, source: DataDir) -> dict[str, Reviews]:
        parts = {"train": read_reviews(source, "en", "train")}
        for language in FOLDERS:
            try:
                find_reviews(source, language, "test")
            except MissingData:
                continue
            with source.part(language):
                parts[language] = read_reviews(source, language, "test")
        others = [name for name in parts if name not in ("train", "en")]
        source.check_found(parts, "en")
        source.check_found(others)
        if "en" not in parts or not others:
            raise MissingData("missing: test.review of English and another language")
        return parts

    def remarks(self, data: dict[str, Reviews]) -> list[str]:
        said = []
        for name, reviews in data.items():
            counts = (f"{domain} {n:,}" for domain, n in reviews.domains.items())
            said.append(f"{name} {', '.join(counts)}")
        return [f"reviews by domain: {'; '.join(said)}"]


def split(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of the training part (90 %) and of the development part (10 %).

    Args:
        labels: int [n]; both parts have the same shares of the classes.
        seed: the seed of the random split.

    Raises:
        UserError: there are too few examples for both parts to have all classes.
    """
    classes, counts = np.unique(labels, return_counts=True)
    in_dev = math.ceil(DEV_SHARE * len(labels))
    if len(classes) < 2 or counts.min() < 2 or in_dev < len(classes):
        raise UserError(
            f"training examples of each class: {', '.join(map(str, counts))}; allowed: "
            "two classes or more, 2 examples of each, and ten times as many examples "
            "as classes, because a tenth is held out"
        )
    train, dev = train_test_split(
        np.arange(len(labels)), test_size=DEV_SHARE, random_state=seed, stratify=labels
    )
    return np.sort(train), np.sort(dev)


def find_reviews(source: DataDir, language: str, part: str) -> list[str]:
    """The files of a language, one for each domain that exists.

    Args:
        source: the folder of test sets.
        language: a language code, such as `en`.
        part: `train` or `test`.

    Raises:
        MissingData: no domain has the file.
    """
    paths = []
    for domain in DOMAINS:
        names = [f"{folder}/{domain}/{part}.review" for folder in FOLDERS[language]]
        with contextlib.suppress(MissingData):
            paths.append(source.find(*names, within=WITHIN))
    if not paths:
        name = os.path.join(FOLDERS[language][0], "{books,dvd,music}", part)
        raise MissingData(f"missing: {name}.review")
    return paths


def read_reviews(source: DataDir, language: str, part: str) -> Reviews:
    """The reviews of a language in all domains that exist."""
    found = {
        path.split("/")[-2]: parse_reviews(source.text(path), path)
        for path in find_reviews(source, language, part)
    }
    return Reviews(
        [pair for examples in found.values() for pair in examples.texts],
        np.concatenate([examples.labels for examples in found.values()]),
        {domain: len(examples.texts) for domain, examples in found.items()},
    )


def parse_reviews(content: str, path: str) -> Examples:
    """Parses the <item>s of a file.

    Args:
        content: the content of the file.
        path: the path of the file, for messages.

    Returns:
        Pairs of title and text with labels: 1 for more than 3 stars, else 0.

    Raises:
        UserError: an item is not closed, a rating is not a number from 1 to 5, or all
            labels are equal.
    """
    texts, labels = [], []
    items = _ITEM.findall(content)
    opened, closed = content.count("<item>"), content.count("</item>")
    if {opened, closed} != {len(items)}:
        raise UserError(
            f"{path} has {opened:,} <item> and {closed:,} </item>; allowed: one "
            "</item> after each <item>, before the next"
        )
    for number, item in enumerate(items, 1):
        rating = parsing.parse_score(
            _field(item, "rating"), 1, 5, f"{path}, item {number}"
        )
        texts.append((_field(item, "summary"), _field(item, "text")))
        labels.append(int(rating > 3))
    if len(set(labels)) < 2:
        raise UserError(f"{path} has <item>s of one label; allowed: both labels")
    return Examples(texts, np.array(labels))


def _field(item: str, name: str) -> str:
    found = re.search(f"<{name}>(.*?)</{name}>", item, re.DOTALL)
    return " ".join(html.unescape(found.group(1)).split()) if found else ""


TASKS = [AmazonReviews()]
