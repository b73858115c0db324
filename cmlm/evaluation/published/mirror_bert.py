"""Mirror-BERT: tables 1 to 10, 12 to 14 and 16 to 20 of Liu et al., 2021.

https://arxiv.org/abs/2104.08027. The appendix repeats the tables of the text and adds a
row for the untuned model with [CLS] pooling; here each row occurs once. Of tables 9 and
14, this module has the rows of sentences: words and phrases are scored on a list of the
user's (`geometry:FILE`), a task without a fixed name. Correlations and accuracies are
times 100. Table 4 has .533 as the mean of BERT's mean pooling. Table 17 has .535, which
follows from its cells and stands here.
"""

from __future__ import annotations

from cmlm.evaluation.published.rows import STS, averages_table, per_part, table

_PAPER = "Liu et al., 2021, https://arxiv.org/abs/2104.08027, table"
_WITH_PADDING = "the mean counts padding (cambridgeltl/mirror-bert, issue 6)"

WORD_ROWS = table(
    f"{_PAPER} 1 and 16",
    per_part("multi-simlex", "spearman", "en fr et ar zh ru es pl"),
    """
    fastText | .528 .560 .447 .409 .428 .435 .488 .396 .461
    BERT of the language, CLS | .105 .050 .160 .210 .277 .177 .152 .257 .174
    BERT of the language, mean | .267 .020 .106 .220 .398 .202 .177 .217 .201
    BERT of the language + Mirror | .556 .621 .308 .538 .639 .365 .296 .444 .471
    mBERT, CLS | .062 .046 .074 .047 .204 .063 .039 .051 .073
    mBERT, mean | .105 .130 .094 .101 .261 .109 .095 .087 .123
    mBERT + Mirror | .358 .341 .134 .097 .501 .210 .332 .141 .264
    """,
    average="multi-simlex",
    factor=100,
)
LINKING_ROWS = table(
    f"{_PAPER} 2",
    [
        (task, metric)
        for task in (
            "ncbi-disease",
            "bc5cdr-disease",
            "bc5cdr-chemical",
            "askapatient",
            "cometa",
        )
        for metric in ("accuracy", "accuracy@5")
    ],
    """
    SapBERT | .920 .956 .935 .960 .965 .982 .705 .889 .659 .779
    BERT, mean | .676 .770 .815 .891 .798 .912 .382 .433 .404 .477
    BERT + Mirror | .872 .921 .921 .949 .957 .971 .555 .695 .547 .647
    PubMedBERT, mean | .778 .869 .890 .938 .930 .946 .425 .496 .468 .532
    PubMedBERT + Mirror | .909 .948 .930 .962 .958 .979 .590 .750 .603 .713
    """,
    factor=100,
)
STS_ROWS = [
    *table(
        f"{_PAPER} 3",
        STS,
        """
        SBERT | .719 .774 .742 .799 .747 .774 .721 .754
        BERT, CLS | .215 .321 .213 .379 .442 .203 .427 .314
        BERT, mean | .314 .536 .433 .582 .596 .464 .528 .493
        BERT + Mirror | .670 .801 .713 .812 .743 .764 .699 .743
        BERT + Mirror (drophead) | .691 .811 .730 .819 .757 .780 .691 .754
        RoBERTa, CLS | .090 .327 .210 .338 .388 .317 .355 .289
        RoBERTa, mean | .134 .126 .124 .203 .224 .129 .320 .180
        RoBERTa + Mirror | .646 .818 .734 .802 .782 .787 .703 .753
        RoBERTa + Mirror (drophead) | .666 .827 .740 .824 .797 .796 .697 .764
        """,
        average="sts",
        factor=100,
        notes={"BERT, mean": _WITH_PADDING, "RoBERTa, mean": _WITH_PADDING},
    ),
    *table(
        f"{_PAPER} 20",
        STS,
        """
        BERT + Mirror, no dropout | .646 .770 .691 .800 .726 .745 .701 .726
        BERT + Mirror, no span mask | .641 .775 .684 .777 .737 .749 .658 .717
        BERT + Mirror, neither | .587 .695 .617 .688 .683 .674 .614 .651
        RoBERTa + Mirror, no dropout | .619 .795 .706 .802 .777 .727 .698 .732
        RoBERTa + Mirror, no span mask | .616 .786 .689 .766 .743 .756 .663 .717
        RoBERTa + Mirror, neither | .562 .730 .643 .744 .752 .708 .638 .682
        """,
        average="sts",
        note="the full models differ from table 3 by up to .005 a set",
        factor=100,
        is_ablation=True,
    ),
    *table(
        f"{_PAPER} 8",
        [("sts12", "spearman")],
        """
        RoBERTa + Mirror, no span mask, no dropout | .562
        RoBERTa + Mirror, no span mask, dropout | .648
        RoBERTa + Mirror, no span mask, controlled dropout | .452
        """,
        note="table 20 has .616 for the second",
        factor=100,
        is_ablation=True,
    ),
]
# Tables that print only the average of the seven STS sets.
RATE_ROWS = [
    *averages_table(
        f"{_PAPER} 12",
        ["sts"],
        """
        BERT + Mirror, dropout 0.05 | .740
        BERT + Mirror, dropout 0.2 | .748
        BERT + Mirror, dropout 0.3 | .748
        BERT + Mirror, dropout 0.4 | .731
        RoBERTa + Mirror, dropout 0.05 | .755
        RoBERTa + Mirror, dropout 0.2 | .737
        RoBERTa + Mirror, dropout 0.3 | .694
        RoBERTa + Mirror, dropout 0.4 | .677
        """,
        factor=100,
        is_ablation=True,
    ),
    *averages_table(
        f"{_PAPER} 13",
        ["sts"],
        """
        BERT + Mirror, span of 2 | .741
        BERT + Mirror, span of 10 | .720
        BERT + Mirror, span of 15 | .690
        BERT + Mirror, span of 20 | .616
        RoBERTa + Mirror, span of 2 | .750
        RoBERTa + Mirror, span of 10 | .757
        RoBERTa + Mirror, span of 15 | .743
        RoBERTa + Mirror, span of 20 | .706
        """,
        factor=100,
        is_ablation=True,
    ),
]
CROSS_LINGUAL_WORD_ROWS = table(
    f"{_PAPER} 5 and 18",
    per_part("multi-simlex-cross", "spearman", "en-fr en-zh en-he zh-fr fr-he zh-he"),
    """
    mBERT, CLS | .059 .053 .032 .042 .024 .050 .043
    mBERT, mean | .163 .118 .071 .142 .104 .010 .101
    mBERT + Mirror | .454 .385 .133 .465 .163 .179 .297
    """,
    average="multi-simlex-cross",
    factor=100,
)
LEXICON_ROWS = table(
    f"{_PAPER} 6 and 19",
    per_part("bli", "accuracy_mapped", "en-fr en-it en-ru en-tr it-fr ru-fr"),
    """
    BERT of each language, CLS | .045 .049 .108 .109 .046 .068 .071
    BERT of each language, mean | .014 .112 .154 .150 .025 .018 .079
    BERT of each language + Mirror | .458 .378 .336 .289 .417 .345 .371
    """,
    average="bli",
    note="a mapping learnt between two encoders",
    factor=100,
)
QUESTION_ROWS = table(
    "Liu et al., 2021, https://arxiv.org/abs/2104.08027, sections 4.2 and 4.4",
    [("qnli", "auc")],
    """
    SBERT | .706
    BERT + Mirror | .674
    BERT + Mirror, trained on STS-B | .665
    RoBERTa + Mirror | .709
    """,
    factor=100,
)
RANDOM_STRING_ROWS = table(
    f"{_PAPER} 10",
    [("multi-simlex", "spearman/en")],
    """
    BERT + Mirror, random strings | .393
    BERT + Mirror, random strings, 5e-5 | .481
    """,
    factor=100,
    is_ablation=True,
)
# The rows on sentences, measured on the strings that the model was trained on.
GEOMETRY_ROWS = table(
    f"{_PAPER} 9 and 14, sentences",
    [("geometry", "mean_vector_norm"), ("geometry", "isotropy")],
    """
    BERT, CLS | 12.73 .062
    BERT, mean | 6.93 .222
    BERT + Mirror | 5.57 .265
    BERT + Mirror, neither | 5.75 .255
    """,
    note="the isotropy does not follow from equation 2",
)
OTHER_LANGUAGE_STS_ROWS = table(
    f"{_PAPER} 4 and 17",
    [*per_part("sts17", "spearman", "es ar"), ("sts-ru", "spearman")],
    """
    BERT of the language, CLS | .526 .308 .470 .435
    BERT of the language, mean | .599 .455 .552 .535
    BERT of the language + Mirror | .709 .669 .673 .684
    mBERT, CLS | .421 .326 .430 .392
    mBERT, mean | .610 .447 .616 .558
    mBERT + Mirror | .755 .594 .692 .680
    """,
    average="sts/es-ar-ru",
    factor=100,
)
ROWS = [
    *STS_ROWS,
    *RATE_ROWS,
    *OTHER_LANGUAGE_STS_ROWS,
    *WORD_ROWS,
    *RANDOM_STRING_ROWS,
    *CROSS_LINGUAL_WORD_ROWS,
    *LEXICON_ROWS,
    *LINKING_ROWS,
    *QUESTION_ROWS,
    *GEOMETRY_ROWS,
]
