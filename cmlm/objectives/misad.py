"""MiSAD: the vectors of an n-gram and the rest add up to the sentence's vector."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Collection

import tensorflow as tf

from cmlm.common import fields
from cmlm.data import (
    masked_pipelines,
    masking,
    ngram_files,
    ngram_table,
    removable_spans,
    streams,
)
from cmlm.data.corpus import Corpus
from cmlm.errors import UserError, naming
from cmlm.modeling import masked_tokens
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import losses, misad_inputs
from cmlm.objectives.masked_text import MaskedTextConfig, MaskedTextObjective
from cmlm.tokenization import word_pieces

CANDIDATES = ("marks", "ngrams", "entities", "spans")
CHOICES = ("model", "random")
# Sentences of each language that the start of a run searches for candidates.
_LOOKED_AT = 8192

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class MisadConfig(MaskedTextConfig):
    """Masked LM on a sentence, and vector arithmetic with one of its n-grams.

    loss = misad_weight L_MiSAD + masked_lm_weight L_MLM; each L is a separate mean. A
    sentence without a candidate has only the masked-LM loss.

    Attributes:
        form: `paper` compares the sum of the vectors of n-gram and rest with the vector
            of the sentence; `released` (the authors' code) also scales the sum to
            length 1, and also masks words of the rest.
        misad_weight: the factor of the MiSAD loss; the paper's is 1.
        masked_lm_weight: the factor of the masked-LM loss; the paper's is 1.
        candidates: the spans that may be removed. `marks`: the n-grams marked in the
            text (`cmlm.ngrams --marked_output`), as in the paper; `ngrams`: the n-grams
            of `ngrams_file`, in any document; `entities`: the names of `entities_file`;
            `spans`: random spans (lengths geometric with p = 0.2, up to 6 tokens).
            `entities` and `spans` are the paper's comparisons (section 7.2).
        ngrams_file: a file of `python -m cmlm.ngrams`, or lines of n-gram, tab, number.
            With `marks`, its n-grams are candidates too.
        entities_file: a file with one name per line, from a gazetteer or any tool,
            tokenised like the text. With `marks` or `ngrams`, the names are candidates
            too: the paper adds the entities of Wikipedia's links to its n-grams
            (section 4).
        choice: the candidate to remove: the candidate that the `model` predicts worst,
            or a `random` candidate (the released code).
        max_candidates: the most candidates that the model chooses among. If a sentence
            has more, they are drawn at random. Each candidate costs a forward pass.
        new_masked_lm: whether to allow a warm start without a masked-LM head. With
            `choice=model` a new head would choose the n-grams.
    """

    masking: masking.MaskingConfig = dataclasses.field(
        default_factory=lambda: masking.MaskingConfig(rate=0.15)
    )
    form: str = fields.one_of("paper", losses.MISAD_FORMS)
    misad_weight: float = fields.ranged(1.0, at_least=0)
    masked_lm_weight: float = fields.ranged(1.0, at_least=0)
    candidates: str = fields.one_of("ngrams", CANDIDATES)
    ngrams_file: str = ""
    entities_file: str = ""
    choice: str = fields.one_of("model", CHOICES)
    max_candidates: int = fields.ranged(8, at_least=1)
    new_masked_lm: bool = False

    @property
    def reads_marks(self) -> bool:
        return self.candidates == "marks"

    def needs_this_machine(self):
        if self.candidates == "spans":
            return None
        return "candidates", self.candidates, "spans"

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.masking.whole_word:
            raise fields.refused(f"{prefix}masking.whole_word", True, "False")


class MisadObjective(MaskedTextObjective):
    """Li & Zhao, 2021, https://arxiv.org/abs/2105.14478, sections 3.2 and 3.3.

    w is the n-gram, S the sentence with masked words outside w, and R the sentence
    without w. One encoder reads all three, and E is its vector at unit length.

    `masked_pipelines.sentences_with_spans` describes the batches.

    Metrics: `loss` (nats per masked word of S) and `accuracy`; with form `released`
    also `rest_loss`, the loss of R; `misad_loss` (mean over the sentences with an
    n-gram), `cosine` of E_w + E_R and E_S, and `found`, the share of sentences with an
    n-gram.
    """

    config_class = MisadConfig

    def __init__(self, name: str, config: MisadConfig, model: SentenceModel, **data):
        super().__init__(name, config, model, **data)
        self.masked_lm = model.masked_lm()
        self._is_released = config.form == "released"
        # The files are read now, so that an unusable file stops the run at its start.
        self._finder = self._open_finder()
        self._look_for_candidates(self.data.train)

    def _open_finder(self) -> removable_spans.SpanFinder:
        """Returns what finds the spans that may be removed."""
        config, prefix = self.config, f"task.{self.name}."
        if config.candidates == "spans":
            return removable_spans.RandomSpans(self.tokenizer)
        if not isinstance(self.tokenizer, word_pieces.WordPiece):
            raise UserError(
                f"{prefix}candidates is {config.candidates}, which needs a WordPiece "
                f"vocabulary, and {self.tokenizer.vocab_file} is another one; allowed: "
                "spans"
            )
        if config.candidates == "entities" and not config.entities_file:
            raise fields.refused(
                f"{prefix}entities_file", "", "a file of names, one a line"
            )
        if config.candidates == "ngrams" and not config.ngrams_file:
            raise fields.refused(
                f"{prefix}ngrams_file",
                "",
                "a file that python -m cmlm.ngrams writes; or "
                f"{prefix}candidates=marks, entities or spans",
            )
        lists = {}
        if config.candidates in ("marks", "ngrams") and config.ngrams_file:
            with naming(f"{prefix}ngrams_file"):
                lists[config.ngrams_file] = ngram_files.read(config.ngrams_file)
        if config.entities_file:
            with naming(f"{prefix}entities_file"):
                names = ngram_files.read_entities(config.entities_file)
            lists[config.entities_file] = names
        return ngram_table.NgramFinder(
            self.tokenizer, lists, marks=config.candidates == "marks"
        )

    def check_start(self, source: str, parts: Collection[str]) -> None:
        config = self.config
        if (
            config.choice == "model"
            and "masked_lm" not in parts
            and not config.new_masked_lm
        ):
            raise UserError(
                f"{source} has no masked-LM head, which chooses the n-grams "
                f"(task.{self.name}.choice=model): start from a model with one, set "
                f"task.{self.name}.choice=random, or allow a new head with "
                f"task.{self.name}.new_masked_lm=true"
            )

    def _look_for_candidates(self, corpus: Corpus) -> None:
        """Warns if the first sentences have no candidate.

        Raises:
            UserError: no sentence of the whole text has a candidate.
        """
        length = self.config.train_data.seq_length
        n_seen, is_all = 0, True
        for paths in corpus.files.values():
            texts = (
                streams.sentences(streams.Portion(paths))
                .take(_LOOKED_AT + 1)
                .batch(1024)
            )
            n_language = 0
            for text in texts:
                sentence, marks = ngram_table.split_marks(text)
                ids = self.tokenizer.encode(sentence, length).to_tensor(
                    self.tokenizer.pad_id
                )
                if tf.reduce_any(self._finder.possible(ids, marks)):
                    return
                n_language += int(tf.size(text))
            n_seen += n_language
            is_all &= n_language <= _LOOKED_AT
        named = {
            "marks": "a marked n-gram and another word (python -m cmlm.ngrams "
            "--marked_output marks them)",
            "ngrams": f"an n-gram of {self.config.ngrams_file} and another word",
            "entities": f"a name of {self.config.entities_file} and another word",
            "spans": "two tokens that the vocabulary knows",
        }
        message = (
            f"task.{self.name}: none of the {'' if is_all else 'first '}{n_seen:,} "
            f"sentences has {named[self.config.candidates]}"
        )
        if is_all:
            raise UserError(f"{message}, so MiSAD can remove nothing")
        logger.warning("%s", message)

    @property
    def train_metrics(self) -> tuple[str, ...]:
        rest = ("rest_loss",) if self._is_released else ()
        return ("loss", "accuracy", *rest, "misad_loss", "cosine", "found")

    @property
    def trained_parts(self) -> list[str]:
        return ["encoder", "masked_lm"]

    def make_dataset(self, feed):
        config = self.config
        return masked_pipelines.sentences_with_spans(
            feed,
            config.masking,
            self._finder,
            n_spans=config.max_candidates if config.choice == "model" else 1,
            draws=2 if self._is_released else 1,
        )

    def divisor(self, batch):
        masked = super().divisor(batch)
        found = tf.reduce_sum(tf.cast(batch["span_mask"][:, 0], tf.float32))
        return tf.stack([masked] * (2 if self._is_released else 1) + [found])

    # ------------------------------------------------------------ which n-gram

    def candidate_scores(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """The mean probability of each candidate's words when the candidate is masked.

            score(w) = 1/|w| sum_i P(w_i | S without w)                 (section 3.3)

        Args:
            batch: see `masked_pipelines.sentences_with_spans`.

        Returns:
            float32 [batch, candidates]; 2 in columns without a candidate.
        """
        ids = batch["input_word_ids"]
        n_rows, n_spans = tf.unstack(tf.shape(batch["span_start"]))
        start = tf.reshape(batch["span_start"], [-1, 1])
        end = tf.reshape(batch["span_end"], [-1, 1])
        words = tf.repeat(ids, n_spans, axis=0)
        column = tf.range(tf.shape(ids)[1])
        inside = (column >= start) & (column < end)
        masked = tf.where(inside, self.tokenizer.mask_id, words)
        mask = tf.repeat(batch["input_mask"], n_spans, axis=0)
        positions = start + tf.range(removable_spans.MAX_TOKENS)
        used = tf.cast(positions < end, tf.float32)
        positions = tf.minimum(positions, tf.shape(ids)[1] - 1)
        tokens = masked_tokens.indices(positions)
        outputs = self.model.encoder.read(
            {"input_word_ids": masked, "input_mask": mask}, tokens, training=False
        )
        logits = self.masked_lm(outputs)
        negative = tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.gather_nd(words, tokens), tf.cast(logits, tf.float32)
        )
        negative = tf.reshape(negative, tf.shape(positions))
        scores = tf.math.divide_no_nan(
            tf.reduce_sum(tf.exp(-negative) * used, axis=1), tf.reduce_sum(used, axis=1)
        )
        scores = tf.reshape(scores, [n_rows, n_spans])
        return tf.where(batch["span_mask"] > 0, scores, 2.0)

    def choose(self, batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Chooses w: start and end, int32 [batch, 1]; equal without a candidate."""
        if self.config.choice == "random":
            return batch["span_start"][:, :1], batch["span_end"][:, :1]
        scores = tf.stop_gradient(self.candidate_scores(batch))
        best = tf.argmin(scores, axis=1, output_type=tf.int32)[:, tf.newaxis]
        return (
            tf.gather(batch["span_start"], best, batch_dims=1),
            tf.gather(batch["span_end"], best, batch_dims=1),
        )

    # ------------------------------------------------------------------- loss

    def compute(self, batch, training):
        """Returns the weighted summed losses, float32 [terms], and all metrics."""
        parts = misad_inputs.split(
            batch, *self.choose(batch), self.tokenizer, self._is_released
        )
        vectors, terms, metrics = {}, [], {}
        for name, inputs in parts.items():
            outputs = self.model.encoder(
                {key: inputs[key] for key in ("input_word_ids", "input_mask")},
                training=training,
            )
            sequence = outputs["sequence_output"]
            whole = self.model.encoder.vectors_of(sequence, inputs["input_mask"])
            vectors[name] = tf.cast(whole, tf.float32)
            if "masked_lm_ids" not in inputs:
                continue
            masked = masked_tokens.of_batch(batch | inputs)
            logits = self.masked_lm(tf.gather_nd(sequence, masked.tokens))
            found = self.masked_metrics(masked, logits)
            terms.append(found["loss"][0])
            metrics |= found if name == "sentence" else {"rest_loss": found["loss"]}
        has_ngram = tf.cast(batch["span_mask"][:, 0], tf.float32)
        distance, cosine = losses.misad(
            vectors["ngram"], vectors["rest"], vectors["sentence"], self.config.form
        )
        count = tf.reduce_sum(has_ngram)
        distance = tf.reduce_sum(distance * has_ngram)
        metrics |= {
            "misad_loss": (distance, count),
            "cosine": (tf.reduce_sum(cosine * has_ngram), count),
            "found": (count, tf.cast(tf.size(has_ngram), tf.float32)),
        }
        terms = [self.config.masked_lm_weight * term for term in terms]
        return tf.stack([*terms, self.config.misad_weight * distance]), metrics
