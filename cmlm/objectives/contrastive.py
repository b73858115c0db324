"""The base of contrastive objectives: embeds texts and ranks them within the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Protocol

import tensorflow as tf

from cmlm.common import distributed, fields
from cmlm.common.counts import counted
from cmlm.errors import UserError
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives import losses
from cmlm.objectives.base import Data, Metric
from cmlm.objectives.nested import NestedConfig, NestedObjective

SIMILARITIES = ("cosine", "dot")


@dataclasses.dataclass
class ContrastiveConfig(NestedConfig):
    """A text ranks its partner above the other texts of the global batch.

    Attributes:
        similarity: `cosine` (LaBSE), or `dot`, the inner product of the vectors without
            normalisation (CMLM).
        margin: subtracted from the similarity of a text and its partner.
        scale: the factor of all similarities, 1 / temperature.
        cross_replica_negatives: rank a text among the texts of every replica; false,
            for comparison only, ranks it among the texts of its own replica.
    """

    similarity: str = fields.one_of("cosine", SIMILARITIES)
    margin: float = fields.ranged(0.3, at_least=0)
    scale: float = fields.ranged(20.0, above=0)
    cross_replica_negatives: bool = True

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.similarity == "cosine" and self.margin >= 2:
            raise fields.refused(
                f"{prefix}margin", self.margin, "at least 0, and for cosines below 2"
            )

    def check_data(self, data: Data, model: EncoderConfig) -> None:
        super().check_data(data, model)
        require_two_examples(self.train_data.input_path, data)


class ContrastiveObjective(NestedObjective):
    """Base of the objectives on pairs of texts.

    Every source ranks all targets of the global batch, and every target all sources;
    hard negatives join the targets. A text does not count as a negative if it stands in
    the pair of the query, or in a pair that shares a text with that pair: most such
    texts are partners of the query, too.

    A batch holds `source_word_ids`, `source_mask`, `target_word_ids`, `target_mask`
    int32 [rows, length], `source_hash`, `target_hash` int64 [rows]; with hard negatives
    `negative_word_ids`, `negative_mask` int32 [rows, negatives, length],
    `negative_hash` int64 [rows, negatives], and `negative_exists` int32 [rows,
    negatives]. In rows with fewer hard negatives, `negative_exists` is 0 at the
    padding, which never counts as a candidate.

    Metrics, as means over the pairs of the global batch: `loss`, both directions
    summed; `accuracy`, how often a source finds its target, and `reverse_accuracy`, how
    often a target finds its source; `candidates`, the number of texts that a source
    ranks, and `excluded`, the number that do not count as negatives;
    `positive_similarity` and `negative_similarity`.
    """

    train_metrics = (
        "loss",
        "accuracy",
        "reverse_accuracy",
        "candidates",
        "excluded",
        "positive_similarity",
        "negative_similarity",
    )

    sides = ("source", "target", "negative")

    def can_validate(self, examples):
        return has_a_negative(examples)

    def warning(self, means):
        return ranking_warning(means)

    def embed_side(self, batch, side, training, encoder=None):
        return self._scaled(super().embed_side(batch, side, training, encoder))

    def first(self, embeddings, size):
        return self._scaled(super().first(embeddings, size))

    def _scaled(self, vectors: tf.Tensor) -> tf.Tensor:
        """Vectors whose inner product is the similarity, float32 [..., dim]."""
        if self.config.similarity == "cosine":
            return tf.math.l2_normalize(vectors, axis=-1)
        return vectors

    def embedding_loss(self, embeddings, batch):
        pool = Pool(embeddings, batch, self.config.cross_replica_negatives)
        return self.both_ways(*rank_pairs(self.config, pool), batch)

    def both_ways(
        self,
        loss: tf.Tensor,
        metrics: dict[str, Metric],
        reverse: dict[str, Metric],
        batch: dict[str, tf.Tensor],
    ) -> tuple[tf.Tensor, dict[str, Metric]]:
        """Joins the two directions to what `embedding_loss` returns.

        Args:
            loss: the losses of the queries, float32 [n].
            metrics: the metrics of the sources as queries.
            reverse: the metrics of the targets as queries.
            batch: this replica's rows.
        """
        loss = tf.reduce_sum(loss)
        return loss, {
            **metrics,
            "reverse_accuracy": reverse["accuracy"],
            "loss": (loss, self.divisor(batch)),
        }


def has_a_negative(examples: Iterable[tuple]) -> bool:
    """Whether any pair of the examples shares no text with the first pair.

    A text that ranks its partner alone always finds it.
    """
    examples = iter(examples)
    first = set(next(examples, ())[:2])
    return any(first.isdisjoint(example[:2]) for example in examples)


def ranking_warning(means: Mapping[str, float]) -> str:
    """Returns a warning if texts rank few others, see `Objective.warning`."""
    if not {"candidates", "excluded"} <= means.keys():
        return ""
    if means["candidates"] <= 1:
        return (
            "the only candidate of each text is its own partner, so nothing is learnt; "
            "name more text, or a larger batch"
        )
    if means["candidates"] < means["excluded"]:
        return (
            "a text ranks less than half of its batch, because most pairs of the batch "
            "share a text; the step duplicate_lines of cmlm.prepare drops repeated "
            "lines"
        )
    return ""


def require_two_examples(path: str, data: Data) -> None:
    """Raises UserError if the training data at a path has fewer than two examples."""
    number = sum(data.train.sizes.values())
    if number < 2:
        raise UserError(
            f"{path} has {counted(number, 'example')}; allowed: at least 2, because "
            "each ranks among the others"
        )


class Pool:
    """The texts of the global batch, and masks of texts that are not negatives.

    Args:
        embeddings: the vectors of this replica's rows, float32 [rows, texts, dim]:
            source, target, negatives.
        batch: this replica's rows.
        cross_replica: whether the pool also holds the texts of the other replicas.
    """

    def __init__(
        self,
        embeddings: tf.Tensor,
        batch: dict[str, tf.Tensor],
        cross_replica: bool,
    ):
        self._gather = distributed.gather_replicas if cross_replica else lambda x: x
        self._pairs = _halves(
            tf.stack([batch["source_hash"], batch["target_hash"]], axis=1)
        )
        self._negatives = batch.get("negative_hash")
        self._exists = batch.get("negative_exists")
        everything = self._gather(embeddings)
        self.sources, self.targets = embeddings[:, 0], embeddings[:, 1]
        self.all_sources, self.all_targets = everything[:, 0], everything[:, 1]
        # Concatenated micro-batches have no static shape.
        self.all_negatives = tf.reshape(
            everything[:, 2:], [-1, tf.shape(everything)[-1]]
        )
        rows = tf.shape(embeddings)[0]
        # The positions of this replica's rows in the pool.
        self.own = tf.range(rows)
        if cross_replica:
            self.own += distributed.replica_offset(rows)

    @property
    def has_negatives(self) -> bool:
        """Whether the batch has hard negatives."""
        return self._negatives is not None

    def known(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Whether a text does not count as a negative for the texts of a pair.

        Such a text stands in the pair, or in a pair that shares a text with it.

        Returns:
            Bool [rows, all rows], for the sources; bool [rows, all rows + all
            negatives], for the targets and the hard negatives after them.
        """
        pairs = self._gather(self._pairs)
        sources, targets = pairs[:, 0], pairs[:, 1]
        if self.has_negatives:
            negatives = tf.reshape(self._gather(_halves(self._negatives)), [-1, 2])
            targets = tf.concat([targets, negatives], axis=0)
        own = [_stand_in(texts, self._pairs) for texts in (sources, targets)]
        shares = own[0] | own[1][:, : tf.shape(pairs)[0]]
        # Few batches repeat a text, and the products are larger than the similarities.
        repeats = tf.reduce_any(tf.reduce_sum(tf.cast(shares, tf.int32), axis=1) > 1)

        def through_other_pairs():
            of_all = own
            if pairs is not self._pairs:
                of_all = [_stand_in(texts, pairs) for texts in (sources, targets)]
            return [
                tf.matmul(tf.cast(shares, tf.float32), tf.cast(each, tf.float32)) > 0
                for each in of_all
            ]

        return tuple(tf.cond(repeats, through_other_pairs, lambda: own))

    def absent(self) -> tf.Tensor:
        """Bool [all negatives]: whether a negative is padding."""
        return tf.reshape(self._gather(self._exists), [-1]) == 0


