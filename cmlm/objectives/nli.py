"""Natural language inference from the vectors of two sentences."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from cmlm.data import nli, pair_pipelines
from cmlm.modeling import fused, layers
from cmlm.modeling.model import SentenceModel
from cmlm.objectives.base import Objective, ObjectiveConfig
from cmlm.objectives.embedding import side_vectors


@dataclasses.dataclass
class NliConfig(ObjectiveConfig):
    """Entailment, neutral or contradiction, across languages.

    Attributes:
        train_encoder: whether the encoder trains with the classifier; false trains the
            classifier alone.
        same_language: whether a premise and its hypothesis may be in the same language.
            In the paper their languages differ.
    """

    train_data: nli.NliDataConfig = dataclasses.field(default_factory=nli.NliDataConfig)
    train_encoder: bool = True
    same_language: bool = False


class NliObjective(Objective):
    """Cross-lingual NLI of CMLM, https://arxiv.org/abs/2012.14388, section 4.3.

    A softmax over W [u, v, |u - v|, u * v], where u is the vector of the premise and v
    the vector of the hypothesis. Each pair draws two different languages, if the data
    has two.

    A batch holds `premise_word_ids`, `premise_mask`, `hypothesis_word_ids`,
    `hypothesis_mask` int32 [rows, languages, length] and `nli_label` int32 [rows]. In
    training `languages` is 1, the drawn language.

    Metrics: `loss` (nats per pair) and `accuracy`. Validation takes their means over
    the pairs of languages that training draws, and adds `accuracy_en_de`, with the
    premise in en and the hypothesis in de, and so on for each pair, `accuracy_en_en`
    too.
    """

    config_class = NliConfig

    train_metrics = ("loss", "accuracy")

    def __init__(self, name: str, config: NliConfig, model: SentenceModel, **data):
        super().__init__(name, config, model, **data)
        self.classifier = model.pair_classifier(name, len(nli.LABELS))

    @property
    def trained_parts(self) -> list[str]:
        encoder = ["encoder"] if self.config.train_encoder else []
        return [*encoder, self.classifier.name]

    def make_dataset(self, feed):
        return pair_pipelines.nli_pairs(feed, self.config.same_language)

    def divisor(self, batch):
        return tf.cast(tf.size(batch["nli_label"]), tf.float32)

    def _scores(self, batch, training):
        """Loss and correctness (0 or 1), float32 [rows, languages, languages]."""
        encoder = self.model.encoder
        training = training and self.config.train_encoder
        u = side_vectors(batch, "premise", encoder, training)[:, :, tf.newaxis]
        v = side_vectors(batch, "hypothesis", encoder, training)[:, tf.newaxis]
        # Every premise meets every hypothesis.
        u, v = u + tf.zeros_like(v), v + tf.zeros_like(u)
        features = layers.pair_features(u, v)
        logits = tf.cast(fused.dense(self.classifier, features), tf.float32)
        label = tf.broadcast_to(
            batch["nli_label"][:, tf.newaxis, tf.newaxis], tf.shape(logits)[:-1]
        )
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
        right = tf.argmax(logits, axis=-1, output_type=label.dtype) == label
        return loss, tf.cast(right, tf.float32)

    def compute(self, batch, training):
        loss, right = self._scores(batch, training)
        loss, count = tf.reduce_sum(loss), self.divisor(batch)
        return loss, {"loss": (loss, count), "accuracy": (tf.reduce_sum(right), count)}

    def evaluate(self, batch):
        loss, right = self._scores(batch, training=False)
        count = self.divisor(batch)
        names = list((self.data.validation or self.data.train).files)
        # The pairs of languages that training draws.
        drawn = tf.ones([len(names), len(names)])
        if len(names) > 1 and not self.config.same_language:
            drawn -= tf.eye(len(names))
        n_pairs = count * tf.reduce_sum(drawn)
        metrics = {
            "loss": (tf.reduce_sum(loss * drawn), n_pairs),
            "accuracy": (tf.reduce_sum(right * drawn), n_pairs),
        }
        if len(names) > 1:
            by_pair = tf.reduce_sum(right, axis=0)
            for i, premise in enumerate(names):
                for j, hypothesis in enumerate(names):
                    metrics[f"accuracy_{premise}_{hypothesis}"] = (
                        by_pair[i, j],
                        count,
                    )
        return metrics
