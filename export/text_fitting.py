"""Adds the layers that text determines to an encoder that is exported.

Both read the first sentences of each file, `SENTENCES` in all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cmlm.common import line_samples, sif, whitening
from cmlm.encoders import opening, vector_moments
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.modeling import pooling
from cmlm.modeling.layers import Whitening, WordWeights

# About this many sentences.
SENTENCES = 20_000


def weigh_words(opened: OpenedWeights, seq_length: int, paths: Sequence[str]) -> int:
    """Weights the tokens of an encoder's mean pooling by SIF.

    The tokens of a prompt count as those of the text. [CLS] and [SEP], which are no
    words and can hold the whole sentence, do not count, so they keep the weight 1.

    Args:
        opened: the encoder, which gets the layer.
        seq_length: the longest sentence in tokens.
        paths: files of text, one sentence a line.

    Returns:
        The number of sentences that the frequencies come from.

    Raises:
        UserError: the pooling has no weights, a file is damaged, or the text is empty.
    """
    model = opened.config.model
    if not pooling.POOLINGS[model.pooling].takes_weights:
        allowed = [name for name, row in pooling.POOLINGS.items() if row.takes_weights]
        raise UserError(
            f"the pooling is {model.pooling}; allowed: {', '.join(allowed)}"
        )
    counts, sentences = np.zeros(model.vocab_size, np.int64), 0
    for lines in line_samples.of_each(paths, SENTENCES):
        tokens = opened.tokenizer.encode(lines, seq_length).flat_values
        counts += np.bincount(tokens, minlength=model.vocab_size)
        sentences += len(lines)
    counts[[opened.tokenizer.cls_id, opened.tokenizer.sep_id]] = 0
    if not counts.any():
        raise UserError("the text has no words; allowed: at least one sentence")
    opened.encoder.sif = WordWeights(sif.weights(counts), sentences)
    return sentences


def whiten(opened: OpenedWeights, seq_length: int, paths: Sequence[str]) -> int:
    """Whitens the vectors of an encoder.

    Args:
        opened: the encoder, which gets the layer.
        seq_length: the longest sentence in tokens.
        paths: files of text, one sentence a line.

    Returns:
        The number of sentences that the map was fitted on.

    Raises:
        UserError: a file is damaged, or the text is too short.
    """
    opened.encoder.whitening = None
    reading = Reading(seq_length=seq_length, precision="float32")
    encoder = opening.from_weights(opened, reading, opened.checkpoint)
    fitted = whitening.fit(vector_moments.sample(encoder, paths, SENTENCES))
    opened.encoder.whitening = Whitening(**vars(fitted))
    return fitted.sentences
