"""Semantic textual similarity without training: cosines against human scores.

The module scores STS12 to STS16 (Agirre et al., 2012-2016), STS-B (Cer et al., 2017)
and the relatedness of SICK (Marelli et al., 2014) from SentEval's files, STS-B in other
languages, the languages of STS 2017 (Cer et al., 2017), a Russian translation of a part
of STS12, and the user's own files.

STS12 to STS16 consist of subsets, and papers aggregate them in two ways: `spearman` is
one correlation over all pairs ("all"), `spearman_mean` the mean over the subsets. The
two differ by up to 5 points. "all" is the main metric, as in public leaderboards and in
Mirror-BERT's released script; CMLM does not state its choice.

`pearson_arccos` is the Pearson correlation of 1 - arccos(cosine) / pi, which LaBSE
prints for STS-B (section 6.4, table 6).
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cmlm.common import language_names
from cmlm.evaluation import metrics, parsing, public_sizes
from cmlm.evaluation.data_dir import DataDir, MissingData
from cmlm.evaluation.tasks import base, senteval_files
from cmlm.evaluation.tasks.base import Pairs


class StsTask(base.PredictingTask[dict[str, Pairs]]):
    """An STS test set of one or several subsets.

    Args:
        name: the name of the task.
        subsets: the names of the subsets; empty for a set without subsets.
        language: the language of the sentences.
    """

    main_metric = "spearman"
    protocol = "Spearman of the cosine, x 100"

    def __init__(self, name: str, subsets: Sequence[str] = (), language: str = "en"):
        self.name = name
        self._subsets = subsets
        self._language = language
        if len(subsets) > 1:
            self.protocol = "Spearman of the cosine over all pairs, x 100"

    def sentences(self, data: dict[str, Pairs]) -> Iterable[str]:
        return (text for pairs in data.values() for text in pairs.sentences())

    def outcome(self, data: dict[str, Pairs], vectors: base.Vectors) -> base.Outcome:
        cosines = {
            subset: pairs.cosines(vectors, *self._languages(pairs))
            for subset, pairs in data.items()
        }
        # The main metric is one correlation over the pairs of all subsets.
        predictions = base.Predictions(
            [
                [text for pairs in data.values() for text in pairs.first],
                [text for pairs in data.values() for text in pairs.second],
            ],
            np.concatenate([pairs.gold for pairs in data.values()]),
            np.concatenate(list(cosines.values())),
            "spearman",
        )
        scores = pair_scores(predictions.values, predictions.gold)
        if len(data) > 1:
            scores |= self._by_subset(data, cosines)
        return base.Outcome(scores, {"": predictions})

    def _by_subset(
        self, data: dict[str, Pairs], cosines: dict[str, np.ndarray]
    ) -> dict[str, float]:
        """The scores of the subsets, and their means."""
        parts = {
            subset: pair_scores(cosines[subset], pairs.gold)
            for subset, pairs in data.items()
        }
        scores = {}
        for name in ("spearman", "pearson", "pearson_arccos"):
            scores[f"{name}_mean"] = float(np.mean([p[name] for p in parts.values()]))
        for subset, part in parts.items():
            scores[f"spearman/{subset}"] = part["spearman"]
        return scores

    def other_sizes(self, data: dict[str, Pairs]) -> list[str]:
        return public_sizes.differences(self.name, data)

    def _languages(self, pairs: Pairs) -> tuple[str, str]:
        """The languages of the first and second texts."""
        return self._language, self._language


def pair_scores(cosines: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """`spearman` and `pearson` of the cosine, and `pearson_arccos`, times 100."""
    angular = metrics.correlations(metrics.angular_similarity(cosines), gold)
    return {
        **metrics.correlations(cosines, gold),
        "pearson_arccos": angular["pearson"],
    }


class StsYear(StsTask):
    """A year of STS in SentEval's files.

    Args:
        name: the name of the task.
        year: the name of the year in the files, such as `STS12`.
        subsets: the names of its subsets.
    """

    def __init__(self, name: str, year: str, subsets: Sequence[str]):
        super().__init__(name, subsets)
        self._year = year

    def read(self, source: DataDir) -> dict[str, Pairs]:
        folder, data = f"STS/{self._year}-en-test", {}
        for subset in self._subsets:
            path = source.find(f"{folder}/STS.input.{subset}.txt", within="senteval")
            gold_path = source.find(f"{folder}/STS.gs.{subset}.txt", within="senteval")
            data[subset] = _read_two_files(source, path, gold_path)
        return data


class PairFileTask(StsTask):
    """A test set in one of SentEval's files.

    Args:
        name: the name of the task.
        read: a function of `senteval_files` that reads one part of a set.
        part: the part.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[DataDir, str], senteval_files.Examples],
        part: str,
    ):
        super().__init__(name)
        self._read, self._part = read, part

    def read(self, source: DataDir) -> dict[str, Pairs]:
        found = self._read(source, self._part)
        metrics.check_gold(found.labels, f"the {self._part} file of {self.name}")
        return {self.name: found.as_pairs()}


