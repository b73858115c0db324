"""LAMB and AdamW with warm-up and linear decay, built by Model Garden."""

from __future__ import annotations

import dataclasses
import logging
from typing import Optional

from official.modeling import hyperparams, optimization

from cmlm.errors import UserError

logger = logging.getLogger(__name__)

OPTIMIZERS = ("lamb", "adamw")
# BERT's rule: no decay on layer norms and biases. Variable names are matched.
NO_WEIGHT_DECAY = ("LayerNorm", "layer_norm", "bias")


@dataclasses.dataclass
class OptimizerConfig(hyperparams.Config):
    """How weights move. Defaults are CMLM's: LAMB 1e-3, 10k warm-up, linear decay.

    Attributes:
        type: `lamb` or `adamw`.
        learning_rate: at the end of the warm-up.
        end_learning_rate: what it decays to, reached at the last step.
        warmup_steps: steps of linear growth from 0.
        decay_steps: step at which the decay ends; None: `trainer.train_steps`.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the square root of the second moment; above 0.
        weight_decay_rate: decoupled; layer norms and biases are left out.
        clip_norm: gradients are scaled down to this global norm; 0 leaves them.
    """

    type: str = "lamb"
    learning_rate: float = 1e-3
    end_learning_rate: float = 0.0
    warmup_steps: int = 10_000
    decay_steps: Optional[int] = None
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    weight_decay_rate: float = 0.01
    clip_norm: float = 1.0

    def validate(self) -> None:
        """Raises UserError for a value outside its range."""
        name = "trainer.optimizer"
        if self.type not in OPTIMIZERS:
            raise UserError(
                f"{name}.type is {self.type!r}; allowed: {', '.join(OPTIMIZERS)}"
            )
        for field in ("learning_rate", "epsilon"):
            if getattr(self, field) <= 0:
                raise UserError(
                    f"{name}.{field} is {getattr(self, field)}; it must be above 0"
                )
        for field in ("beta_1", "beta_2"):
            if not 0 <= getattr(self, field) < 1:
                raise UserError(
                    f"{name}.{field} is {getattr(self, field)}; allowed: 0 to below 1"
                )
        for field in (
            "warmup_steps",
            "end_learning_rate",
            "weight_decay_rate",
            "clip_norm",
        ):
            if getattr(self, field) < 0:
                raise UserError(f"{name}.{field} is {getattr(self, field)}; at least 0")


def build_optimizer(config: OptimizerConfig, train_steps: int):
    """Builds the optimizer with its schedule.

    The learning rate grows linearly from 0 over `warmup_steps` and follows
    lr * (1 - step / decay_steps) after that. Clipping is left to the caller: it
    belongs after the sum over replicas, where Model Garden's optimizers do not
    put it.

    Args:
        config: checked.
        train_steps: length of the run, in steps.
    """
    decay_steps = config.decay_steps or train_steps
    if config.warmup_steps >= decay_steps and config.end_learning_rate == 0:
        # Warm-up climbs to where the decay is by then.
        logger.warning(
            "the learning rate stays 0: warm-up takes %s steps, and the rate has "
            "decayed after %s; set a shorter trainer.optimizer.warmup_steps",
            f"{config.warmup_steps:,}",
            f"{decay_steps:,}",
        )
    params = {
        "optimizer": {
            "type": config.type,
            config.type: {
                "beta_1": config.beta_1,
                "beta_2": config.beta_2,
                "epsilon": config.epsilon,
                "weight_decay_rate": config.weight_decay_rate,
                "exclude_from_weight_decay": list(NO_WEIGHT_DECAY),
            },
        },
        "learning_rate": {
            "type": "polynomial",
            "polynomial": {
                "initial_learning_rate": config.learning_rate,
                "end_learning_rate": config.end_learning_rate,
                "decay_steps": decay_steps,
                "power": 1.0,
            },
        },
    }
    if config.warmup_steps:
        params["warmup"] = {
            "type": "linear",
            "linear": {"warmup_steps": config.warmup_steps, "warmup_learning_rate": 0},
        }
    factory = optimization.OptimizerFactory(optimization.OptimizationConfig(params))
    return factory.build_optimizer(factory.build_learning_rate())
