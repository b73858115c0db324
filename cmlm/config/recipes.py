"""The papers' experiments, by name: `--experiment=NAME`.

A recipe holds every value that its paper states. docs/papers/ names the values that the
paper leaves open, and our choices; docstrings name those that matter most.
"""

from __future__ import annotations

from collections.abc import Callable

from official.core import exp_factory

from cmlm.config.experiment import ExperimentConfig, TrainerConfig
from cmlm.data.masking import MaskingConfig
from cmlm.modeling.encoder_config import SOURCE_POOLING, EncoderConfig
from cmlm.modeling.optimization import OptimizerConfig
from cmlm.objectives import OBJECTIVES, TaskConfig
from cmlm.vocabulary.settings import VocabularyConfig

_names: list[str] = []


def _recipe(name: str) -> Callable:
    """Registers a recipe with Model Garden, where its users look for it."""

    def register(build: Callable[[], ExperimentConfig]):
        _names.append(name)
        return exp_factory.register_config_factory(name)(build)

    return register


def names() -> list[str]:
    """The recipes of this project."""
    return list(_names)


def _task(batch: int, seq_length: int) -> TaskConfig:
    """Every objective, switched off, with the same batch and length.

    Args:
        batch: examples per step.
        seq_length: tokens per sequence.
    """
    task = TaskConfig()
    for name in OBJECTIVES:
        data = getattr(task, name).train_data
        data.global_batch_size, data.seq_length = batch, seq_length
    return task


def _masking(share: float, at_most: int = 0) -> MaskingConfig:
    """BERT's masking: 80 % [MASK], 10 % a random token, 10 % unchanged."""
    return MaskingConfig(
        rate=share,
        max_predictions=at_most,
        mask_token_share=0.8,
        random_token_share=0.1,
    )


# ---------------------------------------------------------------------- CMLM


def _cmlm_optimizer() -> OptimizerConfig:
    """LAMB as section 3 prints it. Epsilon, weight decay and clipping are BERT's."""
    return OptimizerConfig(
        type="lamb",
        learning_rate=1e-3,
        decay="linear",
        warmup_steps=10_000,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=1e-6,
        weight_decay_rate=0.01,
        clip_norm=1.0,
    )


@_recipe("cmlm/english")
def cmlm_english() -> ExperimentConfig:
    """English CMLM (https://arxiv.org/abs/2012.14388, sections 2, 3, appendix C).

    BERT-base, mean pooling, sequences of 256 tokens with 80 masked, 15 projections,
    batch 2048, LAMB 1e-3 with 10k steps of warm-up and linear decay, 1 M steps. The
    vocabulary is BERT's public uncased vocabulary of 30,522 tokens: name it with
    --vocab_file. Without this flag the run learns a vocabulary of that size.
    """
    task = _task(2048, 256)
    task.cmlm.weight, task.cmlm.passages = 1.0, True
    task.cmlm.masking = _masking(80 / 256)
    return ExperimentConfig(
        model=EncoderConfig(preset="base", num_views=15, pooling="mean"),
        vocabulary=VocabularyConfig(size=30_522, lower_case=True),
        task=task,
        trainer=TrainerConfig(
            train_steps=1_000_000,
            best_checkpoint_metric="cmlm/loss",
            optimizer=_cmlm_optimizer(),
        ),
    )


@_recipe("cmlm/multilingual")
def cmlm_multilingual() -> ExperimentConfig:
    """Multilingual CMLM with bitext retrieval (the same paper, sections 4.1 to 4.4).

    As English CMLM, but with a cased vocabulary of 501,153. Bitext retrieval uses inner
    products, margin 0.3, batch 2048 and weight 0.2. Both objectives train from the
    start, for 2 M steps: this is S1 in the list of section 4.2. S2 and S3 have two
    stages, of 1.5 M and 1 M steps. (Section 4.4 and the caption of table 4 exchange the
    names S1 and S2.)

    The exponent 0.3 is the paper's for the vocabulary (`vocabulary.sampling_exponent`).
    The paper does not say how data is sampled; we use the same exponent for it
    (`train_data.sampling_exponent`), so that small languages are seen at all.
    """
    task = _task(2048, 256)
    task.cmlm.weight, task.cmlm.passages = 1.0, True
    task.cmlm.masking = _masking(80 / 256)
    task.bitext.weight = 0.2
    task.bitext.margin = 0.3
    task.bitext.similarity, task.bitext.scale = "dot", 1.0
    return ExperimentConfig(
        model=EncoderConfig(preset="base", num_views=15, pooling="mean"),
        vocabulary=_multilingual_vocabulary(),
        task=task,
        trainer=TrainerConfig(train_steps=2_000_000, optimizer=_cmlm_optimizer()),
    )


def _multilingual_vocabulary() -> VocabularyConfig:
    """The vocabulary of LaBSE (section 3.2), which CMLM uses too (section 4.4)."""
    return VocabularyConfig(size=501_153, lower_case=False, sampling_exponent=0.3)


# --------------------------------------------------------------------- LaBSE


