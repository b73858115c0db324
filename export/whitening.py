"""Adds the layer that whitens vectors to an encoder that is exported."""

from __future__ import annotations

from collections.abc import Sequence

from cmlm.common import whitening
from cmlm.encoders import opening, vector_moments
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.encoders.reading import Reading
from cmlm.modeling.layers import Whitening

# About this many sentences, the first ones of each file.
SENTENCES = 20_000


def add(opened: OpenedWeights, seq_length: int, paths: Sequence[str]) -> int:
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
    reading = Reading(seq_length=seq_length, precision="float32")
    encoder = opening.from_weights(opened, reading, opened.checkpoint)
    fitted = whitening.fit(vector_moments.sample(encoder, paths, SENTENCES))
    opened.encoder.whitening = Whitening(fitted)
    return fitted.sentences
