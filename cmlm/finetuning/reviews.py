"""Amazon reviews: fine-tuned on English, tested on every language (CMLM's transfer).

The files are those of `evaluation.transfer`, which leaves the encoder as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from cmlm.common import files
from cmlm.evaluation import transfer
from cmlm.finetuning.tasks import Row, Task


class ReviewsTask(Task):
    """A task whose files are those of `evaluation.transfer`."""

    def read(self, path: str, with_labels: bool = True) -> Iterator[Row]:
        """See `Task.read`."""
        with files.open_text(path) as file:
            examples = transfer.parse_reviews(file.read(), path)
        for number, (texts, label) in enumerate(
            zip(examples.texts, examples.labels, strict=True)
        ):
            yield Row(texts, float(label) if with_labels else None, str(number))


TASK = ReviewsTask(
    name="amazon",
    folder="amazon-dataset",
    within="amazon-reviews",
    labels=("negative", "positive"),
    figures=("accuracy",),
    train=transfer.path_of("english", "train"),
    dev=tuple(
        (transfer.CODES[language], transfer.path_of(language, "test"))
        for language in ("english", "german", "french")
    ),
)
