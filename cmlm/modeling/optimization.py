"""LAMB and AdamW, with warm-up and decay of the learning rate, from Model Garden."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from typing import Optional

import tensorflow as tf
from official.modeling import hyperparams
from official.modeling.optimization import lamb, legacy_adamw, lr_schedule

from cmlm.common import fields

logger = logging.getLogger(__name__)

OPTIMIZERS = ("lamb", "adamw")
DECAYS = ("linear", "constant")
# BERT's rule: no decay on layer norms and biases. Variable names are matched.
NO_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")


@dataclasses.dataclass
class OptimizerConfig(hyperparams.Config):
    """The optimizer. Defaults are CMLM's: LAMB 1e-3, 10k warm-up, linear decay.

    Attributes:
        type: `lamb` or `adamw`.
        learning_rate: the highest rate, reached at the end of the warm-up.
        decay: after the warm-up the rate falls to `end_learning_rate` (`linear`), or
            stays (`constant`).
        end_learning_rate: the rate at the end of a linear decay.
        warmup_steps: steps of linear growth from 0.
        decay_steps: step at which a linear decay ends, the warm-up included; null:
            `trainer.train_steps`. If it is not above `warmup_steps`, the rate does not
            decay.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the square root of the second moment; above 0.
        weight_decay_rate: decoupled weight decay.
        decay_norms_and_biases: whether layer norms and biases decay too. BERT leaves
            them out; Mirror-BERT's released code does not.
        clip_norm: the largest global norm, to which larger gradients are scaled down;
            0: no clipping.
    """

    type: str = fields.one_of("lamb", OPTIMIZERS)
    learning_rate: float = fields.ranged(1e-3, above=0)
    decay: str = fields.one_of("linear", DECAYS)
    end_learning_rate: float = fields.ranged(0.0, at_least=0)
    warmup_steps: int = fields.ranged(10_000, at_least=0)
    decay_steps: Optional[int] = fields.ranged(None, at_least=1)
    beta_1: float = fields.ranged(0.9, at_least=0, below=1)
    beta_2: float = fields.ranged(0.999, at_least=0, below=1)
    epsilon: float = fields.ranged(1e-6, above=0)
    weight_decay_rate: float = fields.ranged(0.01, at_least=0)
    decay_norms_and_biases: bool = False
    clip_norm: float = fields.ranged(1.0, at_least=0)


# The slot with the number of updates of a weight.
_UPDATES = "updates"


class _OwnUpdates:
    """Corrects the bias of a weight's moments by the updates of this weight.

    The t of Adam (Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980, algorithm 1)
    and of LAMB counts them. Keras counts the updates of the run: a weight whose
    objective starts late would take steps of up to six times the learning rate.
    """

    def _create_slots(self, var_list):
        super()._create_slots(var_list)
        for variable in var_list:
            self.add_slot(variable, _UPDATES, shape=[])

    def _resource_apply_dense(self, grad, var, apply_state=None):
        state = self._with_own_updates(var, apply_state or {})
        return super()._resource_apply_dense(grad, var, state)

    def _resource_apply_sparse(self, grad, var, indices, apply_state=None):
        state = self._with_own_updates(var, apply_state or {})
        return super()._resource_apply_sparse(grad, var, indices, state)

    def _with_own_updates(self, var, apply_state: dict) -> dict:
        """Counts an update of a weight, and returns the coefficients that it needs."""
        key = (var.device, var.dtype.base_dtype)
        # In a program for TPUs, weights have no device, so Keras has prepared nothing.
        found = dict(apply_state.get(key) or self._fallback_apply_state(*key))
        updates = self.get_slot(var, _UPDATES).assign_add(1.0)
        for beta in ("beta_1", "beta_2"):
            found[f"{beta}_power"] = tf.pow(found[f"{beta}_t"], updates)
        # Keras' sparse update of Adam reads the corrected rate instead.
        found["lr"] = found["lr_t"] * (
            tf.sqrt(1 - found["beta_2_power"]) / (1 - found["beta_1_power"])
        )
        return {**apply_state, key: found}

    def count_as_run(self, variables: Iterable[tf.Variable]) -> None:
        """Sets the updates of each weight to those of the run.

        For a checkpoint of an earlier version, which did not count them.
        """
        for variable in variables:
            updates = self.get_slot(variable, _UPDATES)
            updates.assign(tf.cast(self.iterations, updates.dtype))


class AdamW(_OwnUpdates, legacy_adamw.AdamWeightDecay):
    """Model Garden's AdamW, see `_OwnUpdates`."""


