"""The averages that papers print, and the scores behind each average."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cmlm.errors import UserError
from cmlm.evaluation import tatoeba_codes

# The name of the group of a task's parts that are asked for alone.
_PARTS = "parts"
# (task, metric) of a score.
Key = tuple[str, str]
Scores = Mapping[str, Mapping[str, float]]


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of scores and the name of their average.

    Attributes:
        name: the name of the average in results, such as `tatoeba/xtreme36`;
            `published` uses the same names.
        family: the family whose table shows the average.
        about: one line on the averaged scores and the paper that prints the average.
        parts: the scores of each part, by part name. A part with several scores, such
            as a language of XEVAL, contributes their mean.
    """

    name: str
    family: str
    about: str
    parts: Mapping[str, tuple[Key, ...]]


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The parts of a group that some results hold.

    Attributes:
        group: the group.
        keys: the scores that the results hold, by part.
        missing: the parts that lack some or all of their scores.
    """

    group: Group
    keys: Mapping[str, tuple[Key, ...]]
    missing: tuple[str, ...]

    @property
    def title(self) -> str:
        """The group's name with the number of its parts."""
        total = len(self.group.parts)
        found = f"{len(self.keys)} of {total}" if self.missing else f"mean of {total}"
        return f"{self.group.name} ({found})"

    def mean(self, scores: Mapping[Key, float]) -> float | None:
        """The mean over the scored parts; None if `scores` lacks one of `keys`."""
        if any(key not in scores for keys in self.keys.values() for key in keys):
            return None
        means = [np.mean([scores[key] for key in keys]) for keys in self.keys.values()]
        return float(np.mean(means))


def cover(group: Group, scores: Scores) -> Coverage:
    """Finds the parts of a group that a model's scores hold.

    The scores of `bli/en-fr` may come from the task `bli` or from `bli-en-fr`.

    Args:
        group: the group.
        scores: metrics and their values, by task.
    """
    keys, missing = {}, []
    for part, wanted in group.parts.items():
        found = {key: _scored(key, scores) for key in wanted}
        there = tuple(key for key in found.values() if key)
        if there:
            keys[part] = there
        absent = [task for (task, _), key in found.items() if not key]
        if absent:
            missing.append(f"{part} without {', '.join(absent)}" if there else part)
    return Coverage(group, keys, tuple(missing))


def _scored(key: Key, scores: Scores) -> Key | None:
    """The key of a score, or of the same score of a part asked for alone, or None."""
    task, metric = key
    if metric in scores.get(task, {}):
        return key
    name, _, part = metric.partition("/")
    alone = f"{task}-{part}"
    return (alone, name) if part and name in scores.get(alone, {}) else None


def coverage(scores: Scores, own: Sequence[Group]) -> list[Coverage]:
    """The groups with at least two parts in a model's scores; see `cover`.

    Args:
        scores: metrics and their values, by task.
        own: the user's groups, beside those of the papers.
    """
    found = [cover(group, scores) for group in (*GROUPS, *own)]
    return [item for item in found if len(item.keys) > 1]


def flat(scores: Scores) -> dict[Key, float]:
    """Flattens scores by task and metric into scores by (task, metric)."""
    return {
        (task, metric): value
        for task, metrics in scores.items()
        for metric, value in metrics.items()
    }


def of(scores: Scores, own: Sequence[Group] = ()) -> dict[str, float]:
    """The averages of a model, by group name."""
    by_key = flat(scores)
    return {item.group.name: item.mean(by_key) for item in coverage(scores, own)}


def describe(
    models: Mapping[str, Scores], own: Sequence[Group] = ()
) -> dict[str, dict[str, Any]]:
    """The entry of results.json on each average, apart from its value.

    `scored` and `missing` are those of the first model that has the average. The entry
    `models` has those of each model whose average covers other parts.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, scores in models.items():
        for item in coverage(scores, own):
            group = item.group
            covered = {"scored": list(item.keys), "missing": list(item.missing)}
            general = {"about": group.about, "parts": len(group.parts)}
            entry = found.setdefault(group.name, general | covered)
            if any(entry[key] != value for key, value in covered.items()):
                entry.setdefault("models", {})[name] = covered
    return found


def check_own(names: Iterable[str]) -> None:
    """Raises UserError if the user's group has the name of another group of a task."""
    taken = {group.name.partition("/")[2] for group in GROUPS} - {""} | {_PARTS}
    for name in names:
        if name in taken:
            raise UserError(
                f"--group has {name!r}; allowed: another name than "
                f"{', '.join(sorted(taken))}"
            )


