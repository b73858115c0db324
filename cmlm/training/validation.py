"""Validation: the metrics of held-out examples, within the memory of training."""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from cmlm.common import checksums, distributed, iterators
from cmlm.config import experiment
from cmlm.data import corpus
from cmlm.objectives import EmbeddingObjective, Objective, ObjectiveConfig
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
        micro_batch_size: int = 0,
        examples: int = -1,
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

        def rows_metrics(rows):
            return _stacked(objective.evaluate(rows))

        if not isinstance(objective, EmbeddingObjective):
            return self._fold(objective, batch, rows_metrics, tf.add)
        if not self._size:
            return rows_metrics(batch)
        # Every text is ranked among all texts of the batch, so all vectors come first.
        vectors = self._fold(
            objective,
            batch,
            lambda rows: objective.embed(rows, training=False),
            lambda before, more: tf.concat([before, more], axis=0),
        )
        return _stacked(objective.total_loss(vectors, batch)[1])

    def _fold(
        self,
        objective: Objective,
        batch: Mapping[str, tf.Tensor],
        compute: Callable,
        add: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    ):
        """Adds up `compute(rows)` over the micro-batches of a replica's share."""
        if not self._size:
            return compute(batch)

        def part(begin):
            end = begin + self._size
            rows = {key: value[begin:end] for key, value in batch.items()}
            return compute(objective.trim(rows))

        def plus(totals, more):
            return tf.nest.map_structure(add, totals, more)

        any_column = next(iter(batch.values()))
        if (n_rows := any_column.shape[0]) is not None:
            # XLA needs to know where each slice begins. A share may have no rows.
            begins = range(0, max(n_rows, 1), self._size)
            return functools.reduce(plus, map(part, begins))
        n_rows = tf.shape(any_column)[0]
        first = part(0)
        _, totals = tf.while_loop(
            lambda begin, _: begin < n_rows,
            lambda begin, totals: (begin + self._size, plus(totals, part(begin))),
            (tf.constant(self._size), first),
            shape_invariants=(
                tf.TensorShape([]),
                tf.nest.map_structure(_any_length, first),
            ),
            parallel_iterations=1,
        )
        return totals


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


def _any_length(tensor: tf.Tensor) -> tf.TensorShape:
    """Its shape with any number of rows, because `_fold` may concatenate rows."""
    shape = tensor.shape
    return tf.TensorShape([None, *shape[1:]]) if shape.rank else shape
