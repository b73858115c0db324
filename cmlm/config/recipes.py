"""The papers' experiments, by name: `--experiment=NAME`.

A recipe holds every value that its paper states. Its docstring names the values that
the paper leaves open, and ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from official.core import exp_factory

from cmlm.config.experiment import ExperimentConfig, TrainerConfig
from cmlm.config.overrides import override
from cmlm.data.builtin import PYTHON_DOCS
from cmlm.data.corpus import TextDataConfig
from cmlm.data.masking import MaskingConfig
from cmlm.errors import UserError
from cmlm.modeling.encoder import EncoderConfig
from cmlm.modeling.optimization import OptimizerConfig
from cmlm.objectives import OBJECTIVES, TaskConfig
from cmlm.vocabulary.learning import VocabularyConfig

_names: list[str] = []

# The multilingual vocabulary of LaBSE, which CMLM uses too.
MULTILINGUAL_VOCABULARY = 501_153


def _recipe(name: str) -> Callable:
    """Registers a recipe with Model Garden, where its users look for it."""

    def register(build: Callable[[], ExperimentConfig]):
        _names.append(name)
        return exp_factory.register_config_factory(name)(build)

    return register


def names() -> list[str]:
    """The recipes of this project."""
    return list(_names)


def _task(batch: int, seq_length: int, text: str = "") -> TaskConfig:
    """Every objective, switched off, with the same batch and length.

    Args:
        batch: examples a step.
        seq_length: in tokens.
        text: `input_path` of the objectives that read plain text.
    """
    task = TaskConfig()
    for name in OBJECTIVES:
        data = getattr(task, name).train_data
        data.global_batch_size, data.seq_length = batch, seq_length
        if isinstance(data, TextDataConfig):
            data.input_path = text
    return task


@_recipe("cmlm/english")
def cmlm_english() -> ExperimentConfig:
    """English CMLM (https://arxiv.org/abs/2012.14388, sections 2, 3 and C).

    BERT-base, sequences of 256 tokens with 80 masked, 15 projections, batch 2048, LAMB
    1e-3 with 10k steps of warm-up and linear decay, 1 M steps.
    """
    task = _task(2048, 256, PYTHON_DOCS)
    task.cmlm.weight = 1.0
    return ExperimentConfig(
        vocabulary=VocabularyConfig(size=30_522, lower_case=True),
        task=task,
        trainer=TrainerConfig(best_checkpoint_metric="cmlm/loss"),
    )


@_recipe("cmlm/multilingual")
def cmlm_multilingual() -> ExperimentConfig:
    """Multilingual CMLM with bitext retrieval (the same paper, sections 4.2 and 4.4).

    As English, with a cased vocabulary of 501,153; translations rank each other by
    inner products with margin 0.3, batch 2048, weight 0.2. Both objectives from the
    start, for 2 M steps.
    """
    task = _task(2048, 256)
    task.cmlm.weight = 1.0
    task.bitext.weight = 0.2
    task.bitext.similarity, task.bitext.scale = "dot", 1.0
    task.nli.weight = 0.0
    return ExperimentConfig(
        vocabulary=VocabularyConfig(size=MULTILINGUAL_VOCABULARY, lower_case=False),
        task=task,
        trainer=TrainerConfig(train_steps=2_000_000),
    )


@_recipe("labse/pretrain")
def labse_pretrain() -> ExperimentConfig:
    """LaBSE's pre-training (https://arxiv.org/abs/2007.01852, sections 2.2 and 3.4).

    Masked LM and translation LM, 512 tokens of which 20 % but at most 80 are masked,
    stacked from 3 to 6 to 12 layers after 0.4 and 0.8 M steps, then 1.8 M.
    """
    # CMLM's conditions take rows of the position table that LaBSE does not need.
    task = _task(8192, 512)
    task.mlm.weight = task.tlm.weight = 1.0
    for objective in (task.mlm, task.tlm):
        objective.masking = MaskingConfig(rate=0.2, max_predictions=80)
    task.mlm.passages = True
    return ExperimentConfig(
        model=EncoderConfig(max_position_embeddings=513, num_views=1, pooling="cls"),
        vocabulary=VocabularyConfig(size=MULTILINGUAL_VOCABULARY, lower_case=False),
        task=task,
        trainer=TrainerConfig(train_steps=1_800_000, stacking_steps=(400_000, 800_000)),
    )


@_recipe("labse/dual_encoder")
def labse_dual_encoder() -> ExperimentConfig:
    """LaBSE's dual encoder (the same paper, sections 2.1, 3.2 and 3.3).

    Cosines of [CLS], margin 0.3, batch 4096, 128 tokens, AdamW 1e-3, 50k steps.
    """
    task = _task(4096, 128)
    task.bitext.weight = 1.0
    task.bitext.scale = 100.0
    return ExperimentConfig(
        model=EncoderConfig(max_position_embeddings=513, num_views=1, pooling="cls"),
        vocabulary=VocabularyConfig(size=MULTILINGUAL_VOCABULARY, lower_case=False),
        task=task,
        trainer=TrainerConfig(
            train_steps=50_000,
            validation_interval=1_000,
            checkpoint_interval=1_000,
            best_checkpoint_metric="bitext/loss",
            optimizer=OptimizerConfig(type="adamw", learning_rate=1e-3),
        ),
    )


@_recipe("mirror/sentence")
def mirror_sentence() -> ExperimentConfig:
    """Mirror-BERT for sentences (https://arxiv.org/abs/2104.08027, section 3).

    10,000 strings once, batch 200, 50 tokens, a span of 5 characters masked, dropout,
    temperature 0.04, AdamW 2e-5. Mean pooling, BERT's for sentences (appendix B).
    """
    task = _task(200, 50)
    task.mirror.weight = 1.0
    return ExperimentConfig(
        task=task,
        trainer=TrainerConfig(
            train_steps=50,
            summary_interval=10,
            validation_interval=50,
            checkpoint_interval=50,
            optimizer=OptimizerConfig(type="adamw", learning_rate=2e-5, warmup_steps=0),
        ),
    )


@_recipe("ulr/misad")
def ulr_misad() -> ExperimentConfig:
    """Universal language representation (https://arxiv.org/abs/2105.14478).

    Sections 3.2 and 4: MiSAD and masked LM at equal weights on single sentences, 15 %
    masked, batch 64, 128 tokens, 5e-5 with warm-up over 10 % of the steps, one pass
    over 10 M sentences. Weight decay and the decay of the rate are ours.
    """
    task = _task(64, 128)
    task.misad.weight = 1.0
    return ExperimentConfig(
        model=EncoderConfig(num_views=1, pooling="cls"),
        task=task,
        trainer=TrainerConfig(
            train_steps=156_250,
            optimizer=OptimizerConfig(
                type="adamw", learning_rate=5e-5, warmup_steps=15_625
            ),
        ),
    )


def load(
    experiment: str,
    config_files: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> ExperimentConfig:
    """A recipe with changes; see `overrides.override`.

    Args:
        experiment: a name from `names()`.
        config_files: YAML files with any part of the configuration.
        overrides: `a.b.c=value`, several separated by commas, or YAML.

    Raises:
        UserError: an unknown name, key or file, or a value that does not fit.
    """
    if experiment not in names():
        raise UserError(
            f"--experiment is {experiment!r}; allowed: {', '.join(names())}"
        )
    config = exp_factory.get_exp_config(experiment)
    override(config, config_files, overrides)
    return config
