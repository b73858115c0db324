"""Published scores of other sentence encoders, for comparison."""

from __future__ import annotations

from cmlm.evaluation.published.rows import STS, table

ROWS = [
    *table(
        "MTEB; SICK-R: sentence-transformers on SentEval's files",
        STS,
        "all-MiniLM-L6-v2 | 72.37 80.60 75.59 85.39 78.99 82.03 77.15",
        note="SICK-R over SentEval's 4,927 test pairs; MTEB has 77.58 over all 9,927",
    ),
    *table(
        "Gao et al., 2021, table of STS, https://arxiv.org/abs/2104.08821",
        STS,
        """
        BERT-whitening base | 57.83 66.90 60.90 75.08 71.31 68.24 63.73
        IS-BERT base | 56.77 69.24 61.21 75.23 70.16 69.21 64.25
        CT-BERT base | 61.63 76.80 68.47 77.50 76.48 74.31 69.19
        SimCSE-BERT base, unsupervised | 68.40 82.41 74.38 80.91 78.56 76.85 72.23
        """,
    ),
]