def own_groups(
    languages_of: Mapping[str, Sequence[str]], tasks: Mapping[str, Mapping[str, Any]]
) -> list[Group]:
    """The user's groups in every task, and those of parts that are asked for alone.

    Args:
        languages_of: the languages or pairs of each group, by name.
        tasks: the descriptions of the tasks in results.json.

    Returns:
        Groups `TASK/NAME` of the tasks' main metrics. `TASK/parts` has the parts that
        are asked for alone, as in `--tasks=bli-en-fr,bli-en-it`.
    """
    wholes: dict[str, Mapping[str, Any]] = {}
    alone: dict[str, list[str]] = {}
    for task, about in tasks.items():
        whole = about["part_of"] or task
        wholes[whole] = about
        if whole != task:
            alone.setdefault(whole, []).append(task.removeprefix(f"{whole}-"))
    groups = []
    for task, about in wholes.items():
        metric = about["main_metric"]
        for name, parts in {_PARTS: alone.get(task, ()), **languages_of}.items():
            groups.append(
                Group(
                    f"{task}/{name}",
                    about["family"],
                    f"{task}, {metric} of {', '.join(parts)}",
                    _by_part(task, metric, parts),
                )
            )
    return groups


# ---------------------------------------------------------------------- groups


def _tasks(names: str, metric: str) -> dict[str, tuple[Key, ...]]:
    return {name: ((name, metric),) for name in names.split()}


def _by_part(
    task: str, metric: str, parts: Sequence[str]
) -> dict[str, tuple[Key, ...]]:
    return {part: ((task, f"{metric}/{part}"),) for part in parts}


SENTEVAL = {
    **_tasks("mr cr subj mpqa sst2 trec mrpc sick-e", "accuracy"),
    **_tasks("sick-r-trained", "pearson"),
}
_STS_YEARS = "sts12 sts13 sts14 sts15 sts16"
STS = _tasks(f"{_STS_YEARS} stsb-test sick-r", "spearman")
_STS_SUBSETS = {**STS, **_tasks(_STS_YEARS, "spearman_mean")}
XEVAL_LANGUAGES = "ar bg de el en es fr hi ru sw th tr ur vi zh".split()
# Hu et al., 2020, https://arxiv.org/abs/2003.11080: XTREME's Tatoeba.
XTREME = (
    "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru "
    "sw ta te th tl tr ur vi zh"
).split()
# m-USE's 16 languages, without English and with Chinese counted once.
MUSE = "ar de es fr it ja ko nl pl pt ru th tr zh".split()
PCR_LANGUAGES = "fr zh es de ru it tr pt hu ja nl".split()
_TATOEBA = (
    "afr amh ang ara arq arz ast awa aze bel ben ber bos bre bul cat cbk ceb ces cha "
    "cmn cor csb cym dan deu dsb dtp ell epo est eus fao fin fra fry gla gle glg gsw "
    "heb hin hrv hsb hun hye ido ile ina ind isl ita jav jpn kab kat kaz khm kor kur "
    "kzj lat lfn lit lvs mal mar max mhr mkd mon nds nld nno nob nov oci orv pam pes "
    "pms pol por ron rus slk slv spa sqi srp swe swg swh tam tat tel tgl tha tuk tur "
    "tzl uig ukr urd uzb vie war wuu xho yid yue zsm"
).split()
_WITHOUT_LASER = set(
    "ang arq arz ast awa ceb cha csb cym dsb fao fry gla gsw hsb jav max mon nno nov "
    "orv pam pms swg tuk tzl war xho yid".split()
)
TATOEBA = [tatoeba_codes.short(code) for code in _TATOEBA]
LASER = [tatoeba_codes.short(code) for code in _TATOEBA if code not in _WITHOUT_LASER]