def _labse_model() -> EncoderConfig:
    # The position table has one row more than a sequence has tokens, for the condition
    # of CMLM.
    return EncoderConfig(
        preset="base", max_position_embeddings=513, num_views=1, pooling="cls"
    )


@_recipe("labse/pretrain")
def labse_pretrain() -> ExperimentConfig:
    """LaBSE's pre-training (https://arxiv.org/abs/2007.01852, sections 2.2 and 3.4).

    Masked LM and translation LM, batch 8192 over both, 512 tokens with 20 % masked (at
    most 80), in stages of 3, 6 and 12 layers with 0.4, 0.8 and 1.8 M steps. The paper
    does not print the optimizer. The recipe uses the one that the same group prints for
    CMLM: LAMB 1e-3 with 10k steps of warm-up, in each stage; weight decay 0.01, epsilon
    1e-6 and clipping to norm 1 are BERT's.

    Our choice, too: half of the batch and half of the loss for each of the two
    objectives, and languages drawn by size to the power of 0.3. The paper cuts bitext
    to 100 M pairs a language (section 3.1); so configs/labse_pretrain.flags draws
    bitext by size (`task.tlm.train_data.sampling_exponent=1`).
    """
    task = _task(8192 // 2, 512)
    task.mlm.weight = task.tlm.weight = 1.0
    for objective in (task.mlm, task.tlm):
        objective.masking = _masking(0.2, at_most=80)
    task.mlm.passages = True
    return ExperimentConfig(
        model=_labse_model(),
        vocabulary=_multilingual_vocabulary(),
        task=task,
        trainer=TrainerConfig(
            train_steps=1_800_000,
            stacking_steps=(400_000, 800_000),
            optimizer=_cmlm_optimizer(),
        ),
    )


@_recipe("labse/dual_encoder")
def labse_dual_encoder() -> ExperimentConfig:
    """LaBSE's dual encoder (the same paper, sections 2.1, 3.2 and 3.3).

    Cosines of [CLS], margin 0.3, batch 4096, 128 tokens, AdamW 1e-3 with linear decay,
    50k steps. The paper prints no warm-up, so the recipe does without, and no scale, so
    it takes Model Garden's 100. Weight decay 0.01, epsilon 1e-6 and clipping to norm 1
    are BERT's. Languages are drawn by size to the power of 0.3, our choice; for bitext
    that is cut to 100 M pairs a language (section 3.1), configs/labse.flags draws by
    size (`task.bitext.train_data.sampling_exponent=1`).
    """
    task = _task(4096, 128)
    task.bitext.weight = 1.0
    task.bitext.margin = 0.3
    task.bitext.similarity, task.bitext.scale = "cosine", 100.0
    return ExperimentConfig(
        model=_labse_model(),
        vocabulary=_multilingual_vocabulary(),
        task=task,
        trainer=TrainerConfig(
            train_steps=50_000,
            validation_interval=1_000,
            checkpoint_interval=1_000,
            best_checkpoint_metric="bitext/loss",
            optimizer=OptimizerConfig(
                type="adamw", learning_rate=1e-3, decay="linear", warmup_steps=0
            ),
        ),
    )


# --------------------------------------------------------------- Mirror-BERT


def _mirror(
    scale: float, seq_length: int, span: int, pooling: str, epochs: int
) -> ExperimentConfig:
    """Builds the settings that sentences and words share.

    The paper prints the rate, the batch and dropout (section 3, appendices D and J).
    The released code adds: a constant rate, no clipping, and a weight decay of 0.01 on
    all weights. No string is held out.
    """
    task = _task(200, seq_length)
    task.mirror.weight = 1.0
    task.mirror.scale = scale
    task.mirror.span.length = span
    task.mirror.train_data.hold_out_fraction = 0.0
    return ExperimentConfig(
        model=EncoderConfig(
            pooling=pooling, dropout_rate=0.1, attention_dropout_rate=0.1
        ),
        task=task,
        trainer=TrainerConfig(
            epochs=epochs,
            train_steps=epochs * 50,  # of 10,000 strings
            summary_interval=10,
            validation_interval=epochs * 50,
            checkpoint_interval=50,
            optimizer=OptimizerConfig(
                type="adamw",
                learning_rate=2e-5,
                decay="constant",
                warmup_steps=0,
                epsilon=1e-8,
                weight_decay_rate=0.01,
                decay_norms_and_biases=True,
                clip_norm=0.0,
            ),
        ),
    )


@_recipe("mirror/sentence")
def mirror_sentence() -> ExperimentConfig:
    """Mirror-BERT for sentences (https://arxiv.org/abs/2104.08027, section 3).

    10,000 strings once, batch 200, 50 tokens, a span of 5 characters masked, dropout
    0.1, temperature 0.04, AdamW 2e-5. Mean pooling, BERT's for sentences (appendix B).
    """
    return _mirror(scale=1 / 0.04, seq_length=50, span=5, pooling="mean", epochs=1)


@_recipe("mirror/word")
def mirror_word() -> ExperimentConfig:
    """Mirror-BERT for words (the same paper and section).

    10,000 strings twice, 25 tokens, no span masked, temperature 0.2, [CLS] (appendix
    B); the rest as for sentences.
    """
    return _mirror(scale=1 / 0.2, seq_length=25, span=0, pooling="cls", epochs=2)


# ----------------------------------------------------------------------- ULR


@_recipe("ulr/misad")
def ulr_misad() -> ExperimentConfig:
    """Universal language representation (https://arxiv.org/abs/2105.14478).

    Sections 3.2 and 4: MiSAD and masked LM at equal weights on single sentences, masks
    as in BERT (15 %), batch 64, 128 tokens, dropout 0.1, BERT's pooled [CLS], 5e-5 with
    warm-up over the first 10 % of the steps, one pass over 10 M sentences, Adam. The
    paper does not print a weight decay; the released code does not decay weights. The
    decay of the rate is our choice. Section 4 names mean pooling as "the default
    setting"; here that is the pooling of evaluation: evaluate with --pooling=mean.
    """
    steps = 10_000_000 // 64
    task = _task(64, 128)
    task.misad.weight = 1.0
    task.misad.masking = _masking(0.15)
    # Each sentence is marked with the n-grams of its document.
    task.misad.candidates = "marks"
    return ExperimentConfig(
        model=EncoderConfig(
            num_views=1,
            pooling="pooler",
            dropout_rate=0.1,
            attention_dropout_rate=0.1,
        ),
        task=task,
        trainer=TrainerConfig(
            train_steps=steps,
            optimizer=OptimizerConfig(
                type="adamw",
                learning_rate=5e-5,
                weight_decay_rate=0.0,
                decay="linear",
                warmup_steps=steps // 10,
            ),
        ),
    )


# -------------------------------------------------------------- Distillation


@_recipe("distill/text")
def distill_text() -> ExperimentConfig:
    """A student learns a teacher's vectors of plain text. All values are our choice.

    Two layers of 256, the first term of the loss alone, word embeddings from the
    teacher, batch 256, 64 tokens, AdamW 1e-3 with linear decay.
    """
    task = _task(256, 64)
    task.distill.weight = 1.0
    task.distill.init_words = True
    return ExperimentConfig(
        model=EncoderConfig(
            num_layers=2,
            hidden_size=256,
            num_attention_heads=4,
            intermediate_size=1024,
            # A position for each token and one for the condition of CMLM.
            max_position_embeddings=65,
            num_views=1,
            dropout_rate=0.0,
            attention_dropout_rate=0.0,
        ),
        task=task,
        trainer=TrainerConfig(
            train_steps=6_000,
            validation_interval=1_000,
            checkpoint_interval=1_000,
            optimizer=OptimizerConfig(
                type="adamw", learning_rate=1e-3, decay="linear", warmup_steps=200
            ),
        ),
    )


@_recipe("distill/bitext")
def distill_bitext() -> ExperimentConfig:
    """Makes a monolingual encoder multilingual (https://arxiv.org/abs/2004.09813).

    The paper (section 3.1) trains XLM-R for at most 20 epochs at batch 64, 2e-5,
    warm-up over 10,000 steps, epsilon 1e-6, and 128 tokens. Here the start is
    --init_checkpoint, and AdamW with linear decay our choice.
    """
    task = _task(64, 128)
    task.distill_bitext.weight = 1.0
    return ExperimentConfig(
        model=EncoderConfig(preset="base", num_views=1, max_position_embeddings=513),
        vocabulary=_multilingual_vocabulary(),
        task=task,
        trainer=TrainerConfig(
            train_steps=1_000_000,
            optimizer=OptimizerConfig(
                type="adamw",
                learning_rate=2e-5,
                decay="linear",
                warmup_steps=10_000,
                epsilon=1e-6,
            ),
        ),
    )


# ------------------------------------------------------------- One's own labels


def _tuning(name: str, batch: int) -> ExperimentConfig:
    """One pass of a pretrained encoder over the data of one objective, at 2e-5."""
    task = _task(batch, 128)
    getattr(task, name).weight = 1.0
    return ExperimentConfig(
        model=EncoderConfig(num_views=1, pooling=SOURCE_POOLING),
        task=task,
        trainer=TrainerConfig(
            epochs=1,
            train_steps=1_000,
            summary_interval=10,
            validation_interval=200,
            checkpoint_interval=200,
            optimizer=OptimizerConfig(
                type="adamw", learning_rate=2e-5, decay="linear", warmup_steps=0
            ),
        ),
    )


@_recipe("adapt/pairs")
def adapt_pairs() -> ExperimentConfig:
    """A pretrained encoder learns from queries and passages. All values are our choice.

    One pass, batch 64, 128 tokens, AdamW 2e-5; pooling and shape are the source's.
    """
    return _tuning("pairs", 64)


@_recipe("adapt/scored")
def adapt_scored() -> ExperimentConfig:
    """A pretrained encoder learns from scored pairs. All values are our choice.

    One pass, batch 32, 128 tokens, AdamW 2e-5; pooling and shape are the source's.
    """
    return _tuning("scored", 32)
