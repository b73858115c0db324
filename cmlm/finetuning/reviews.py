"""Amazon reviews: fine-tuned on English, tested on every language.

Yang et al., 2020, section 4.5.2 and table 6. Files, split and texts are the same as in
`evaluation.tasks.transfer`, which keeps the encoder frozen. The encoder encodes title
and text separately, with the pooling of its training, and the head classifies
[u, v, |u - v|, u * v].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from cmlm.common import files, utf8
from cmlm.errors import UserError
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.tasks import base, transfer
from cmlm.finetuning.tasks import Row, Task


class ReviewsTask(Task):
    """A task on the files of `evaluation.tasks.transfer`.

    The task's files have the names `train` (90 % of English), `dev` (10 % of English)
    and the languages; a language's file is the held-out test reviews of all domains.
    """

    def find(self, source: DataDir, name: str) -> list[str]:
        """See `Task.find`."""
        if name in (self.train, "dev"):
            return transfer.find_reviews(source, "en", "train")
        return transfer.find_reviews(source, name, "test")

    def examples(
        self, name: str, paths: Sequence[str], with_labels: bool = True
    ) -> Iterator[Row]:
        """See `Task.examples`."""
        rows = [row for path in paths for row in self.read(path, with_labels)]
        if name not in (self.train, "dev"):
            return iter(rows)
        labels = np.array([row.label for row in rows])
        train, dev = transfer.split(labels, base.SEED)
        return (rows[row] for row in (train if name == self.train else dev))

    def read(self, path: str, with_labels: bool = True) -> Iterator[Row]:
        """See `Task.read`."""
        content = files.whole(path)
        utf8.refuse_utf16(path, content)
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8; allowed: UTF-8") from error
        examples = transfer.parse_reviews(text, path)
        for number, (texts, label) in enumerate(
            zip(examples.texts, examples.labels, strict=True)
        ):
            yield Row(texts, float(label) if with_labels else None, str(number))


TASK = ReviewsTask(
    name="amazon",
    texts=("title", "text"),
    labels=("negative", "positive"),
    figures=("accuracy",),
    train="train",
    dev=(("dev", "dev"),),
    heldout=tuple((language, language) for language in transfer.FOLDERS),
    head="vectors",
)
