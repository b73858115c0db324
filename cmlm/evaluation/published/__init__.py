"""Published results as data: rows that a report shows beside its own scores.

Each paper has a file. Every number was read at the named source; metrics have this
package's names. If a source leaves the protocol open, the note of its rows says so.
"""

from __future__ import annotations

from cmlm.evaluation.published import cmlm_paper, labse, mirror_bert, others, ulr
from cmlm.evaluation.published.rows import Row

__all__ = ["FINETUNED", "ROWS", "Row"]

# Rows of tasks that `cmlm.evaluate` scores.
ROWS: list[Row] = [
    *others.ROWS,
    *cmlm_paper.ROWS,
    *labse.ROWS,
    *mirror_bert.ROWS,
    *ulr.ROWS,
]
# Rows of tasks that `cmlm.finetune` scores.
FINETUNED: list[Row] = [*cmlm_paper.AMAZON_TUNED_ROWS, *ulr.FINETUNED_ROWS]
