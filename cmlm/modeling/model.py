"""What training optimizes: the encoder and the heads that objectives share."""

from __future__ import annotations

import tensorflow as tf
from official.nlp.modeling import layers as nlp_layers

from cmlm.keras import keras
from cmlm.modeling.encoder import EncoderConfig, SentenceEncoder
from cmlm.modeling.layers import ViewProjection


class SentenceModel(tf.Module):
    """Named parts, each a Keras layer; a checkpoint stores them under these names.

    Heads come into being when the first objective asks for them, so two
    objectives that predict masked words train one head.

    Args:
      config: resolved, with `vocab_size` set.
    """

    def __init__(self, config: EncoderConfig):
        super().__init__(name="model")
        self.config = config
        self.parts = {}
        projection = (
            self.projection() if config.sentence_vector == "projected" else None
        )
        self.parts["encoder"] = SentenceEncoder(config, projection)

    @property
    def encoder(self) -> SentenceEncoder:
        return self.parts["encoder"]

    def _initializer(self) -> keras.initializers.Initializer:
        return keras.initializers.TruncatedNormal(stddev=self.config.initializer_range)

    def projection(self) -> ViewProjection:
        """P(v) of CMLM: float [batch, dim] -> [batch, num_views, dim]."""
        if "projection" not in self.parts:
            layer = ViewProjection(self.config.num_views, name="projection")
            layer.build((None, self.config.hidden_size))
            self.parts["projection"] = layer
        return self.parts["projection"]

    def masked_lm(self, width_factor: int = 1) -> nlp_layers.MaskedLM:
        """BERT's masked-LM head, tied to the embedding table.

        Args:
          width_factor: its inputs are this many times `hidden_size` wide. Heads
            of different width are different parts.
        """
        name = "masked_lm" if width_factor == 1 else f"masked_lm_x{width_factor}"
        if name not in self.parts:
            head = nlp_layers.MaskedLM(
                embedding_table=self.encoder.embedding_table,
                activation="gelu",
                initializer=self._initializer(),
                name=name,
            )
            width = self.config.hidden_size * width_factor
            head(tf.zeros([1, 1, width]), tf.zeros([1, 1], tf.int32))
            # Keras builds the inner layers' variables on the first call only.
            if head.dense.kernel.shape[-1] != self.config.hidden_size:
                raise AssertionError("the head must end at the embedding width")
            self.parts[name] = head
        return self.parts[name]

    def random_generators(self) -> list[tf.random.Generator]:
        """The state behind every dropout layer, in a fixed order.

        Keras leaves these out of checkpoints; a resumed run that is to repeat a
        straight one needs them.
        """
        generators = []
        for part in self.parts.values():
            for layer in part._flatten_layers():
                random = getattr(layer, "_random_generator", None)
                if random is not None:
                    random._maybe_init()
                    if random._generator is not None:
                        generators.append(random._generator)
        return generators
