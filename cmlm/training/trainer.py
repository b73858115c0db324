"""One step of training: the exact gradient of the global batch, then one update.

The result does not depend on how replicas and micro-batches share the global batch.
Every objective's loss is a sum. The trainer computes its divisor from the inputs of the
whole global batch before the first forward pass, so the divisor is the same for every
replica and every micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import orbit
import tensorflow as tf
from tensorflow.core.protobuf import rewriter_config_pb2
from tensorflow.python.eager import context

from cmlm.common import distributed, iterators
from cmlm.config import experiment
from cmlm.errors import UserError
from cmlm.modeling import step_mode
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import Objective
from cmlm.training import finite
from cmlm.training.finite import NonFiniteError
from cmlm.training.gradients import ReplicaGradients
from cmlm.training.totals import add_totals, means
from cmlm.training.validation import Validator


class Trainer(orbit.AbstractTrainer, orbit.AbstractEvaluator):
    """Runs steps of several objectives on one model.

    Build it within the strategy's scope.

    Args:
        model: the model, with all its parts.
        objectives: the objectives by name.
        optimizer: a Keras 2 legacy optimizer, such as Model Garden's.
        strategy: the strategy whose replicas share each global batch.
        settings: clipping, memory, schedule and seed of the steps; the examples of a
            validation.

    Attributes:
        gradients: the `ReplicaGradients` of each objective.
        batches_seen: the number of batches that each objective has consumed, as int64
            variables.
        validator: validates the same objectives.
        totals: the sum and the count of each metric in the last call of `train`.

    Raises:
        UserError: batch sizes do not divide evenly, see `ReplicaGradients`.
    """

    def __init__(
        self,
        model: SentenceModel,
        objectives: Mapping[str, Objective],
        optimizer,
        strategy: tf.distribute.Strategy,
        settings: experiment.TrainerConfig,
    ):
        _keep_sums_in_loops()
        self.totals: dict[str, list[float]] = {}
        self.model = model
        self.objectives = dict(objectives)
        self.optimizer = optimizer
        self.strategy = strategy
        self.settings = settings
        self.fused = step_mode.wants_fusing(
            settings.fused_layers,
            model.config.hidden_size,
            distributed.on_processors(strategy),
        )
        size = settings.micro_batch_size
        self.gradients = {
            name: ReplicaGradients(
                objective, model, strategy.num_replicas_in_sync, size
            )
            for name, objective in self.objectives.items()
        }
        self.validator = Validator(
            self.objectives, strategy, size, settings.validation_examples
        )
        self.batches_seen = {
            name: tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                name=f"batches_seen/{name}",
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )
            for name in self.objectives
        }
        model.build_dropout(settings.seed)
        # Creates the slots before a checkpoint is restored, so that each of its values
        # finds a variable.
        optimizer._create_all_weights(self.trained_variables)
        self._iterators: dict = {}
        self._train_functions: dict = {}

    # ------------------------------------------------------------ training

    @property
    def step(self) -> int:
        """The number of updates so far."""
        return int(self.optimizer.iterations.numpy())

    @property
    def trained_variables(self) -> list[tf.Variable]:
        """The weights that some objective trains, each once."""
        return self._variables(tuple(self.objectives))

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return float(self.optimizer._decayed_lr(tf.float32))

    def active(self, step: int) -> tuple[str, ...]:
        """Returns the names of the objectives that take part in a step."""
        names = self._taking_part(step)
        if self.settings.schedule == "joint" or len(names) < 2:
            return names
        # The draw is a function of seed and step, so a resumed run repeats it.
        weights = np.array([self.objectives[name].config.weight for name in names])
        random = np.random.default_rng([self.settings.seed, step])
        return (names[random.choice(len(names), p=weights / weights.sum())],)

    def _taking_part(self, step: int) -> tuple[str, ...]:
        """The objectives that a joint step sums, and an interleaved step draws from."""
        return tuple(
            name
            for name, objective in self.objectives.items()
            if objective.config.is_active(step)
        )

    def train(self, num_steps) -> dict[str, float]:
        """Runs `num_steps` updates.

        Returns:
            The mean of every metric over these steps, `<objective>/<metric>`, and
            `gradient_norm`, the global norm before clipping. If several objectives take
            part in a step on one replica, also the norm of each,
            `<objective>/gradient_norm`.

        Raises:
            NonFiniteError: a loss or a gradient is not finite. The step stops before
                its update; on TPUs the error comes after the steps.
            UserError: no objective is active in one of the steps.
        """
        end = self.step + int(num_steps)
        totals: dict[str, list[float]] = {}
        while self.step < end:
            start = self.step
            names = self.active(start)
            if not names:
                raise UserError(
                    f"no objective is active at step {start}: change start_step or "
                    "end_step of an objective, or trainer.train_steps"
                )
            stop = start + 1
            while stop < end and self.active(stop) == names:
                stop += 1
            add_totals(totals, self._run(names, stop - start))
        self.totals = totals
        return means(totals)

    @property
    def examples_seen(self) -> int:
        """The number of training examples so far, over all objectives and replicas."""
        return sum(
            int(seen.numpy()) * self.objectives[name].global_batch_size
            for name, seen in self.batches_seen.items()
        )

    def _run(self, names: tuple[str, ...], num_steps: int) -> dict:
        for name in names:
            if name not in self._iterators:
                dataset = self._train_dataset(name)
                self._iterators[name] = iterators.distributed(dataset)
        if names not in self._train_functions:
            self._train_functions[names] = self._build_train_function(names)
        function, keys = self._train_functions[names]
        batches = {name: self._iterators[name] for name in names}
        try:
            totals = function(batches, tf.constant(num_steps)).numpy()
        except tf.errors.InvalidArgumentError as error:
            what = finite.failed_name(error)
            if what is None:
                raise
            raise NonFiniteError(
                f"{what} is not finite in step {self.step + 1}"
            ) from error
        found = dict(zip(keys, totals.tolist(), strict=True))
        if distributed.is_tpu(self.strategy):
            finite.refuse_totals(found, self.step - num_steps + 1, self.step)
        return found

    def _train_dataset(self, name: str):
        objective, seen = self.objectives[name], int(self.batches_seen[name].numpy())

        def dataset(input_context):
            per_pipeline = (
                input_context.num_replicas_in_sync // input_context.num_input_pipelines
            )
            return objective.train_dataset(
                input_context, skip_batches=seen * per_pipeline
            )

        return self.strategy.distribute_datasets_from_function(dataset)

    def _variables(self, names: tuple[str, ...]) -> list[tf.Variable]:
        """Returns the variables that these objectives train, each once."""
        encoder, found = self.model.encoder, {}
        for name in names:
            objective = self.objectives[name]
            # Weights without a gradient would only decay.
            idle = [] if objective.reads_vectors else encoder.reading_variables
            skipped = {variable.ref() for variable in idle}
            for part in objective.trained_parts:
                if part not in self.model.parts:
                    raise ValueError(
                        f"{name} trains the part {part!r} of the model; allowed: "
                        f"{', '.join(self.model.parts)}"
                    )
                # Variables that appear during a step have no gradient there.
                if not self.model.parts[part].built:
                    raise ValueError(
                        f"{name} trains the part {part!r} of the model, which has no "
                        "variables yet; allowed: a layer after its `build`"
                    )
                for variable in self.model.parts[part].trainable_variables:
                    if variable.ref() not in skipped:
                        found[variable.ref()] = variable
        return list(found.values())

    def _build_train_function(self, names: tuple[str, ...]):
        keys = ["gradient_norm"]
        if self._has_norms(names):
            keys += [f"{name}/gradient_norm" for name in names]
        for name in names:
            keys += [f"{name}/{key}" for key in self.objectives[name].train_metrics]

        @tf.function
        def run(batches_of, num_steps):
            totals = tf.zeros([len(keys), 2])
            for _ in tf.range(num_steps):
                self.model.reset_dropout(self.optimizer.iterations)
                batches = {name: next(batches_of[name]) for name in names}
                # The step enters this context once: each replica runs in a thread of
                # its own, and the first one to leave it would end it for all.
                with step_mode.fusing(self.fused):
                    results = self.strategy.run(self._replica_step, args=(batches,))
                # All-reduced: every replica holds the same numbers.
                totals += self.strategy.experimental_local_results(results)[0]
                for name in names:
                    self.batches_seen[name].assign_add(1)
            return totals

        return run, keys

    def _has_norms(self, names: Collection[str]) -> bool:
        """Whether a step tells the norm of each objective's gradient.

        On several replicas, a norm would cost a sum of all gradients over the replicas.
        """
        return len(names) > 1 and self.strategy.num_replicas_in_sync == 1

    # The step has no Python control flow to convert, and AutoGraph's search for it
    # takes as long as building the graph.
    @tf.autograph.experimental.do_not_convert
    def _replica_step(self, batches) -> tf.Tensor:
        gradient_of, norms, metrics = {}, [], []
        is_joint = self.settings.schedule == "joint"
        for name, batch in batches.items():
            objective = self.objectives[name]
            divisor = distributed.sum_over_replicas(objective.divisor(batch))
            weight = objective.config.weight if is_joint else 1.0
            scale = tf.math.divide_no_nan(weight, divisor)
            # An objective that keeps the encoder frozen does not train it, even if
            # another objective of the step does.
            own = self._variables((name,))
            more, rows = self.gradients[name](batch, scale, own)
            if self._has_norms(batches):
                norms.append(tf.linalg.global_norm(more))
            for variable, gradient in zip(own, more, strict=True):
                key = variable.ref()
                before = gradient_of.get(key)
                gradient_of[key] = gradient if before is None else before + gradient
            metrics.append(rows)
        variables = self._variables(tuple(batches))
        # Once, not for each objective: large gradients cross the network here.
        gradients = distributed.sum_over_replicas(
            [gradient_of[variable.ref()] for variable in variables]
        )
        metrics = distributed.sum_over_replicas(tf.concat(metrics, axis=0))
        norm = tf.linalg.global_norm(gradients)
        norms.insert(0, norm)

        losses, row = {}, 0
        for name in batches:
            losses[f"the loss of {name}"] = metrics[row, 0]
            row += len(self.objectives[name].train_metrics)
        self._update(variables, gradients, norm, losses)
        return tf.concat([[[norm, 1.0] for norm in norms], metrics], axis=0)

    def _update(
        self,
        variables: list[tf.Variable],
        gradients: list[tf.Tensor],
        norm: tf.Tensor,
        losses: dict[str, tf.Tensor],
    ) -> None:
        """Clips gradients and applies them, unless a value is not finite.

        Args:
            variables: the weights to change.
            gradients: their gradients, summed over the replicas.
            norm: the norm of the gradients.
            losses: the loss of each objective, by its name in the error.
        """
        values = {**losses, "the gradient": norm}
        # XLA drops assertions, and cannot compile their text.
        compiled = distributed.is_tpu(self.strategy)
        checks = [] if compiled else [finite.assert_finite(values)]
        with tf.control_dependencies(checks):
            limit = self.settings.optimizer.clip_norm
            factor = limit / tf.maximum(norm, limit) if limit else 1.0
            gradients = [gradient * factor for gradient in gradients]
        # The decay of AdamW reads no gradient. Without waiting, it would change weights
        # before a check stops the step, and TensorFlow would compute all decays as the
        # step begins, and hold as much memory as the weights take until it ends.
        with tf.control_dependencies([norm, *checks]):
            # The gradients are already summed over the replicas; the optimizer must not
            # repeat it.
            self.optimizer.apply_gradients(
                zip(gradients, variables, strict=True),
                experimental_aggregate_gradients=False,
            )

    def evaluate(self, num_steps) -> dict[str, float]:
        """Validates the objectives that took part in the last steps.

        Args:
            num_steps: batches of each objective; -1: see `Validator`.

        Returns:
            The metrics, as `Validator.evaluate` returns them.
        """
        names = self._taking_part(max(self.step - 1, 0))
        return self.validator.evaluate(names, int(num_steps))


def _keep_sums_in_loops() -> None:
    """Switches TensorFlow's memory optimizer off for later graphs of this process.

    In a step that takes much memory, the optimizer turns the sum of three or more
    gradients into a temporary variable. In the body of a loop it creates the variable
    once more often than it destroys it, and the next step fails with "Resource ...
    tmp_var already exists".
    """
    config = context.context().config
    config.graph_options.rewrite_options.memory_optimization = (
        rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    )
    # tf.config.optimizer has a switch for every optimizer except this one.
    context.context().function_call_options = context.FunctionCallOptions(
        config_proto=config
    )