def _tatoeba(
    name: str, parts: list[str], about: str, metric: str = "accuracy_forward"
) -> Group:
    is_forward = metric.startswith("accuracy_forward")
    direction = "language to English" if is_forward else "English to language"
    return Group(
        f"tatoeba/{name}",
        "bitext",
        f"Tatoeba, {direction}, {about}",
        _by_part("tatoeba", metric, parts),
    )


def _xeval(language: str) -> tuple[Key, ...]:
    return tuple(
        (f"xeval-{task}", f"{metric}/{language}")
        for ((task, metric),) in SENTEVAL.values()
    )


GROUPS = [
    Group("sts", "sts", "STS12-16, STS-B, SICK-R; all pairs of a year", STS),
    Group("sts/subsets", "sts", "the same; a year is its subsets' mean", _STS_SUBSETS),
    Group(
        "sts/es-ar-ru",
        "sts",
        "Spanish and Arabic of STS 2017, Russian MSRvid (Mirror-BERT, tables 4 and 17)",
        {
            **_by_part("sts17", "spearman", ["es", "ar"]),
            **_tasks("sts-ru", "spearman"),
        },
    ),
    Group(
        "senteval",
        "senteval",
        "the nine columns of CMLM's table 1 (SICK-R trained, Pearson)",
        SENTEVAL,
    ),
    Group(
        "senteval/labse",
        "senteval",
        "the seven columns of LaBSE's table 4",
        _tasks("mr cr subj mpqa trec sst2 mrpc", "accuracy"),
    ),
    *(
        Group(
            f"xeval/{language}",
            "xeval",
            f"SentEval's nine tasks in {language} (CMLM, tables 3 and 4)",
            {key[0]: (key,) for key in _xeval(language)},
        )
        for language in XEVAL_LANGUAGES
    ),
    Group(
        "xeval",
        "xeval",
        "mean over 15 languages of their means over tasks (CMLM, tables 3 and 4)",
        {language: _xeval(language) for language in XEVAL_LANGUAGES},
    ),
    _tatoeba("xtreme36", XTREME, "XTREME's 36 languages (CMLM, table 5; LaBSE)"),
    _tatoeba(
        "xtreme36_backward",
        XTREME,
        "the same languages in the direction of XTREME's script",
        "accuracy_backward",
    ),
    _tatoeba("muse14", MUSE, "14 languages of m-USE (LaBSE, table 5)"),
    _tatoeba(
        "laser83",
        LASER,
        "LASER's languages, 83 of the 112 (LaBSE's table 5 counts 82, without a list)",
    ),
    _tatoeba("all112", TATOEBA, "all 112 languages (LaBSE, tables 2 and 5)"),
    _tatoeba("pcr11", PCR_LANGUAGES, "the 11 languages of CMLM's table 8"),
    _tatoeba(
        "pcr11_pcr",
        PCR_LANGUAGES,
        "the same after PCR (table 8)",
        "accuracy_forward_pcr",
    ),
    Group(
        "un",
        "bitext",
        "United Nations corpus, English to language (LaBSE, table 2)",
        _by_part("un", "accuracy_backward", ["es", "fr", "ru", "zh"]),
    ),
    Group(
        "multi-simlex",
        "lexical",
        "Multi-SimLex, 8 languages (Mirror-BERT, tables 1 and 16)",
        _by_part("multi-simlex", "spearman", "en fr et ar zh ru es pl".split()),
    ),
    Group(
        "multi-simlex-cross",
        "lexical",
        "crossed Multi-SimLex, 6 language pairs (Mirror-BERT, tables 5 and 18)",
        _by_part(
            "multi-simlex-cross",
            "spearman",
            "en-fr en-zh en-he zh-fr fr-he zh-he".split(),
        ),
    ),
    Group(
        "bli",
        "bli",
        "6 language pairs, learnt mapping (Mirror-BERT, tables 6 and 19)",
        _by_part(
            "bli",
            "accuracy_mapped",
            "en-fr en-it en-ru en-tr it-fr ru-fr".split(),
        ),
    ),
]
