"""The conditional masked language model objective of CMLM."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.common import fields
from cmlm.data import masked_pipelines
from cmlm.errors import UserError
from cmlm.modeling import masked_tokens
from cmlm.modeling.conditional import ConditionalMaskedLM
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.model import SentenceModel
from cmlm.objectives.base import Data, require_neighbours
from cmlm.objectives.masked_text import MaskedTextConfig, MaskedTextObjective


@dataclasses.dataclass
class CmlmConfig(MaskedTextConfig):
    """CMLM: predicts masked words of a sentence, given its neighbour's vector.

    Attributes:
        skip: whether the head sees, at each masked position, all projected vectors
            beside the output (the ablation `skip` of section 5.1).
        passages: whether s1 and s2 are consecutive passages of a document, of about
            `seq_length` tokens each, instead of consecutive sentences. The
            numbers of the paper (256 tokens, 80 of them masked; section 3 and appendix
            B) need passages; the abstract speaks of adjacent sentences.
    """

    skip: bool = False
    passages: bool = False

    reads_documents = True

    @property
    def reads_single_texts(self) -> bool:
        return not self.passages

    def weight_settings(self):
        return {"skip": self.skip}

    def check_model(self, prefix: str, model: EncoderConfig) -> None:
        super().check_model(prefix, model)
        objective = prefix.rstrip(".")
        if model.relative_positions:
            raise UserError(
                f"{objective} is on, and the encoder has relative positions, which "
                "do not exist for CMLM's conditions; allowed: the other objectives"
            )
        if model.embedding_width != model.hidden_size:
            raise fields.refused(
                "model.embedding_size",
                model.embedding_size,
                f"0 with {objective}, because CMLM's conditions have the width of "
                "sentence vectors; any with the other objectives",
            )

    def check_data(self, data: Data, model: EncoderConfig) -> None:
        super().check_data(data, model)
        require_neighbours(data)


class CmlmObjective(MaskedTextObjective):
    """Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 2.

    Metrics: `loss` (nats per masked word) and `accuracy`. Validation adds both metrics
    with a shuffled neighbour, the one of the row half a batch away, and
    `conditioning_gain`: the loss with a shuffled neighbour minus the loss with the true
    one. A gain above 0 shows that the vector holds information about the neighbour.
    """

    config_class = CmlmConfig

    def __init__(self, name: str, config: CmlmConfig, model: SentenceModel, **data):
        super().__init__(name, config, model, **data)
        self.conditional = ConditionalMaskedLM(
            model.encoder,
            model.projection(),
            model.masked_lm(1 + model.config.num_views if config.skip else 1),
            skip=config.skip,
        )

    @property
    def trained_parts(self) -> list[str]:
        return ["encoder", "projection", self.conditional.masked_lm.name]

    def make_dataset(self, feed):
        return masked_pipelines.conditional_pairs(
            feed, self.config.masking, self.config.passages
        )

    def _metrics(self, batch, vectors, training):
        """Loss and accuracy of s2, given the vectors of s1."""
        masked = masked_tokens.of_batch(batch)
        logits = self.conditional(batch, vectors, masked.tokens, training=training)
        return self.masked_metrics(masked, logits)

    def compute(self, batch, training):
        vectors = self.conditional.context_vector(batch, training=training)
        metrics = self._metrics(batch, vectors, training)
        return metrics["loss"][0], metrics

    def evaluate(self, batch):
        vectors = self.conditional.context_vector(batch, training=False)
        metrics = self._metrics(batch, vectors, training=False)
        # Each sentence gets the vector of the row half a batch away. A batch is sorted
        # by length and keeps the order of the text among equal lengths, so rows that
        # stand side by side are often neighbours in the text too. A row that stands
        # alone has no other one, and does not count.
        rows = tf.shape(vectors)[0]
        shuffled = tf.roll(vectors, shift=tf.maximum(rows // 2, 1), axis=0)
        counts = tf.cast(rows > 1, tf.float32)
        found = self._metrics(batch, shuffled, training=False)
        others = {
            name: (counts * total, counts * count)
            for name, (total, count) in found.items()
        }
        gain = others["loss"][0] - counts * metrics["loss"][0]
        return {
            **metrics,
            "shuffled_loss": others["loss"],
            "shuffled_accuracy": others["accuracy"],
            "conditioning_gain": (gain, others["loss"][1]),
        }
