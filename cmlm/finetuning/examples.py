"""Examples as token ids, and batches of similar length."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import tensorflow as tf

from cmlm.common import fields
from cmlm.finetuning.tasks import Row
from cmlm.tokenization.base import Tokenizer

_ROWS_AT_ONCE = 4096
# The number of batches whose examples are sorted by length together. A larger window
# needs less padding, but its batches are less random.
_WINDOW = 32


@dataclasses.dataclass
class Examples:
    """Tokenised sentences or sentence pairs.

    Attributes:
        ids: int32 [tokens], the concatenated sequences, each `[CLS] ... [SEP]` or
            `[CLS] ... [SEP] ... [SEP]`.
        starts: int64 [n * parts + 1], the start of each sequence in `ids`, and the end.
        second: int32 [n * parts], the number of tokens before a sequence's second text;
            the whole length without a second text.
        labels: float32 [n], the class or the score, NaN without a label; for several
            labels float32 [n, labels], 0 or 1.
        indices: the example numbers for a submission of predictions.
        pad_id: the id of the padding token.
        truncated: the number of sequences that were cut.
        parts: the number of sequences of an example: 1, or 2 if its two texts are
            encoded separately.
    """

    ids: np.ndarray
    starts: np.ndarray
    second: np.ndarray
    labels: np.ndarray
    indices: list[str]
    pad_id: int
    truncated: int
    parts: int = 1

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each example's longest sequence in tokens, int64 [n]."""
        return np.diff(self.starts).reshape(-1, self.parts).max(axis=1)

    def batch(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The encoder's inputs for some examples.

        Args:
            rows: the indices of the examples, int [batch].

        Returns:
            `input_word_ids`, `input_mask` and `input_type_ids` int32
            [batch * parts, longest]; the sequences of an example follow each other.
        """
        rows = (rows[:, np.newaxis] * self.parts + np.arange(self.parts)).ravel()
        lengths = np.diff(self.starts)[rows][:, np.newaxis]
        column = np.arange(lengths.max())
        inside = column < lengths
        place = np.minimum(self.starts[rows][:, np.newaxis] + column, len(self.ids) - 1)
        types = inside & (column >= self.second[rows][:, np.newaxis])
        return {
            "input_word_ids": np.where(inside, self.ids[place], self.pad_id),
            "input_mask": inside.astype(np.int32),
            "input_type_ids": types.astype(np.int32),
        }


def encode(
    rows: Iterable[Row], tokenizer: Tokenizer, seq_length: int, apart: bool = False
) -> Examples:
    """Tokenises a stream of examples.

    Args:
        rows: examples that all have one text, or all have two texts.
        tokenizer: the tokenizer of the encoder.
        seq_length: the longest sequence in tokens. If a pair does not fit, each text is
            cut to half of the room, or to the room that the other text leaves.
        apart: encode the two texts of a pair as two sequences.

    Raises:
        UserError: `seq_length` has no place for a token of each text.
    """
    if apart:
        rows = list(rows)
        alone = encode(
            (Row((text,), row.label, row.index) for row in rows for text in row.texts),
            tokenizer,
            seq_length,
        )
        labels, indices = alone.labels[::2], alone.indices[::2]
        return dataclasses.replace(alone, labels=labels, indices=indices, parts=2)
    rows = iter(rows)
    ids, lengths, second, labels, indices, truncated = [], [], [], [], [], 0
    while chunk := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        texts = zip(*(row.texts for row in chunk), strict=True)
        columns = [tf.constant(column) for column in texts]
        n_special = 2 if len(columns) == 1 else 2 + tokenizer.pair_separators
        least = n_special + len(columns)
        if seq_length < least:
            raise fields.refused("--seq_length", seq_length, f"at least {least}")
        tokenized = [tokenizer.tokenize(column) for column in columns]
        enclose = tokenizer.enclose if len(columns) == 1 else tokenizer.enclose_pair
        tokens = enclose(*tokenized, seq_length)
        whole = sum(column.row_lengths() for column in tokenized)
        truncated += int(np.sum(whole + n_special > seq_length))
        ids.append(tokens.values.numpy())
        lengths.append(tokens.row_lengths().numpy())
        segments = tokenizer.segments(tokens.to_tensor(tokenizer.pad_id))
        second.append(lengths[-1] - np.sum(segments, axis=1))
        labels += [np.nan if row.label is None else row.label for row in chunk]
        indices += [row.index for row in chunk]
    ids = np.concatenate(ids)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return Examples(
        ids=ids,
        starts=starts,
        second=np.concatenate(second).astype(np.int32),
        labels=np.array(labels, np.float32),
        indices=indices,
        pad_id=tokenizer.pad_id,
        truncated=truncated,
    )


def epoch(
    lengths: np.ndarray, batch_size: int, random: np.random.Generator
) -> Iterator[np.ndarray]:
    """One pass over all examples in random batches of similar length.

    Args:
        lengths: the lengths of the examples in tokens, int [n].
        batch_size: the number of examples in a batch; one batch may have fewer.
        random: the source of all random numbers.

    Returns:
        Batches of indices into `lengths`; every index occurs once.
    """
    order = random.permutation(len(lengths))
    batches = []
    for start in range(0, len(order), batch_size * _WINDOW):
        window = order[start : start + batch_size * _WINDOW]
        window = window[np.argsort(lengths[window], kind="stable")]
        batches += [
            window[first : first + batch_size]
            for first in range(0, len(window), batch_size)
        ]
    return (batches[number] for number in random.permutation(len(batches)))
