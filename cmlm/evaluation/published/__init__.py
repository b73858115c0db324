"""What others have published, as data: rows that a report shows beside its own.

A file for each paper. Only numbers that were read at the source that is named; metrics
have this package's names. Where a source leaves the protocol open, its note says so.
"""

from __future__ import annotations

from cmlm.evaluation.published import cmlm_paper, labse, mirror_bert, others, ulr
from cmlm.evaluation.published.rows import Row

__all__ = ["FINETUNED", "ROWS", "Row", "average", "score"]

# What `cmlm.evaluate` scores.
ROWS: list[Row] = [
    *(*others.ROWS, *cmlm_paper.ROWS, *labse.ROWS, *mirror_bert.ROWS, *ulr.ROWS)
]
# What `cmlm.finetune` scores.
FINETUNED: list[Row] = [*cmlm_paper.AMAZON_TUNED_ROWS, *ulr.FINETUNED_ROWS]


def score(row: Row, task: str, metric: str) -> float | None:
    """A published number; None where the row does not have it."""
    return row.scores.get((task, metric))


def average(row: Row, group: str) -> float | None:
    """A published average; None where the row does not have it."""
    return row.averages.get(group)