class ScoredPairsTask(base.PartedTask[Pairs]):
    """Scored pairs in several languages (`de`) or language pairs (`en-de`)."""

    main_metric = "spearman"

    def other_sizes(self, data: dict[str, Pairs]) -> list[str]:
        return public_sizes.differences(self.part_of or self.name, data, each=True)

    def part_sentences(self, data: Pairs) -> Iterable[str]:
        return data.sentences()

    def part_outcome(
        self, part: str, data: Pairs, vectors: base.Vectors
    ) -> base.Outcome:
        found = data.predictions(vectors, *language_names.of_two_texts(part))
        return base.Outcome(pair_scores(found.values, found.gold), {"": found})


class MultilingualStsb(ScoredPairsTask):
    """Machine-translated STS-B, one file per language, such as `stsb-de-test.csv`.

    https://github.com/PhilipMay/stsb-multi-mt; rows `sentence1,sentence2,score`.
    """

    protocol = "Spearman of the cosine, x 100; mean over languages"
    languages = tuple("de en es fr it ja nl pl pt ru zh".split())

    def find_parts(self, source: DataDir) -> dict[str, str]:
        paths = source.matching("stsb-*-test.csv", within="stsb-multilingual")
        names = [os.path.basename(path).split("-") for path in paths]
        return {
            "-".join(name[1:-1]): path for name, path in zip(names, paths, strict=True)
        }

    def read_part(self, source: DataDir, part: str, where: str) -> Pairs:
        return pairs_of(where, source.csv(where, 3))


class Sts17(ScoredPairsTask):
    """STS 2017 in several languages, in the files of its organisers.

    Each track has `STS.input.TRACK.txt` with two sentences a line and
    `STS.gs.TRACK.txt` with their scores. Mirror-BERT reports Spanish and Arabic (tables
    4 and 17). Track 4b, whose pairs come from machine translation, is left out.
    """

    protocol = "Spearman of the cosine, x 100; mean over languages and pairs of them"
    languages = ("ar", "en", "es", "tr")
    # The languages of the first and second column; file names order them differently.
    _TRACKS = {
        "ar": "track1.ar-ar",
        "en-ar": "track2.ar-en",
        "es": "track3.es-es",
        "es-en": "track4a.es-en",
        "en": "track5.en-en",
        "en-tr": "track6.tr-en",
    }
    # The folders of the sentences and of the scores.
    _FOLDERS = {"input": "STS2017.eval.v1.1", "gs": "STS2017.gs"}

    def find_parts(self, source: DataDir) -> dict[str, str]:
        # Either file shows a track, so that a missing one is noticed.
        found = {}
        for part, track in self._TRACKS.items():
            for kind in self._FOLDERS:
                with contextlib.suppress(MissingData):
                    self._find(source, track, kind)
                    found[part] = track
        if not found:
            track = self._TRACKS.get(self._only, self._TRACKS["ar"])
            self._find(source, track, "input")  # Names the missing file.
        return found

    def _find(self, source: DataDir, track: str, kind: str) -> str:
        name = f"STS.{kind}.{track}.txt"
        return source.find(name, f"{self._FOLDERS[kind]}/{name}", within="sts17")

    def read_part(self, source: DataDir, part: str, where: str) -> Pairs:
        path = self._find(source, where, "input")
        return _read_two_files(source, path, self._find(source, where, "gs"))


