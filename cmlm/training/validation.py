"""Validation: the metrics of held-out examples, within the memory of training."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from cmlm.common import checksums, distributed, iterators
from cmlm.config import experiment
from cmlm.data import corpus
from cmlm.objectives import EmbeddingObjective, Objective, ObjectiveConfig
from cmlm.training import gradients
from cmlm.training.totals import add_totals, means

logger = logging.getLogger(__name__)

# The settings of an objective on which the values of its metrics do not depend; the
# examples are described apart.
_NOT_OF_LOSS = ("weight", "start_step", "end_step", "train_data", "validation_data")


class Validator:
    """Validates objectives on their held-out examples.

    Args:
        objectives: the objectives by name.
        strategy: the strategy whose replicas share each batch.
        micro_batch_size: examples that a replica holds at a time; 0: its whole share of
            a batch. Losses and accuracies do not depend on it; those with a shuffled
            neighbour depend on the rows of a micro-batch.
        examples: examples of one validation, for each objective, rounded up to whole
            batches; -1: all held-out examples.
    """

    def __init__(
        self,
        objectives: Mapping[str, Objective],
        strategy: tf.distribute.Strategy,
        micro_batch_size: int,
        examples: int,
    ):
        self._objectives = objectives
        self._strategy = strategy
        # At least two rows, because CMLM gives each sentence the neighbour of another
        # row. Validation keeps no activations, so two rows take less memory than one in
        # training.
        self._size = max(micro_batch_size, 2) if micro_batch_size else 0
        self._examples = examples
        self._datasets: dict = {}
        self._functions: dict = {}

    def evaluate(self, names: Iterable[str], num_steps: int = -1) -> dict[str, float]:
        """Validates some objectives.

        Args:
            names: the names of the objectives.
            num_steps: batches of each objective; -1: enough to hold `examples`.

        Returns:
            The mean of every validation metric, `<objective>/<metric>`, see `means`;
            nothing for an objective whose held-out text is empty.
        """
        totals: dict[str, list[float]] = {}
        for name in names:
            if not self._objectives[name].config.has_validation:
                # To find out, the pipeline would read the whole text.
                continue
            if name not in self._datasets:
                self._datasets[name] = self._strategy.distribute_datasets_from_function(
                    self._objectives[name].validation_dataset
                )
            batches = iterators.distributed(self._datasets[name])
            limit = num_steps if num_steps >= 0 else self._batches(name)
            known = len(totals)
            for _ in itertools.count() if limit is None else range(limit):
                try:
                    metrics = self._next(name, batches)
                # Where tf.functions run eagerly, the end is a StopIteration.
                except (tf.errors.OutOfRangeError, StopIteration):
                    break
                metrics = {f"{name}/{key}": each for key, each in metrics.items()}
                add_totals(totals, metrics)
            if len(totals) == known:
                self._tell_nothing(name)
        return means(totals)

    def _tell_nothing(self, name: str) -> None:
        """Warns if the held-out text of a TPU fills no batch.

        Every host reads files of its own, and the first one without a whole batch ends
        the validation.
        """
        objective = self._objectives[name]
        if objective.static_shapes:
            logger.warning(
                "%s is not validated: the held-out data of one host has less than its "
                "share of %s examples; name more data or more files with %s, or raise "
                "task.%s.train_data.hold_out_fraction",
                name,
                f"{objective.global_batch_size:,}",
                objective.config.validation_setting(name),
                name,
            )

    def _batches(self, name: str) -> int | None:
        """The number of batches that hold `examples`; None: all batches."""
        if self._examples < 0:
            return None
        return -(-self._examples // self._objectives[name].global_batch_size)

    def _next(self, name: str, batches) -> dict:
        """The metrics of the next batch: name to (sum, count) over all replicas."""
        if name not in self._functions:
            objective = self._objectives[name]

            @tf.autograph.experimental.do_not_convert
            def replica_metrics(batch):
                return distributed.sum_over_replicas(self._metrics(objective, batch))

            # The function takes the iterator, so TensorFlow traces it once for all
            # shapes. Workers number their collective sums as they trace, and the
            # numbers must agree.
            @tf.function(autograph=False)
            def evaluate(batches):
                results = self._strategy.run(replica_metrics, args=(next(batches),))
                return {
                    key: self._strategy.experimental_local_results(value)[0]
                    for key, value in results.items()
                }

            self._functions[name] = evaluate
        results = self._functions[name](batches)
        return {key: value.numpy() for key, value in results.items()}

    def _metrics(self, objective: Objective, batch) -> dict[str, tf.Tensor]:
        """The metrics of a replica's share: name to [sum, count], float32 [2]."""
        batch = objective.at_least_one_column(batch)
        if not self._size:
            return _stacked(objective.evaluate(batch))
        if isinstance(objective, EmbeddingObjective):
            # Every text is ranked among all texts of the batch, so all vectors come
            # first.
            vectors = self._in_parts(
                batch,
                lambda rows: objective.embed(objective.trim(rows), training=False),
            )
            return _stacked(objective.total_loss(vectors, batch)[1])
        names: list[str] = []

        def rows_metrics(rows):
            metrics = _stacked(objective.evaluate(objective.trim(rows)))
            names[:] = metrics
            return tf.stack(list(metrics.values()))[tf.newaxis]

        totals = tf.reduce_sum(self._in_parts(batch, rows_metrics), axis=0)
        return {name: totals[row] for row, name in enumerate(names)}

    def _in_parts(
        self,
        batch: Mapping[str, tf.Tensor],
        compute: Callable[[Mapping[str, tf.Tensor]], tf.Tensor],
    ) -> tf.Tensor:
        """Concatenates the results of the micro-batches of a replica's share.

        Args:
            batch: the replica's share.
            compute: from rows to float32 [any, ...].
        """

        def compute_slice(begin, end):
            return compute({key: value[begin:end] for key, value in batch.items()})

        any_column = next(iter(batch.values()))
        if (n_rows := any_column.shape[0]) is not None:
            return self._in_static_parts(batch, n_rows, compute, compute_slice)
        n_rows = tf.shape(any_column)[0]

        def add_slice(begin, results):
            end = begin + self._size
            return end, tf.concat([results, compute_slice(begin, end)], axis=0)

        first = compute_slice(0, self._size)
        _, results = tf.while_loop(
            lambda begin, _: begin < n_rows,
            add_slice,
            (tf.constant(self._size), first),
            shape_invariants=(
                tf.TensorShape([]),
                tf.TensorShape([None, *first.shape[1:]]),
            ),
            parallel_iterations=1,
        )
        return results

    def _in_static_parts(self, batch, n_rows: int, compute, compute_slice) -> tf.Tensor:
        """The same for a number of rows that the graph knows, as XLA needs it."""
        count, rest = divmod(n_rows, self._size)
        results = []
        if count:
            whole = n_rows - rest

            def compute_part(i):
                return compute(
                    {
                        key: gradients.part(value[:whole], i, self._size)
                        for key, value in batch.items()
                    }
                )

            # A loop, because XLA would compile every part of an unrolled one.
            parts = tf.map_fn(
                compute_part,
                tf.range(count),
                fn_output_signature=tf.float32,
                parallel_iterations=1,
            )
            results.append(gradients.joined(parts))
        # A share may have no rows.
        if rest or not count:
            results.append(compute_slice(n_rows - rest, n_rows))
        return tf.concat(results, axis=0)


def described(
    objective: Objective, settings: experiment.TrainerConfig
) -> dict[str, Any]:
    """Describes the examples and the loss of a validation, in plain values by name."""
    data, own = objective.config.train_data, objective.data.validation
    return {
        "setting of the objective": checksums.of_values(
            _of_loss(objective.config), sort_keys=True
        ),
        "text": checksums.of_values(
            corpus.listing((own or objective.data.train).files)
        ),
        "hold_out_fraction": 0.0 if own else data.hold_out_fraction,
        "seq_length": data.seq_length,
        "global_batch_size": data.global_batch_size,
        "validation_steps": settings.validation_steps,
        "validation_examples": settings.validation_examples,
    }


def _of_loss(config: ObjectiveConfig) -> dict[str, Any]:
    """The settings on which the values of a validation depend, besides the data.

    A setting with its default does not occur: a later version may add others.
    """
    default = type(config)().as_dict()
    return {
        name: value
        for name, value in config.as_dict().items()
        if name not in _NOT_OF_LOSS and value != default[name]
    }


def _stacked(metrics) -> dict[str, tf.Tensor]:
    return {
        key: tf.stack([tf.cast(part, tf.float32) for part in metric])
        for key, metric in metrics.items()
    }