def _stand_in(texts: tf.Tensor, pairs: tf.Tensor) -> tf.Tensor:
    """Whether texts stand in pairs.

    Args:
        texts: `_halves`, int32 [n, 2].
        pairs: `_halves` of both texts, int32 [rows, 2, 2].

    Returns:
        Bool [rows, n].
    """
    first, second = (
        tf.reduce_all(pairs[:, side, tf.newaxis] == texts, axis=2) for side in (0, 1)
    )
    return first | second


def _halves(hashes: tf.Tensor) -> tf.Tensor:
    """Int32 [..., 2] of int64 [...]: TPUs do not gather 64-bit integers."""
    high = tf.bitwise.right_shift(hashes, tf.constant(32, tf.int64))
    return tf.stack([tf.cast(hashes, tf.int32), tf.cast(high, tf.int32)], axis=-1)


class Ranking(Protocol):
    """Settings of a ranking, see `ContrastiveConfig`."""

    margin: float
    scale: float


def rank_pairs(
    config: Ranking, pool: Pool
) -> tuple[tf.Tensor, dict[str, Metric], dict[str, Metric]]:
    """Ranks all targets for the sources of a pool, and all sources for its targets.

    Args:
        config: the margin and the scale.
        pool: vectors whose inner product is the similarity.

    Returns:
        The loss of each pair, both directions summed, float32 [n]; the metrics of the
        sources as queries; and those of the targets as queries.
    """
    excluded_sources, excluded_targets = pool.known()
    candidates, absent = pool.all_targets, None
    if pool.has_negatives:
        candidates = tf.concat([candidates, pool.all_negatives], axis=0)
        absent = tf.pad(pool.absent(), [[tf.shape(pool.all_targets)[0], 0]])
        excluded_targets |= absent
    forward, metrics = rank(
        config, pool.sources, candidates, pool.own, excluded_targets, absent
    )
    backward, reverse = rank(
        config, pool.targets, pool.all_sources, pool.own, excluded_sources
    )
    return forward + backward, metrics, reverse