class RussianSts(StsTask):
    """STS12's MSRvid in Russian, as deepPavlovEval distributes it.

    https://github.com/deeppavlov/deepPavlovEval; Mirror-BERT's tables 4 and 17.
    """

    languages = ("ru",)

    def __init__(self):
        super().__init__("sts-ru", language="ru")

    def read(self, source: DataDir) -> dict[str, Pairs]:
        paths = [
            source.find(
                f"STS2012_MSRvid_translated/STS.{kind}.MSRvid.txt",
                f"STS.{kind}.MSRvid.txt",
                within=self.name,
            )
            for kind in ("input", "gs")
        ]
        return {self.name: _read_two_files(source, *paths)}


class StsFiles(StsTask):
    """The user's own pairs: files of `sentence, sentence, score`, each a subset.

    Args:
        paths: `.csv` files or tab-separated files with scores in any range, see
            `DataDir.find_own`; a file may have a pair of languages.
    """

    def __init__(self, paths: Sequence[str]):
        super().__init__("sts:" + ":".join(paths), paths)

    def read(self, source: DataDir) -> dict[str, Pairs]:
        pairs, found = {}, source.find_own(self._subsets)
        for name, (path, language) in zip(self._subsets, found, strict=True):
            rows = source.rows(path, 3)
            pairs[name] = pairs_of(path, rows, -math.inf, math.inf)
            pairs[name].languages = language_names.of_two_texts(language)
        return pairs

    def _languages(self, pairs: Pairs) -> tuple[str, str]:
        return pairs.languages


def pairs_of(
    path: str, rows: list[list[str]], lowest: float = 0, highest: float = 5
) -> Pairs:
    """Reads the first sentence, the second sentence and the score of each row."""
    scored = (
        (*row[:3], parsing.pair_place(path, number))
        for number, row in enumerate(rows, 1)
    )
    return _scored(scored, path, lowest, highest)


def _scored(
    rows: Iterable[tuple[str, str, str, str]], path: str, lowest: float, highest: float
) -> Pairs:
    """Pairs of sentence, sentence, score, and the place of the score for messages."""
    first, second, gold = [], [], []
    for one, other, score, where in rows:
        first.append(one.strip())
        second.append(other.strip())
        gold.append(parsing.parse_score(score, lowest, highest, where))
    metrics.check_gold(np.array(gold), path)
    return Pairs(first, second, np.array(gold))


def _read_two_files(source: DataDir, path: str, gold_path: str) -> Pairs:
    """Reads STS.input.X.txt and STS.gs.X.txt without the pairs that have no score."""
    rows, gold = source.table(path, 2), source.lines(gold_path)
    parsing.check_line_counts({path: rows, gold_path: gold})
    scored = (
        (*row[:2], score, f"{gold_path}, line {number}")
        for number, (row, score) in enumerate(zip(rows, gold, strict=True), 1)
        if score.strip()
    )
    return _scored(scored, gold_path, 0, 5)


TASKS = [
    StsYear(
        "sts12",
        "STS12",
        ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    ),
    # Without SMT, because its sentences are not free.
    StsYear("sts13", "STS13", ("FNWN", "headlines", "OnWN")),
    StsYear(
        "sts14",
        "STS14",
        ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    ),
    StsYear(
        "sts15",
        "STS15",
        ("answers-forums", "answers-students", "belief", "headlines", "images"),
    ),
    StsYear(
        "sts16",
        "STS16",
        (
            "answer-answer",
            "headlines",
            "plagiarism",
            "postediting",
            "question-question",
        ),
    ),
    *(
        PairFileTask(f"stsb-{part}", senteval_files.sts_benchmark_part, part)
        for part in ("dev", "test")
    ),
    PairFileTask("sick-r", senteval_files.sick_relatedness_part, "test"),
    MultilingualStsb("stsb-multilingual"),
    Sts17("sts17"),
    RussianSts(),
]
