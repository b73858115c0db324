"""CMLM: tables 1 to 11 of Yang et al., 2020, https://arxiv.org/abs/2012.14388.

Tables 7, 9 and 10 repeat the row of CMLM base, and table 9 repeats the row of BERT;
here these rows occur once, under table 1. Table 11 prints the deviations of two rows of
table 1.
"""

from __future__ import annotations

from cmlm.evaluation import averages
from cmlm.evaluation.published.rows import (
    SENTEVAL,
    STS,
    averages_table,
    per_part,
    table,
)

_PAPER = "Yang et al., 2020, https://arxiv.org/abs/2012.14388, table"
_XEVAL = [f"xeval/{name}" for name in averages.XEVAL_LANGUAGES]
# The names of section 4.2, and of this project; table 4's caption and section 4.4
# exchange S1 and S2.
_STRATEGIES = "the table's caption exchanges the names S1 and S2 of section 4.2"

SENTEVAL_ROWS = table(
    f"{_PAPER} 1",
    SENTEVAL,
    """
    SkipThought | 76.5 80.1 93.6 87.1 82.0 92.2 73.0 82.3 85.8 83.8
    InferSent | 81.6 86.5 92.5 90.4 84.2 88.2 75.8 84.3 86.4 85.5
    USE | 80.1 85.2 94.0 86.7 86.4 93.2 70.1 82.4 85.9 84.9
    QuickThought (CC) | 75.7 81.9 94.3 84.7 79.7 83.0 70.4 75.0 78.5 80.4
    XLNet | 83.6 82.1 90.8 89.0 89.0 90.4 70.1 82.1 78.4 83.9
    English BERT base | 81.6 87.4 95.2 87.8 85.8 90.6 71.1 79.3 80.5 84.3
    English BERT base (CC) | 82.5 88.5 95.6 87.3 88.0 91.4 72.0 79.3 79.0 84.6
    SBERT (NLI, base) | 83.6 89.4 94.4 89.9 88.9 89.6 76.0 79.9 80.6 85.8
    CMLM base | 83.6 89.9 96.2 89.3 88.5 91.0 69.7 82.3 83.4 86.0
    English BERT large | 84.3 88.9 95.7 86.8 88.9 91.4 71.8 75.7 77.0 84.5
    English BERT large (CC) | 85.4 89.0 95.7 86.9 90.5 91.2 75.5 74.3 77.0 85.0
    RoBERTa (large) | 85.2 90.6 97.0 90.0 89.5 93.6 74.2 75.1 78.9 86.0
    SBERT (NLI, large) | 84.8 90.0 94.5 90.3 90.7 87.4 76.0 74.9 84.2 85.9
    CMLM large | 85.6 89.1 96.6 89.3 91.4 92.4 70.0 82.2 84.5 86.8
    """,
    average="senteval",
    note="mean of five runs",
)
_OF_SBERT = "a row of SBERT's table 1; one correlation over all pairs of a year"
STS_ROWS = table(
    f"{_PAPER} 2",
    STS,
    """
    Avg. GloVe embeddings | 55.14 70.66 59.73 68.25 63.66 58.02 53.76 61.32
    BERT Mean embeddings | 38.78 57.98 57.98 63.15 61.06 46.35 58.40 54.81
    BERT CLS-vector | 20.16 30.01 20.09 36.88 38.08 16.50 42.63 29.19
    CMLM base | 58.20 61.07 61.67 73.32 74.88 76.60 64.80 67.22
    CMLM large | 59.02 61.68 62.80 74.16 75.64 69.39 66.56 67.03
    """,
    average="sts",
    note="how the subsets of a year are joined is not said",
    notes={
        "Avg. GloVe embeddings": _OF_SBERT,
        "BERT Mean embeddings": f"{_OF_SBERT}; the mean of several last layers of "
        "BERT, so the last layer does not reproduce it (sentence-transformers, issues "
        "621 and 1165)",
        "BERT CLS-vector": _OF_SBERT,
    },
)
# How a language's number joins SentEval's tasks is not said.
XEVAL_ROWS = [
    *averages_table(
        f"{_PAPER} 3",
        _XEVAL,
        """
        mBERT | 76.3 76.1 77.7 76.1 80.1 78.5 78.7 75.6 77.3 70.5 73.6 75.7 74.2 78.8 \
        78.7 76.5
        MLM (CC) | 79.2 79.1 81.7 79.9 84.4 82.1 82.2 79.2 81.2 70.3 76.9 79.0 74.3 \
        81.3 81.0 79.4
        XLM-R | 78.1 78.0 76.2 78.2 82.8 81.2 80.4 77.2 80.2 71.0 77.5 79.7 76.7 80.3 \
        80.8 78.5
        CMLM | 80.6 81.2 82.6 81.4 85.0 82.3 83.4 80.0 82.3 76.2 78.8 81.0 78.5 81.6 \
        81.7 81.2
        """,
        average="xeval",
    ),
    *averages_table(
        f"{_PAPER} 4",
        _XEVAL,
        """
        LASER | 82.1 81.2 81.7 78.1 82.3 81.0 80.8 78.9 82.2 75.8 80.3 81.8 77.2 81.6 \
        82.1 80.4
        f-mBERT | 77.2 78.5 79.7 76.7 81.4 80.0 80.3 77.2 79.1 73.3 76.1 77.1 76.9 \
        79.8 80.4 78.3
        """,
        average="xeval",
    ),
    # An average over fewer languages does not stand beside those over 15.
    *averages_table(
        f"{_PAPER} 4",
        _XEVAL,
        """
        mUSE | 80.4 - 82.2 - 83.3 82.7 82.4 - 82.3 - 81.6 80.3 - - 82.0
        """,
        note="the table's average of this row, 81.9, is over these nine languages",
    ),
    *averages_table(
        f"{_PAPER} 4",
        _XEVAL,
        """
        S2 (CMLM, then bitext) | 78.3 78.9 79.3 78.1 81.0 78.7 79.5 78.0 79.0 76.6 \
        77.8 78.6 77.7 79.0 78.6 78.6
        S1 (joint training) | 81.3 81.0 83.0 81.4 85.6 83.0 83.6 80.4 82.3 77.6 80.1 \
        81.0 79.8 82.4 82.3 81.6
        S3 | 82.6 83.0 84.0 81.8 85.8 84.2 84.6 81.7 84.0 79.3 81.2 82.7 81.2 83.0 \
        83.0 82.8
        S3+NLI | 84.2 83.7 85.0 83.4 87.0 85.9 85.8 83.0 85.6 79.6 83.0 84.2 81.2 \
        84.2 84.4 84.0
        """,
        average="xeval",
        note=_STRATEGIES,
    ),
]
TATOEBA_ROWS = table(
    f"{_PAPER} 5",
    per_part("tatoeba", "accuracy_forward", " ".join(averages.XTREME)),
    """
    mBERT | 42.7 25.8 49.3 17 77.2 29.8 68.7 29.3 25.5 46.1 39 66.3 41.9 34.8 38.7 \
    54.6 58.4 42 17.6 20.5 27.1 38.5 19.8 20.9 68 69.9 61.2 11.5 14.3 16.2 13.7 16 \
    34.8 31.6 62 71.6 38.7
    MLM (CC) | 60.5 51.4 74.8 45 89.3 68.3 81.8 56.8 59.5 81.3 76.6 82.6 72.2 76.2 \
    68.4 82.6 72.8 65.7 49.5 65.8 61.3 66.4 65.3 56.8 83.4 83.1 74.8 65.9 61.3 68.5 \
    70.0 62.7 70.3 80.1 77.0 71.3 69.4
    XLM | 43.2 18.2 40 13.5 66.2 25.6 58.4 24.8 17.1 32.2 32.2 54.5 32.1 26.5 30.1 \
    45.9 56.5 40 22.4 22.9 17.9 25.5 20.1 13.9 59.6 63.9 44.8 12.6 20.2 12.4 31.8 \
    14.8 26.2 18.1 47.1 42.2 32.6
    XLM-R | 58.2 47.5 71.6 43 88.8 61.8 75.7 52.2 35.8 70.5 71.6 73.7 66.4 72.2 65.4 \
    77 68.3 60.6 14.1 52.1 48.5 61.4 65.4 56.8 80.8 82.2 74.1 20.3 26.4 35.9 29.4 \
    36.7 65.7 24.3 74.7 68.3 57.3
    LASER | 89.4 91.9 95.0 89.6 99.0 94.9 98.0 96.7 94.6 71.6 96.3 95.6 92.1 94.7 \
    96.0 94.5 95.4 95.3 23.0 35.9 18.6 88.9 96.9 91.5 96.3 95.2 94.4 57.5 69.4 79.7 \
    95.4 50.6 97.5 81.9 96.8 95.5 84.4
    CMLM | 62.0 53.2 75.0 45.1 89.9 69.9 82.7 59.2 61.6 83.7 77.1 83.5 73.1 76.7 70.3 \
    83.0 73.5 67.2 51.8 65.5 62.7 67.2 65.8 57.0 83.8 83.6 75.5 66.6 61.7 68.8 70.3 \
    63.5 70.5 80.3 77.4 71.7 70.3
    CMLM+BR | 96.3 90.6 95.4 91.2 97.7 95.4 98.1 95.6 92.0 95.6 95.9 96.1 92.8 97.6 \
    96.5 95.6 94.2 95.6 83.4 94.9 88.6 92.4 98.9 94.5 97.3 95.3 94.9 87.0 91.2 97.9 \
    96.6 95.3 98.6 94.4 97.5 95.6 94.7
    CMLM+BR+NLI | 90.5 83.6 92.6 86.4 97.6 91.6 95.5 82.6 76.3 90.7 88.9 93.5 86.8 \
    94.6 89.6 91.7 90.4 88.4 66.9 88.1 80.3 85.6 94.9 90.7 93.2 92.3 91.7 76.7 88.6 \
    92.8 94.7 82.0 94.3 84.7 94.3 93.1 88.8
    """,
    average="tatoeba/xtreme36",
    note="36 languages of XTREME; the direction is not said. XTREME's script searches "
    "from English, and reads mBERT at layer 7 of 12 and XLM-R at layer 13 of 24",
)
_REVIEWS = per_part("amazon", "accuracy", "en fr de ja")
AMAZON_ROWS = [
    *table(
        f"{_PAPER} 6",
        _REVIEWS,
        """
        Eriguchi et al. (2018) | 83.2 81.3 - -
        MTDE en-fr | 87.4 82.3 - -
        MTDE en-de | 87.1 - 81.0 -
        mBERT | 80.0 73.1 70.4 71.7
        XLM-R | - 85.3 81.5 82.5
        MLM (CC) | 84.6 84.9 84.3 82.1
        CMLM | 88.4 88.2 87.5 83.7
        CMLM+BR | 88.3 87.2 86.4 83.2
        CMLM+BR+NLI | 89.4 88.8 88.4 82.8
        """,
        note="encoder frozen; books, DVDs and music, 6,000 test reviews a language",
    ),
]
# `cmlm.finetune` scores these; a report of `cmlm.evaluate` has no column for them.
AMAZON_TUNED_ROWS = table(
    f"{_PAPER} 6",
    _REVIEWS,
    """
    mBERT, tuned | 89.3 83.5 79.4 74.0
    MLM (CC), tuned | 92.9 88.7 88.4 86.3
    CMLM, tuned | 93.4 92.4 92.1 88.6
    CMLM+BR, tuned | 93.6 93.1 92.3 88.1
    CMLM+BR+NLI, tuned | 93.7 92.4 93.5 86.8
    """,
    note="encoder trained too; books, DVDs and music, 6,000 test reviews a language",
)
ABLATION_ROWS = [
    *table(
        f"{_PAPER} 7",
        SENTEVAL,
        """
        CMLM base, N = 1 | 82.3 89.7 95.8 88.8 87.6 90.4 71.5 80.8 83.4 85.5
        CMLM base, N = 5 | 83.7 90.0 95.5 89.0 89.4 86.6 69.5 79.3 81.7 85.0
        CMLM base, N = 10 | 83.4 89.0 96.1 88.9 88.2 90.2 68.5 79.7 81.5 84.9
        CMLM base, N = 20 | 81.1 89.5 95.8 88.9 85.9 89.8 69.7 80.2 85.0 85.1
        CMLM base, skip | 80.3 86.8 94.5 87.5 84.9 86.0 69.2 72.8 74.7 81.9
        CMLM base, proj | 82.6 89.7 96.0 87.3 87.5 89.2 70.5 81.7 83.8 85.4
        """,
        average="senteval",
        is_ablation=True,
    ),
    *table(
        f"{_PAPER} 9",
        SENTEVAL,
        """
        CMLM base, max | 82.8 88.9 96.2 89.2 87.81 89.8 72.1 82.1 83.7 85.8
        CMLM base, CLS | 79.1 84.3 94.2 86.9 84.9 82.6 68.4 79.3 81.7 82.4
        English BERT base, max | 79.6 85.5 94.6 87.3 83.0 90.0 65.6 75.5 78.1 82.1
        English BERT base, CLS | 79.9 83.9 93.8 85.4 86.1 81.0 69.5 62.5 48.8 76.8
        """,
        average="senteval",
        is_ablation=True,
    ),
    *table(
        f"{_PAPER} 10",
        SENTEVAL,
        """
        CMLM base, 40 of 256 masked | 81.8 89.3 95.3 87.8 87.0 90.2 68.5 77.5 77.6 83.9
        CMLM base, 60 of 256 masked | 83.7 89.5 95.8 88.9 88.0 90.3 68.7 79.5 82.8 85.4
        CMLM base, 100 of 256 masked | 83.2 89.5 95.5 88.7 88.0 90.8 70.0 81.5 82.7 85.6
        """,
        average="senteval",
        is_ablation=True,
    ),
]
_PCR_LANGUAGES = " ".join(averages.PCR_LANGUAGES)
PCR_ROWS = [
    *table(
        f"{_PAPER} 8",
        per_part("tatoeba", "accuracy_forward", _PCR_LANGUAGES),
        """
        mBERT (table 8) | 60.2 60.2 62.8 65.9 53.8 55.7 32.4 62.4 31.9 39.0 56.2 52.8
        CMLM+BR (table 8) | 96.1 95.6 98.1 97.7 94.9 94.2 98.6 95.3 96.5 95.6 97.3 96.3
        """,
        average="tatoeba/pcr11",
        note="the direction is not said; mBERT differs from its row in table 5",
    ),
    *table(
        f"{_PAPER} 8",
        per_part("tatoeba", "accuracy_forward_pcr", _PCR_LANGUAGES),
        """
        mBERT + PCR | 59.9 64.3 61.7 67.5 57.4 56.2 33.3 64.4 36.5 42.3 61.1 54.8
        CMLM+BR + PCR | 95.5 96.0 98.2 97.9 95.1 94.1 98.5 95.8 96.6 95.3 97.2 96.4
        """,
        average="tatoeba/pcr11_pcr",
        note="the direction is not said",
    ),
]
DEVIATION_ROWS = table(
    f"{_PAPER} 11",
    [(task, f"{metric}_std") for task, metric in SENTEVAL],
    """
    CMLM base, deviation | 0.2 0.4 0.1 0.3 0.2 0.8 0.6 0.3 0.4
    CMLM large, deviation | 0.2 0.3 0.2 0.3 0.1 0.7 1.0 0.5 0.4
    """,
    note="of five runs; printed as variances, read here as standard deviations",
)
ROWS = [
    *SENTEVAL_ROWS,
    *STS_ROWS,
    *XEVAL_ROWS,
    *TATOEBA_ROWS,
    *AMAZON_ROWS,
    *ABLATION_ROWS,
    *PCR_ROWS,
    *DEVIATION_ROWS,
]
