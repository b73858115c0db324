"""LaBSE: Feng et al., 2022, https://arxiv.org/abs/2007.01852.

The source text has the paper's tables as pictures. So these numbers come from the
paper's running text and from the model's page on TF Hub.
"""

from __future__ import annotations

from cmlm.evaluation.published.rows import Row

_PAPER = "Feng et al., 2022, https://arxiv.org/abs/2007.01852"
_37 = "section 2.2 says 37 languages; CMLM's table 5 has this mean over 36"

ROWS = [
    Row(
        "LaBSE",
        "https://tfhub.dev/google/LaBSE/1",
        {},
        {"tatoeba/xtreme36": 95.0},
        "36 languages; the page does not say which direction",
    ),
    Row(
        "LaBSE",
        f"{_PAPER}, sections 1 and 6.3 (tables 2 and 5)",
        {},
        {"tatoeba/all112": 83.7, "tatoeba/muse14": 95.3},
    ),
    Row(
        "LASER",
        f"{_PAPER}, sections 1, 2.2 and 6.3 (tables 2 and 5)",
        {},
        {"tatoeba/xtreme36": 84.4, "tatoeba/all112": 65.5, "tatoeba/muse14": 95.3},
        f"84.4: {_37}",
    ),
    Row("XLM-R large", f"{_PAPER}, section 2.2", {}, {"tatoeba/xtreme36": 57.3}, _37),
    Row("LaBSE-Large", f"{_PAPER}, appendix A", {}, {"tatoeba/all112": 83.8}),
    Row(
        "Base with mBERT's vocabulary, no pre-training, no margin",
        f"{_PAPER}, section 5 (table 2)",
        {},
        {"tatoeba/xtreme36": 92.8, "tatoeba/all112": 79.1},
    ),
    Row(
        "LaBSE",
        f"{_PAPER}, section 5 (table 2), and https://tfhub.dev/google/LaBSE/1",
        {
            ("un", f"accuracy_backward/{language}"): value
            for language, value in {
                "es": 91.1,
                "fr": 88.3,
                "ru": 90.8,
                "zh": 87.7,
            }.items()
        },
        {},
        "P@1 of English sentences among 9.5 million of the other language, as the page "
        "says; section 4.1 says that the other languages search English",
    ),
]
