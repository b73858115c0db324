"""CMLM: the masked words of one sentence, given the vector of its neighbour."""

from __future__ import annotations

from typing import Optional

import tensorflow as tf
from official.nlp.modeling import layers as nlp_layers

from cmlm.common.keras import keras
from cmlm.modeling.encoder import EncoderNetwork
from cmlm.modeling.layers import ViewProjection


class ConditionalMaskedLM(keras.layers.Layer):
    """s1 -> v -> P(v) -> concatenated with the tokens of s2 -> masked words of s2.

    The loss is -sum_t log p(y_t | s2 without masked words, v(s1)); the encoder
    of s1 and of s2 is one network. Nothing of s2 enters v(s1).

    Reference: Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 3 and
    figure 1.

    Args:
        encoder: shared by both sentences.
        projection: P(v).
        masked_lm: the prediction head.
        skip: the ablation `skip`: the mean of the conditions is also concatenated to
            each output of s2, so the head must take vectors of twice the width.
    """

    def __init__(
        self,
        encoder: EncoderNetwork,
        projection: ViewProjection,
        masked_lm: nlp_layers.MaskedLM,
        skip: bool = False,
        name: Optional[str] = "conditional_masked_lm",
    ):
        super().__init__(name=name)
        self.encoder = encoder
        self.projection = projection
        self.masked_lm = masked_lm
        self.skip = skip

    def sentence_vector(self, inputs: dict[str, tf.Tensor], training=None):
        """The vector the conditions are made from, before any projection.

        Args:
            inputs: `context_word_ids`, `context_mask`, int32 [batch, seq].
            training: whether dropout is on.

        Returns:
            float [batch, dim].
        """
        context = {
            "input_word_ids": inputs["context_word_ids"],
            "input_mask": inputs["context_mask"],
        }
        return self.encoder.pooled_vector(context, training=training)

    def predict_masked(
        self, inputs: dict[str, tf.Tensor], vectors: tf.Tensor, training=None
    ) -> tf.Tensor:
        """Predicts the masked words of s2 given sentence vectors.

        Args:
            inputs: `input_word_ids`, `input_mask` [batch, seq] and
                `masked_lm_positions` [batch, predictions], all int32.
            vectors: float [batch, dim].
            training: whether dropout is on.

        Returns:
            logits, float [batch, predictions, vocab_size].
        """
        conditions = self.projection(vectors)
        sequence = self.encoder.conditional_sequence(
            inputs, conditions, training=training
        )
        if self.skip:
            summary = tf.reduce_mean(conditions, axis=1, keepdims=True)
            summary = tf.broadcast_to(summary, tf.shape(sequence))
            sequence = tf.concat([sequence, summary], axis=-1)
        return self.masked_lm(sequence, inputs["masked_lm_positions"])

    def call(self, inputs: dict[str, tf.Tensor], training=None) -> tf.Tensor:
        """Both halves: logits, float [batch, predictions, vocab_size]."""
        vectors = self.sentence_vector(inputs, training=training)
        return self.predict_masked(inputs, vectors, training=training)