class Lamb(_OwnUpdates, lamb.LAMB):
    """Model Garden's LAMB, see `_OwnUpdates`."""


def counts_updates(keys: Iterable[str]) -> bool:
    """Whether a checkpoint with these keys has the number of updates of each weight."""
    return any(f"/.OPTIMIZER_SLOT/optimizer/{_UPDATES}/" in key for key in keys)


def build_optimizer(config: OptimizerConfig, train_steps: int) -> AdamW | Lamb:
    """Builds the optimizer with its schedule.

    The learning rate grows linearly from 0 to `learning_rate` over `warmup_steps`. A
    linear decay then lowers it to `end_learning_rate` at `decay_steps`.

    The optimizer never clips, whatever `clip_norm` is: the caller clips, after the sum
    over replicas.

    Args:
        config: the validated configuration.
        train_steps: length of the run, in steps.
    """
    if config.warmup_steps >= train_steps:
        logger.warning(
            "the learning rate stays below trainer.optimizer.learning_rate, %g: the "
            "warm-up takes %s steps, the run %s; set a shorter "
            "trainer.optimizer.warmup_steps",
            config.learning_rate,
            f"{config.warmup_steps:,}",
            f"{train_steps:,}",
        )
    elif config.decay == "linear" and _linear_steps(config, train_steps) <= 0:
        logger.warning(
            "the learning rate does not decay: trainer.optimizer.decay_steps is %s, "
            "and the warm-up takes %s steps",
            f"{config.decay_steps:,}",
            f"{config.warmup_steps:,}",
        )
    rate = _schedule(config, train_steps)
    optimizer = {"adamw": AdamW, "lamb": Lamb}[config.type](rate, **_settings(config))
    # Keras would keep rates and decays as variables, and a checkpoint would set them
    # back to the values of the start before. As numbers they follow the configuration.
    optimizer._hypers_created = True
    return optimizer


def learning_rate(config: OptimizerConfig, train_steps: int, step: int) -> float:
    """Returns the learning rate of the update after `step` updates."""
    rate = _schedule(config, train_steps)
    return float(rate(step) if callable(rate) else rate)


def _settings(config: OptimizerConfig) -> dict:
    """Model Garden's settings of the optimizer, without the rate."""
    excluded = () if config.decay_norms_and_biases else NO_WEIGHT_DECAY
    settings = {
        "beta_1": config.beta_1,
        "beta_2": config.beta_2,
        "epsilon": config.epsilon,
        "weight_decay_rate": config.weight_decay_rate,
        "exclude_from_weight_decay": list(excluded),
    }
    if config.type == "lamb":
        # By default, LAMB's trust ratio would apply to every variable that decays. It
        # would nearly stop the biases, which begin at 0 and stay small.
        settings["exclude_from_layer_adaptation"] = list(NO_WEIGHT_DECAY)
    else:
        # By default, AdamW would clip to the global norm 1 on each replica.
        settings["gradient_clip_norm"] = 0.0
    return settings


def _linear_steps(config: OptimizerConfig, train_steps: int) -> int:
    """The steps between the end of the warm-up and the end of a linear decay."""
    return (config.decay_steps or train_steps) - config.warmup_steps


def _schedule(config: OptimizerConfig, train_steps: int):
    """The learning rate: a Keras schedule, or the number that it always is."""
    rate = config.learning_rate
    decay_steps = _linear_steps(config, train_steps)
    # A warm-up that ends no earlier than the decay leaves nothing to decay.
    if config.decay == "linear" and decay_steps > 0:
        rate = lr_schedule.PolynomialDecayWithOffset(
            # The decay begins where the warm-up ends, at the full rate.
            offset=config.warmup_steps,
            initial_learning_rate=rate,
            decay_steps=decay_steps,
            end_learning_rate=config.end_learning_rate,
        )
    if config.warmup_steps:
        rate = lr_schedule.LinearWarmup(rate, config.warmup_steps, 0)
    return rate
