"""LAMB and AdamW with warm-up and linear decay, built by Model Garden."""

from __future__ import annotations

import dataclasses
import logging
from typing import Optional

from official.modeling import hyperparams, optimization

from cmlm.common import fields

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

    type: str = fields.one_of("lamb", OPTIMIZERS)
    learning_rate: float = fields.ranged(1e-3, above=0)
    end_learning_rate: float = fields.ranged(0.0, at_least=0)
    warmup_steps: int = fields.ranged(10_000, at_least=0)
    decay_steps: Optional[int] = fields.ranged(None, at_least=1)
    beta_1: float = fields.ranged(0.9, at_least=0, below=1)
    beta_2: float = fields.ranged(0.999, at_least=0, below=1)
    epsilon: float = fields.ranged(1e-6, above=0)
    weight_decay_rate: float = fields.ranged(0.01, at_least=0)
    clip_norm: float = fields.ranged(1.0, at_least=0)


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
