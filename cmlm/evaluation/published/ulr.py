"""ULR and MiSAD: tables 2 to 9 of Li & Zhao, 2021, https://arxiv.org/abs/2105.14478."""

from __future__ import annotations

from cmlm.evaluation.published.rows import table

_PAPER = "Li & Zhao, 2021, https://arxiv.org/abs/2105.14478, table"
_ANALOGY = [
    ("ulr-analogy", f"accuracy/{level}{kind}")
    for level in ("word", "phrase", "sentence")
    for kind in ("-semantic", "-syntactic", "")
]

ANALOGY_ROWS = table(
    f"{_PAPER} 2",
    [*_ANALOGY, ("ulr-analogy", "accuracy")],
    """
    GloVe | 82.6 78.0 80.3 0.0 40.9 20.5 0.2 39.8 20.0 40.3
    InferSent | 68.8 88.7 78.8 0.0 54.1 27.0 0.0 50.8 25.4 43.7
    GenSen | 44.5 84.4 64.5 0.0 54.4 27.2 0.0 44.9 22.4 38.0
    USE | 73.0 83.1 78.0 1.8 63.1 32.5 0.6 44.1 22.4 44.3
    LASER | 26.9 78.2 52.6 0.0 63.3 31.7 1.6 55.4 28.5 37.6
    BERT base | 51.3 60.2 55.8 0.3 69.3 34.8 0.1 68.3 34.2 41.6
    BERT large | 49.7 46.6 48.2 0.1 67.4 33.9 0.5 61.2 30.9 37.7
    ALBERT base | 33.7 38.1 35.9 0.1 53.6 26.7 0.1 60.9 30.5 31.0
    ALBERT xxlarge | 38.2 35.6 36.9 0.8 52.3 26.6 0.4 49.4 24.9 29.5
    ELECTRA base | 22.9 32.4 27.7 2.2 57.1 29.7 0.4 39.5 20.0 25.8
    ELECTRA large | 20.4 24.7 22.6 2.9 49.8 26.4 1.4 52.0 26.7 25.2
    ULR-BERT base | 71.7 70.0 70.8 1.1 66.8 34.0 1.5 63.0 32.3 45.7
    ULR-BERT large | 80.8 66.2 73.5 8.4 60.5 34.5 4.7 54.3 29.5 45.8
    ULR-ALBERT base | 43.5 56.3 49.9 0.3 58.2 29.3 0.3 60.9 30.6 36.6
    ULR-ALBERT xxlarge | 26.8 31.0 28.9 3.6 55.0 29.3 0.7 60.3 30.5 29.6
    ULR-ELECTRA base | 24.4 34.6 29.5 1.7 56.5 29.1 0.9 57.6 29.3 29.3
    ULR-ELECTRA large | 22.0 31.0 26.5 2.9 56.7 29.8 0.8 52.9 26.9 27.7
    """,
)
PARAPHRASE_ROWS = [
    *table(
        f"{_PAPER} 4",
        [("geogranno", name) for name in ("accuracy", "accuracy@5", "accuracy@10")],
        """
        GloVe | 0.3 2.7 7.4
        LASER | 6.3 9.5 12.7
        BM25 | 27.1 62.5 76.4
        BERT base | 29.6 58.9 67.1
        MLM-BERT base | 37.0 66.8 72.6
        ULR-BERT base | 39.7 66.0 77.3
        BERT large | 15.9 42.7 54.2
        MLM-BERT large | 24.5 57.8 70.7
        ULR-BERT large | 35.1 68.8 77.3
        """,
    ),
    *table(
        f"{_PAPER} 8",
        [("geogranno", name) for name in ("accuracy", "accuracy@5", "accuracy@10")],
        """
        ALBERT base | 18.4 41.1 52.6
        ELECTRA base | 11.2 21.1 26.6
        ULR-ALBERT base | 24.9 44.7 55.9
        ULR-ELECTRA base | 26.8 51.8 65.5
        """,
    ),
]
# In the order of the paper's columns; MNLI counts twice in its averages.
GLUE = [
    ("cola", "matthews"),
    ("sst2", "accuracy"),
    ("mnli", "accuracy/matched"),
    ("mnli", "accuracy/mismatched"),
    ("qnli", "accuracy"),
    ("rte", "accuracy"),
    ("mrpc", "f1"),
    ("qqp", "f1"),
    ("stsb", "pearson"),
]
# `cmlm.finetune` scores these; a report of `cmlm.evaluate` has no column for them.
GLUE_TEST_ROWS = table(
    f"{_PAPER} 3 and 5",
    GLUE,
    """
    BERT base, its paper | 52.1 93.5 84.6 83.4 90.5 66.4 88.9 71.2 87.1 79.7
    BERT large, its paper | 60.5 94.9 86.7 85.9 92.7 70.1 89.3 72.1 87.6 82.2
    BERT base | 53.5 92.1 84.5 83.7 90.6 67.1 87.5 71.6 85.3 79.5
    MLM-BERT base | 51.9 94.0 84.5 83.9 90.4 66.6 88.1 71.6 86.2 79.7
    NSP-BERT base | 53.5 93.2 84.1 83.5 90.5 66.1 87.7 72.1 84.5 79.5
    SOP-BERT base | 50.9 92.7 84.0 83.1 90.7 66.5 85.0 70.9 83.9 78.6
    ULR-BERT base | 56.5 94.3 84.6 84.0 91.0 68.0 89.0 71.6 86.6 80.6
    BERT large | 60.5 94.9 86.1 85.6 92.8 68.8 89.6 72.1 87.3 82.0
    MLM-BERT large | 62.6 94.5 86.6 85.6 92.8 67.1 88.9 72.3 87.2 82.0
    ULR-BERT large | 61.8 95.0 86.7 86.0 93.0 71.0 90.2 72.3 88.2 82.7
    """,
    average="glue",
    note="GLUE's test server",
)
GLUE_DEV_ROWS = table(
    f"{_PAPER} 7",
    GLUE,
    """
    ULR-BERT base, random spans | 56.1 93.1 84.5 84.9 91.5 66.1 91.5 87.9 89.8 82.8
    ULR-BERT base, named entities | 57.1 93.1 84.4 84.7 91.6 67.5 90.8 87.9 89.9 83.0
    ULR-BERT base, PMI n-grams | 59.3 93.6 84.7 84.9 91.8 69.3 90.8 87.8 89.9 83.6
    """,
    average="glue",
    note="development sets",
)
GLUE_DEV_AVERAGE_ROWS = table(
    f"{_PAPER} 8",
    [],
    """
    BERT base | 82.6
    ALBERT base | 83.0
    ELECTRA base | 86.5
    ULR-BERT base | 83.6
    ULR-ALBERT base | 83.4
    ULR-ELECTRA base | 86.9
    """,
    average="glue",
    note="development sets",
)
# Five seeds on the development sets: deviation, mean, highest.
SEED_ROWS = table(
    f"{_PAPER} 6",
    [
        (task, f"{metric}{what}")
        for task, metric in (("cola", "matthews"), ("rte", "accuracy"), ("mrpc", "f1"))
        for what in ("_std", "", "_max")
    ],
    """
    BERT base | 1.51 57.0 58.3 1.92 68.1 70.4 0.52 90.4 90.9
    ULR-BERT base | 1.31 59.3 60.2 1.83 69.3 72.6 0.61 90.8 91.5
    """,
    note="development sets, five seeds",
)
# Top-10 accuracy by query length, and by the difference between query and phrase.
LENGTH_ROWS = table(
    f"{_PAPER} 9",
    [
        ("geogranno", f"accuracy@10/{group}")
        for group in (
            "query 1-6",
            "query 7-8",
            "query 9-15",
            "difference 0+",
            "difference 2+",
            "difference 3+",
        )
    ],
    """
    BERT base | 73.9 64.9 62.5 67.1 63.0 57.0
    ULR-BERT base | 79.8 76.1 75.9 77.3 76.2 70.3
    """,
)
ROWS = [*ANALOGY_ROWS, *PARAPHRASE_ROWS, *LENGTH_ROWS]
# Rows of tasks that `cmlm.finetune` scores.
FINETUNED_ROWS = [
    *GLUE_TEST_ROWS,
    *GLUE_DEV_ROWS,
    *GLUE_DEV_AVERAGE_ROWS,
    *SEED_ROWS,
]
