"""CMLM's network: predicts masked words of a sentence, given its neighbour's vector."""

from __future__ import annotations

import tensorflow as tf

from cmlm.common.keras import keras
from cmlm.modeling.encoder import EncoderNetwork
from cmlm.modeling.layers import MaskedLM, ViewProjection


class ConditionalMaskedLM(keras.layers.Layer):
    """s1 -> v -> P(v) -> concatenated with the tokens of s2 -> masked words of s2.

    The loss is -sum_t log p(y_t | s2 without masked words, v(s1)). One network encodes
    both s1 and s2. No token of s2 enters v(s1).

    Reference: Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 2 and
    figure 1; `skip` is an ablation of section 5.1.

    Args:
        encoder: shared by both sentences.
        projection: P(v).
        masked_lm: the prediction head.
        skip: whether to concatenate all N projected vectors to the output at each
            masked position. The head then takes vectors 1 + N times as wide.
    """

    def __init__(
        self,
        encoder: EncoderNetwork,
        projection: ViewProjection,
        masked_lm: MaskedLM,
        skip: bool = False,
    ):
        super().__init__(name="conditional_masked_lm")
        self.encoder = encoder
        self.projection = projection
        self.masked_lm = masked_lm
        self.skip = skip

    def context_vector(self, inputs: dict[str, tf.Tensor], training=None):
        """Encodes s1: the vector before any projection.

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

    def call(
        self,
        inputs: dict[str, tf.Tensor],
        vectors: tf.Tensor,
        tokens: tf.Tensor,
        training=None,
    ) -> tf.Tensor:
        """Predicts the masked words of s2, given the vectors of s1.

        Args:
            inputs: `input_word_ids`, `input_mask`, int32 [batch, seq].
            vectors: float [batch, dim].
            tokens: int32 [masked, 2], pair and position of each masked token.
            training: whether dropout is on.

        Returns:
            logits, float [masked, vocab_size].
        """
        conditions = self.projection(vectors)
        outputs = self.encoder.read_conditional(inputs, conditions, tokens, training)
        if self.skip:
            width = conditions.shape[1] * conditions.shape[2]
            views = tf.gather(tf.reshape(conditions, [-1, width]), tokens[:, 0])
            outputs = tf.concat([outputs, tf.cast(views, outputs.dtype)], axis=-1)
        return self.masked_lm(outputs)
