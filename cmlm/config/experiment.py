"""The configuration of an experiment: its parts, and the rules between them."""

from __future__ import annotations

import dataclasses
import re

from official.core import config_definitions
from official.modeling import hyperparams

from cmlm.common import fields
from cmlm.errors import UserError
from cmlm.modeling import step_mode
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.modeling.optimization import OptimizerConfig
from cmlm.objectives import TaskConfig
from cmlm.vocabulary.settings import VocabularyConfig

SCHEDULES = ("joint", "interleaved")
COMPARISONS = ("lower", "higher")

# The metrics of objectives by the comparison that finds the best value. Neither does
# for others, such as `scored/cosine`, the mean cosine of pairs of all scores.
_BEST = {
    "lower": re.compile(r"\w+/(?!shuffled_)(\w+_)?(loss|error)"),
    "higher": re.compile(
        r"\w+/(?!shuffled_)((\w+_)?accuracy(_\w+)?|order|conditioning_gain)|distill\w*/cosine"
    ),
}


@dataclasses.dataclass
class TrainerConfig(hyperparams.Config):
    """Length, intervals and memory of a run, and its optimizer.

    Attributes:
        train_steps: weight updates of the whole run, unless `epochs` is set.
        epochs: passes over the training data, for runs with one objective. The number
            of steps is then the number of whole batches in these passes. Each epoch
            uses every example at most once, in a new order, and leaves out the examples
            beyond its last whole batch. 0: `train_steps` decides.
        schedule: how several objectives share the steps: `joint` sums their weighted
            losses in every step; `interleaved` draws one objective for each step, in
            proportion to the weights.
        micro_batch_size: examples that one replica holds in memory at a time; 0 takes
            its whole share of the global batch at once. The gradient does not depend
            on it.
        fused_layers: whether XLA compiles GELU, layer norm, the softmax of attention
            and cross-entropy in the training step: `always`, `never`, or `auto` (on
            CPUs, for models at least 128 wide). A compiled step also skips padding.
            Exports do not depend on it.
        steps_per_loop: the most updates before the run next checks the clock and
            signals.
        summary_interval: updates between two rows of metrics.
        validation_interval: updates between two validations.
        validation_steps: batches of one validation, for each objective; -1: enough to
            hold `validation_examples`.
        validation_examples: examples of one validation, for each objective, rounded up
            to whole batches; -1: all that are held out. The limit bounds the time of a
            validation, because the held-out share grows with the corpus.
        checkpoint_interval: updates between two checkpoints.
        max_to_keep: the number of checkpoints to keep.
        stacking_steps: progressive stacking: updates of each stage before the run
            itself. The last of these stages has half of the layers, the stage before it
            a quarter, and so on. Each stage starts from the repeated layers of the
            stage before it.
        best_checkpoint_metric: validation metric, such as `cmlm/loss`. `best/` keeps
            the checkpoint with its best value; empty: no such checkpoint.
        best_checkpoint_comparison: whether `lower` or `higher` values are better.
        evals: tasks of `cmlm.evaluate` to score at every validation, such as
            `[stsb-dev, tatoeba-de]`. Their main metrics, such as `stsb-dev/spearman`,
            may choose the best checkpoint.
        evals_data_dir: the folder with the test sets of `evals`.
        optimizer: the optimizer, its learning rate and gradient clipping.
        seed: the seed of initial weights, dropout, and the draws of
            `schedule=interleaved`. It also changes the order of the data, as
            `train_data.seed` does; masks depend on `train_data.seed` alone.
    """

    train_steps: int = fields.ranged(1_000_000, at_least=1)
    epochs: int = fields.ranged(0, at_least=0)
    schedule: str = fields.one_of("joint", SCHEDULES)
    micro_batch_size: int = fields.ranged(0, at_least=0)
    fused_layers: str = fields.one_of("auto", step_mode.CHOICES)
    steps_per_loop: int = fields.ranged(100, at_least=1)
    summary_interval: int = fields.ranged(100, at_least=1)
    validation_interval: int = fields.ranged(10_000, at_least=1)
    validation_steps: int = fields.ranged(-1, at_least=1, also=(-1, "by examples"))
    validation_examples: int = fields.ranged(16_384, at_least=1, also=(-1, "all"))
    checkpoint_interval: int = fields.ranged(5_000, at_least=1)
    max_to_keep: int = fields.ranged(5, at_least=1)
    stacking_steps: tuple[int, ...] = fields.ranged((), at_least=1)
    best_checkpoint_metric: str = ""
    best_checkpoint_comparison: str = fields.one_of("lower", COMPARISONS)
    evals: tuple[str, ...] = ()
    evals_data_dir: str = ""
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    seed: int = fields.ranged(0, at_least=0, below=2**32)

    def is_over(self, step: int) -> bool:
        """Whether a run has taken all of its steps.

        With `epochs`, call it only on a built run, which has set `train_steps`.

        Args:
            step: the updates so far.
        """
        return step == self.train_steps

    def layers_of_stages(self, layers: int) -> list[int]:
        """The layers of each stage of a run; the last one has all of its layers.

        Raises:
            UserError: the stages of `stacking_steps` do not divide the layers.
        """
        stages = len(self.stacking_steps)
        if layers % 2**stages:
            raise fields.refused(
                "model.num_layers",
                layers,
                f"multiples of {2**stages}, as trainer.stacking_steps has {stages} "
                "stages",
            )
        return [layers // 2**later for later in range(stages, -1, -1)]

    def check_together(self, prefix: str) -> None:
        """Raises UserError if values do not fit each other."""
        if self.evals and not self.evals_data_dir:
            raise fields.refused(
                f"{prefix}evals_data_dir",
                "",
                f"the folder with the test sets of {prefix}evals",
            )


@dataclasses.dataclass
class ExperimentConfig(hyperparams.Config):
    """A whole run.

    Attributes:
        model: the shape of the encoder.
        vocabulary: the WordPiece vocabulary, given or learnt.
        task: the objectives.
        trainer: steps, intervals, optimizer.
        runtime: devices and precision; Model Garden's fields.
        init_checkpoint: the weights to start from: a model_dir or a checkpoint of this
            project, or the weights of another program. Only weights are taken,
            not the optimizer. Another program's weights bring shape and vocabulary;
            recipe and flags still set the pooling.
        init_layers: the layers of `init_checkpoint` that the encoder starts from, by
            number from 0 and in ascending order; empty: all of them. The encoder then
            has this number of layers.
        stacked_on: the stage of progressive stacking before this one, whose layers it
            started from. The run sets it.
    """

    model: EncoderConfig = dataclasses.field(default_factory=EncoderConfig)
    vocabulary: VocabularyConfig = dataclasses.field(default_factory=VocabularyConfig)
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    runtime: config_definitions.RuntimeConfig = dataclasses.field(
        default_factory=lambda: config_definitions.RuntimeConfig(
            distribution_strategy="one_device"
        )
    )
    init_checkpoint: str = ""
    init_layers: tuple[int, ...] = fields.ranged((), at_least=0)
    stacked_on: str = ""

    @property
    def longest_sentence(self) -> int:
        """Where the encoder of this run cuts sentences, in tokens; 0: not known."""
        longest = self.model.seq_length or self.task.longest_sequence()
        return min(longest, self.model.token_positions)

    @property
    def has_validation(self) -> bool:
        """Whether a validation has something to measure."""
        return bool(self.trainer.evals) or any(
            each.has_validation for each in self.task.enabled().values()
        )

    def validate(self) -> None:
        """Checks the values of a run, and fills in the shape of the model.

        Data need not be named yet, see `require_data`.

        Raises:
            UserError: a value is not allowed; the message names it and the allowed
                values. Or no objective is enabled.
        """
        fields.check_types(self)
        if not self.task.enabled():
            raise UserError(
                "every objective has weight 0; allowed: at least one above 0, such as "
                "task.cmlm.weight=1"
            )
        fields.check_ranges(self)
        if not self.trainer.epochs:
            self.check_steps()

    def require_data(self) -> None:
        """Checks that the enabled objectives can read their data.

        Raises:
            UserError: the data of an objective is not named, or it has marked n-grams,
                which the objective would read as words.
        """
        enabled = self.task.enabled()
        for name, objective in enabled.items():
            objective.require_input(f"task.{name}.")
        marked = {o.train_data.origin for o in enabled.values() if o.reads_marks}
        for name, objective in enabled.items():
            if objective.train_data.origin in marked and not objective.reads_marks:
                raise fields.refused(
                    f"task.{name}.train_data.input_path",
                    objective.train_data.input_path,
                    f"text without marked n-grams, which task.{name} would read as "
                    "words; or another task.misad.candidates",
                )

    def check_together(self, prefix: str) -> None:
        """The rules between the parts."""
        enabled = self.task.enabled()
        stages = self.trainer.layers_of_stages(self.model.num_layers)
        if self.trainer.epochs and (len(enabled) > 1 or len(stages) > 1):
            raise fields.refused(
                "trainer.epochs",
                self.trainer.epochs,
                "0 (trainer.train_steps decides) for several objectives and for"
                " trainer.stacking_steps",
            )
        best = self.trainer.best_checkpoint_metric
        # The metrics of the `evals` tasks are known only after their data is read.
        if best and best.partition("/")[0] not in enabled and not self.trainer.evals:
            raise fields.refused(
                "trainer.best_checkpoint_metric",
                best,
                f"empty, or a metric of {', '.join(enabled)}",
            )
        for name, objective in enabled.items():
            objective.check_model(f"task.{name}.", self.model)

    def check_comparison(self) -> None:
        """Raises UserError if `best/` would keep the worst checkpoint.

        Only a training calls it: a run of an earlier version may have such a pair of
        settings, and still opens.
        """
        best, given = (
            self.trainer.best_checkpoint_metric,
            self.trainer.best_checkpoint_comparison,
        )
        if best.partition("/")[0] not in self.task.enabled():
            return
        for comparison, metrics in _BEST.items():
            if metrics.fullmatch(best) and given != comparison:
                raise fields.refused(
                    "trainer.best_checkpoint_comparison",
                    given,
                    f"{comparison}, as {comparison} values of {best} are better",
                )

    def check_steps(self) -> None:
        """Raises UserError for a step of the run in which no objective takes part."""
        enabled, steps = self.task.enabled(), self.trainer.train_steps
        ends = (each.end_step for each in enabled.values() if each.end_step is not None)
        for step in sorted([0, *ends]):
            active = any(each.is_active(step) for each in enabled.values())
            if step < steps and not active:
                raise UserError(
                    f"no objective is active at step {step:,} of {steps:,}; allowed: "
                    "task.NAME.start_step and .end_step that leave out no step"
                )