def rank(
    config: Ranking,
    queries: tf.Tensor,
    candidates: tf.Tensor,
    positives: tf.Tensor,
    excluded: tf.Tensor,
    absent: tf.Tensor | None = None,
) -> tuple[tf.Tensor, dict[str, Metric]]:
    """Ranks candidates for queries, one direction.

    Args:
        config: the margin and the scale.
        queries, candidates, positives, excluded: see `losses.additive_margin_softmax`.
        absent: see `ranking_metrics`.

    Returns:
        The loss of each query, float32 [n], and the metrics of this direction.
    """
    loss, similarities = losses.additive_margin_softmax(
        queries, candidates, positives, excluded, config.margin, config.scale
    )
    return loss, ranking_metrics(similarities, positives, excluded, absent)


def ranking_metrics(
    similarities, positives, excluded, absent=None
) -> dict[str, Metric]:
    """Metrics of one direction, summed over queries.

    Args:
        similarities, positives, excluded: as in `losses.additive_margin_softmax`.
        absent: bool [candidates], true for padding, which the metric `excluded` does
            not count; None: no padding.
    """
    shape = tf.shape(similarities)
    is_positive = tf.one_hot(positives, shape[1], on_value=True, off_value=False)
    excluded &= ~is_positive
    is_negative = ~(excluded | is_positive)
    count = tf.cast(shape[0], tf.float32)
    positive = tf.gather(similarities, positives, batch_dims=1)
    lowest = similarities.dtype.min
    hardest = tf.reduce_max(tf.where(is_negative, similarities, lowest), axis=1)
    negatives = tf.where(is_negative, similarities, 0.0)

    def total(flags):
        return tf.reduce_sum(tf.cast(flags, tf.float32))

    return {
        "accuracy": (total(positive > hardest), count),
        "candidates": (total(~excluded), count),
        "excluded": (
            total(excluded if absent is None else excluded & ~absent),
            count,
        ),
        "positive_similarity": (tf.reduce_sum(positive), count),
        "negative_similarity": (tf.reduce_sum(negatives), total(is_negative)),
    }
