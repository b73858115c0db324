"""The gradient of one objective on one replica's share of a batch, in micro-batches.

If the loss is a sum over examples, the gradient is the sum over micro-batches. If the
loss ranks every example against all others, all vectors are computed first, and the
gradient follows one micro-batch at a time (gradient caching).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from cmlm.common import fields
from cmlm.modeling import step_mode
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import EmbeddingObjective, Objective


class ReplicaGradients:
    """Computes gradients; call it in replica context.

    Args:
        objective: computes the loss.
        model: the model, whose dropout gradient caching replays.
        replicas: number of replicas that share each global batch.
        micro_batch_size: examples that a replica holds at a time; 0: its whole share.

    Attributes:
        micro_batches: number of micro-batches in a replica's share.
        on_micro_batch: None, or a function that is called as (done, of, passes) before
            each micro-batch, to show progress within a long step: of `of` micro-batches
            in each of `passes` passes, `done` are finished. Set it before the first
            step.

    Raises:
        UserError: the replicas do not divide the global batch evenly, or the
            micro-batch size does not divide a replica's share.
    """

    def __init__(
        self,
        objective: Objective,
        model: SentenceModel,
        replicas: int,
        micro_batch_size: int,
    ):
        self._objective = objective
        self._model = model
        self.micro_batches = _count_micro_batches(objective, replicas, micro_batch_size)
        self._size = objective.global_batch_size // replicas // self.micro_batches
        self.on_micro_batch: Callable[[int, int, int], None] | None = None

    def __call__(
        self,
        batch: dict[str, tf.Tensor],
        scale: tf.Tensor,
        variables: list[tf.Variable],
    ) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Computes the gradient of the scaled loss of a replica's share.

        Args:
            batch: the replica's share.
            scale: the factor of the summed loss, in the shape of its terms.
            variables: the weights to differentiate by.

        Returns:
            The gradients, dense, and the train metrics, float32 [metrics, 2].
        """
        with step_mode.unpadding(self._objective.unpads):
            if self.micro_batches == 1:
                return self._at_once(batch, scale, variables)
            # Micro-batches save memory, and so does this, for 2 % of the time.
            with step_mode.recomputing():
                if isinstance(self._objective, EmbeddingObjective):
                    return self._cached(batch, scale, variables)
                return self._summed(batch, scale, variables)

    def _at_once(self, batch, scale, variables):
        with tf.GradientTape() as tape:
            loss, metrics = self._objective.compute(batch, training=True)
            scaled = self._scaled(loss, scale)
        gradients = tape.gradient(scaled, variables)
        if all(gradient is None for gradient in gradients):
            raise self._detached("weights")
        return _dense(gradients, variables), self._rows(metrics)

    def _summed(self, batch, scale, variables):
        def add_micro_batch(i, gradients, metrics):
            rows = self._micro_batch(batch, i, i, 1)
            more, rows = self._at_once(rows, scale, variables)
            return (
                i + 1,
                [a + b for a, b in zip(gradients, more, strict=True)],
                metrics + rows,
            )

        _, gradients, metrics = self._for_each(
            add_micro_batch,
            [_zeros(variable) for variable in variables],
            tf.zeros([len(self._objective.train_metrics), 2]),
        )
        return gradients, metrics

    def _cached(self, batch, scale, variables):
        """Gradient caching (Gao et al., 2021, https://arxiv.org/abs/2101.06983).

        With vectors z and weights w, the gradient of the encoder is
        sum_i dL/dz_i dz_i/dw. The first factor needs all vectors but no activations.
        The second factor needs the activations of one side of one micro-batch at a
        time. Weights that the loss itself has, such as a map to a teacher's vectors,
        get their gradient with the first factor.
        """
        objective = self._objective
        dropout = self._model.dropout_state()

        def embed(i, vectors):
            rows = self._micro_batch(batch, i, i, 2)
            return i + 1, vectors.write(i, objective.embed(rows, training=True))

        empty = tf.TensorArray(tf.float32, self.micro_batches)
        _, vectors = self._for_each(embed, empty)
        vectors = joined(vectors.stack())
        with tf.GradientTape() as tape:
            tape.watch(vectors)
            loss, metrics = objective.total_loss(vectors, batch)
            scaled = self._scaled(loss, scale)
        upstream, *gradients = tape.gradient(scaled, [vectors, *variables])
        if upstream is None:
            raise self._detached("sentence vectors")
        gradients = _dense(gradients, variables)
        metrics = self._rows(metrics)

        self._model.replay_dropout(dropout)

        def add_micro_batch(i, gradients):
            rows = self._micro_batch(batch, i, self.micro_batches + i, 2)
            own = part(upstream, i, self._size)
            begin = 0
            for embed_side in objective.side_embedders(rows, training=True):
                # The activations of the side before are gone by then. The group stands
                # for all gradients: with an edge from each of them to each operation of
                # the side, BERT-base's graph takes half a gigabyte more to build.
                done = tf.group(*gradients)
                with tf.control_dependencies([done]), tf.GradientTape() as tape:
                    vectors = embed_side()
                end = begin + tf.shape(vectors)[1]
                more = tape.gradient(vectors, variables, own[:, begin:end])
                gradients = [_add(a, b) for a, b in zip(gradients, more, strict=True)]
                begin = end
            return i + 1, gradients

        _, gradients = self._for_each(add_micro_batch, gradients)
        return gradients, metrics

    def _for_each(self, body, *start):
        """Runs `body(i, *state) -> (i + 1, *state)` for every micro-batch."""
        return tf.while_loop(
            lambda i, *_: i < self.micro_batches,
            body,
            (tf.constant(0), *start),
            # Only one micro-batch may be in memory at a time.
            parallel_iterations=1,
        )

    def _micro_batch(self, batch, i, done, passes) -> dict[str, tf.Tensor]:
        """Returns the rows of micro-batch `i`, and reports `done` micro-batches."""

        def notify(done):
            self.on_micro_batch(int(done), self.micro_batches, passes)

        if self.on_micro_batch is not None:
            tf.numpy_function(notify, [done], [])
        rows = {key: part(value, i, self._size) for key, value in batch.items()}
        # A batch is sorted by length: most micro-batches are narrower than the batch.
        return self._objective.trim(rows)

    def _scaled(self, loss: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        # Other shapes may broadcast: a term would count as often as there are terms.
        if not loss.shape.is_compatible_with(scale.shape):
            raise ValueError(
                f"the loss of {self._objective.name} has the shape {loss.shape}; "
                f"allowed: that of its divisor, {scale.shape}"
            )
        return tf.reduce_sum(loss * scale)

    def _detached(self, inputs: str) -> ValueError:
        return ValueError(
            f"the loss of {self._objective.name} does not depend on the {inputs}; "
            "allowed: a loss that TensorFlow can differentiate by them, without "
            "tf.stop_gradient, argmax or numpy on the way"
        )

    def _rows(self, metrics) -> tf.Tensor:
        keys = self._objective.train_metrics
        if missing := [key for key in keys if key not in metrics]:
            raise ValueError(
                f"{self._objective.name} computes no metric {', '.join(missing)}; "
                f"allowed: at least its train_metrics, {', '.join(keys)}"
            )
        return tf.stack([tf.stack(metrics[key]) for key in keys])


def _count_micro_batches(
    objective: Objective, replicas: int, micro_batch_size: int
) -> int:
    where = f"task.{objective.name}.train_data.global_batch_size"
    global_batch_size = objective.global_batch_size
    if global_batch_size % replicas:
        raise fields.refused(
            where, global_batch_size, f"multiples of {replicas}, the number of replicas"
        )
    share = global_batch_size // replicas
    if micro_batch_size == 0 or micro_batch_size >= share:
        return 1
    if share % micro_batch_size:
        raise fields.refused(
            "trainer.micro_batch_size",
            micro_batch_size,
            f"0, or a divisor of the {share} examples of a replica "
            f"({where}={global_batch_size}, {replicas} replicas)",
        )
    return share // micro_batch_size


def part(values: tf.Tensor, i: tf.Tensor, size: int) -> tf.Tensor:
    """Returns part `i` of rows that are split into parts of `size` rows.

    Unlike a slice that begins at `i * size`, its shape is known before `i` is, which
    XLA needs.
    """
    shape = tf.concat([[-1, size], tf.shape(values)[1:]], axis=0)
    return tf.gather(tf.reshape(values, shape), i)


def joined(parts: tf.Tensor) -> tf.Tensor:
    """From [parts, rows, ...] to [parts * rows, ...]."""
    return tf.reshape(parts, tf.concat([[-1], tf.shape(parts)[2:]], axis=0))


def _zeros(variable: tf.Variable) -> tf.Tensor:
    """Zeros in the shape of a weight.

    TensorFlow would make constants of tf.zeros, and hold as much memory as the weights
    take until the program ends. It computes this operation in every step.
    """
    return tf.raw_ops.Empty(shape=variable.shape, dtype=variable.dtype, init=True)


def _add(gradient: tf.Tensor, more: tf.Tensor | tf.IndexedSlices | None) -> tf.Tensor:
    """Adds to a dense gradient; the rows of a large table are not made dense for it."""
    if more is None:
        return gradient
    if isinstance(more, tf.IndexedSlices):
        indices = more.indices[:, tf.newaxis]
        return tf.tensor_scatter_nd_add(gradient, indices, more.values)
    return gradient + more


def _dense(gradients, variables) -> list[tf.Tensor]:
    # The gradient of the embedding table is sparse (lookups) plus dense (tied head).
    return [
        _zeros(variable) if gradient is None else tf.convert_to_tensor(gradient)
        for variable, gradient in zip(variables, gradients, strict=True)
    ]
