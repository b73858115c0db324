"""What others have published, as data: rows that a report shows beside its own.

Only numbers that were read at the source that is named. Metrics are named as this
package names them; where a source leaves the protocol open, its note says so.
"""

from __future__ import annotations

import dataclasses

# As the papers order their STS tables.
_STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb-test", "sick-r")
_SENTEVAL = {
    "mr": "accuracy",
    "cr": "accuracy",
    "subj": "accuracy",
    "mpqa": "accuracy",
    "sst2": "accuracy",
    "trec": "accuracy",
    "mrpc": "accuracy",
    "sick-e": "accuracy",
    "sick-r-trained": "pearson",
}
_DIFFCSE = "Chuang et al., 2022, table of STS, https://arxiv.org/abs/2204.10298"
_SIMCSE = "Gao et al., 2021, table of STS, https://arxiv.org/abs/2104.08821"
_HUB = "https://tfhub.dev/google/universal-sentence-encoder-cmlm/"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of somebody's table.

    Attributes:
        model: as its authors call it.
        source: where the numbers were read.
        scores: (task, metric) to a number on this package's scale.
        note: what differs in the protocol.
    """

    model: str
    source: str
    scores: dict[tuple[str, str], float]
    note: str = ""


def _sts(model: str, source: str, *values: float) -> Row:
    keys = [(task, "spearman") for task in _STS]
    return Row(model, source, dict(zip(keys, values, strict=True)))


def _senteval(model: str, source: str, *values: float) -> Row:
    return Row(model, source, dict(zip(_SENTEVAL.items(), values, strict=True)))


ROWS = [
    # ----------------------------------------------------------------- STS
    _sts(
        *(
            "all-MiniLM-L6-v2",
            "the same files, sentence-transformers; equal to MTEB's",
        ),
        *(72.37, 80.60, 75.59, 85.39, 78.99, 82.03, 77.15),
    ),
    _sts(
        *("CMLM-BERT base (1 TB of text)", _DIFFCSE),
        *(58.20, 61.07, 61.67, 73.32, 74.88, 76.60, 64.80),
    ),
    _sts(
        *("BERT-whitening base", _SIMCSE),
        *(57.83, 66.90, 60.90, 75.08, 71.31, 68.24, 63.73),
    ),
    _sts(
        *("IS-BERT base", _SIMCSE),
        *(56.77, 69.24, 61.21, 75.23, 70.16, 69.21, 64.25),
    ),
    _sts(
        *("CT-BERT base", _SIMCSE),
        *(61.63, 76.80, 68.47, 77.50, 76.48, 74.31, 69.19),
    ),
    _sts(
        *("SimCSE-BERT base, unsupervised", _SIMCSE),
        *(68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23),
    ),
    # ------------------------------------------------------------- SentEval
    _senteval(
        *("CMLM base", _HUB + "en-base/1"),
        *(83.6, 89.9, 96.2, 89.3, 88.5, 91.0, 69.7, 82.3, 83.4),
    ),
    _senteval(
        *("CMLM large", _HUB + "en-large/1"),
        *(85.6, 89.1, 96.6, 89.3, 91.4, 92.4, 70.0, 82.2, 84.5),
    ),
    # --------------------------------------------------------- multilingual
    Row(
        "LaBSE",
        "https://tfhub.dev/google/LaBSE/1",
        {("tatoeba", "accuracy_xtreme36"): 95.0},
        "36 languages; the page does not say which direction",
    ),
    # -------------------------------------------------------------- lexical
    Row(
        "fastText",
        "https://github.com/cambridgeltl/mirror-bert",
        {("multi-simlex", "spearman/en"): 52.80},
    ),
    Row(
        "Mirror-BERT base (words)",
        "https://github.com/cambridgeltl/mirror-bert",
        {("multi-simlex", "spearman/en"): 55.60},
    ),
]


def score(row: Row, task: str, metric: str) -> float | None:
    """A published number, None where there is none."""
    return row.scores.get((task, metric))
