"""A sentence is the sum of a part and the rest of it: MiSAD, beside masked words."""

from __future__ import annotations

import dataclasses
import logging

import tensorflow as tf

from cmlm.common import fields
from cmlm.data import languages, masking, ngrams, pipelines, spans, streams
from cmlm.errors import UserError
from cmlm.modeling.model import SentenceModel
from cmlm.objectives import losses
from cmlm.objectives.masked_text import MaskedTextConfig, MaskedTextObjective

CANDIDATES = ("ngrams", "entities", "spans")
CHOICES = ("model", "random")
# Sentences of each language that are looked at for something to take out.
_LOOKED_AT = 8192

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class MisadConfig(MaskedTextConfig):
    """Masked words of a sentence, and vector arithmetic with one n-gram of it.

    The losses are summed, each a mean of its own. A sentence in which no n-gram is
    found has masked words only.

    Attributes:
        form: `paper`, E_w + E_R against E_S; or `released`, the published code's: the
            sum brought to unit length too, and words masked in R as well as in S.
        candidates: what may be taken out: `ngrams` of `ngrams_file`, `entities` of
            `entities_file`, or random `spans` (lengths geometric with p = 0.2, up to 6
            tokens); the last two are the paper's comparisons.
        ngrams_file: from `python -m cmlm.ngrams`, or any lines of n-gram, tab, number.
        entities_file: names, one a line: a gazetteer, or what any tool has found. They
            are tokenised as the text is: with a lower-cased vocabulary in any case.
        choice: which of a sentence's candidates is taken out: the one that the `model`
            predicts worst, or one at `random`.
        max_candidates: candidates of a sentence among which the model chooses, drawn at
            random where there are more. Each costs a forward pass.
    """

    masking: masking.MaskingConfig = dataclasses.field(
        default_factory=lambda: masking.MaskingConfig(rate=0.15)
    )
    form: str = fields.one_of("paper", losses.MISAD_FORMS)
    candidates: str = fields.one_of("ngrams", CANDIDATES)
    ngrams_file: str = ""
    entities_file: str = ""
    choice: str = fields.one_of("model", CHOICES)
    max_candidates: int = fields.ranged(8, at_least=1)

    def check_together(self, prefix: str) -> None:
        super().check_together(prefix)
        if self.masking.whole_word:
            raise fields.refused(f"{prefix}masking.whole_word", True, "False")


class MisadObjective(MaskedTextObjective):
    """Li & Zhao, 2021, https://arxiv.org/abs/2105.14478, sections 3.2 and 3.3.

    S is the sentence, words masked but none of w; w the n-gram; R the sentence without
    it. All are read by the same encoder, and E are its vectors at unit length.

    A batch is that of `pipelines.sentences_with_spans`.

    Metrics: `loss` (nats a masked word of S) and `accuracy`; with form `released`
    `rest_loss`, the same of R; `misad_loss`, a mean over sentences with an n-gram, and
    `cosine` of E_w + E_R and E_S; `found`, the share of these sentences.
    """

    config_class = MisadConfig

    def __init__(self, name: str, config: MisadConfig, model: SentenceModel, **data):
        super().__init__(name, config, model, **data)
        self.masked_lm = model.masked_lm()
        self._is_released = config.form == "released"
        # Here, so that what cannot be used stops the run at its start.
        self._find = self._candidates()
        if self.data is not None:
            self._look_for_candidates(self.data.train)

    def _candidates(self) -> spans.NgramTable | spans.RandomSpans:
        """What finds the parts that may be taken out."""
        config = self.config
        if config.candidates == "spans":
            return spans.RandomSpans(self.tokenizer)
        if config.candidates == "entities":
            if not config.entities_file:
                raise UserError(
                    f"task.{self.name}.entities_file is empty: name a file of names, "
                    "one a line"
                )
            return spans.NgramTable(
                config.entities_file, self.tokenizer, ngrams.read_entities
            )
        if not config.ngrams_file:
            raise UserError(
                f"task.{self.name}.ngrams_file is empty: write one with python -m "
                f"cmlm.ngrams, or set task.{self.name}.candidates=spans"
            )
        return spans.NgramTable(config.ngrams_file, self.tokenizer)

    def _look_for_candidates(self, corpus: languages.Corpus) -> None:
        """Says so where nothing can be taken out of the sentences.

        Raises:
            UserError: that is so for all of the text, not just for its beginning.
        """
        length = self.config.train_data.seq_length
        n_seen, is_all = 0, True
        for paths in corpus.files.values():
            texts = streams.sentences(paths).take(_LOOKED_AT + 1).batch(1024)
            n_language = 0
            for text in texts:
                ids = self.tokenizer.encode(text, length).to_tensor(
                    self.tokenizer.pad_id
                )
                if tf.reduce_any(self._find.possible(ids)):
                    return
                n_language += int(tf.size(text))
            n_seen += n_language
            is_all &= n_language <= _LOOKED_AT
        named = {
            "ngrams": f"an n-gram of {self.config.ngrams_file} and another word",
            "entities": f"a name of {self.config.entities_file} and another word",
            "spans": "two tokens that the vocabulary knows",
        }
        message = (
            f"task.{self.name}: none of the {'' if is_all else 'first '}{n_seen:,} "
            f"sentences has {named[self.config.candidates]}"
        )
        if is_all:
            raise UserError(f"{message}: nothing can be taken out")
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
        return pipelines.sentences_with_spans(
            feed,
            config.masking,
            self._find,
            n_spans=config.max_candidates if config.choice == "model" else 1,
            draws=2 if self._is_released else 1,
        )

    def normalizer(self, batch):
        masked = super().normalizer(batch)
        found = tf.reduce_sum(tf.cast(batch["span_mask"][:, 0], tf.float32))
        return tf.stack([masked] * (2 if self._is_released else 1) + [found])

    # ------------------------------------------------------------ which n-gram

    def candidate_scores(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """Mean probability of the words of each candidate, it alone being masked.

            score(w) = 1/|w| sum_i P(w_i | S without w)                 (section 3.3)

        Args:
            batch: see the class.

        Returns:
            float32 [batch, candidates]; 2 where there is no candidate.
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
        outputs = self.model.encoder(
            {"input_word_ids": masked, "input_mask": mask}, training=False
        )
        positions = start + tf.range(spans.MAX_TOKENS)
        used = tf.cast(positions < end, tf.float32)
        positions = tf.minimum(positions, tf.shape(ids)[1] - 1)
        logits = self.masked_lm(outputs["sequence_output"], positions)
        right = tf.gather(words, positions, batch_dims=1)
        negative = tf.nn.sparse_softmax_cross_entropy_with_logits(
            right, tf.cast(logits, tf.float32)
        )
        scores = tf.math.divide_no_nan(
            tf.reduce_sum(tf.exp(-negative) * used, axis=1), tf.reduce_sum(used, axis=1)
        )
        scores = tf.reshape(scores, [n_rows, n_spans])
        return tf.where(batch["span_mask"] > 0, scores, 2.0)

    def _choose(self, batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Start and end of w, int32 [batch, 1]; equal where there is none."""
        if self.config.choice == "random":
            return batch["span_start"][:, :1], batch["span_end"][:, :1]
        scores = tf.stop_gradient(self.candidate_scores(batch))
        best = tf.argmin(scores, axis=1, output_type=tf.int32)[:, tf.newaxis]
        return (
            tf.gather(batch["span_start"], best, batch_dims=1),
            tf.gather(batch["span_end"], best, batch_dims=1),
        )

    # -------------------------------------------------------------- S, w and R

    def split(
        self, batch: dict[str, tf.Tensor], start: tf.Tensor, end: tf.Tensor
    ) -> dict[str, dict[str, tf.Tensor]]:
        """The three inputs of the encoder.

        Args:
            batch: see the class.
            start, end: int32 [batch, 1], of w.

        Returns:
            `sentence`, `ngram` and `rest`, each `input_word_ids` and `input_mask`;
            `sentence` (and `rest` with form `released`) also `masked_lm_positions`
            and `masked_lm_ids` [batch, predictions].
        """
        sentence = self._masked(batch, 0, start, end)
        rest = {"input_word_ids": batch["input_word_ids"]}
        if self._is_released:
            rest = self._masked(batch, 1, start, end)
            # Where a position behind w is once w is gone.
            gone = tf.where(rest["masked_lm_positions"] >= end, end - start, 0)
            rest["masked_lm_positions"] -= gone
        column = tf.range(tf.shape(batch["input_word_ids"])[1])[tf.newaxis]
        source = tf.where(column < start, column, column + end - start)
        rest |= self._take(batch, rest["input_word_ids"], source)

        column = tf.range(spans.MAX_TOKENS + 2)[tf.newaxis]
        tokenizer, length = self.tokenizer, end - start
        place = tf.minimum(start + column - 1, tf.shape(batch["input_word_ids"])[1] - 1)
        words = tf.gather(batch["input_word_ids"], tf.maximum(place, 0), batch_dims=1)
        words = tf.where(column <= length, words, tokenizer.pad_id)
        words = tf.where(column == 0, tokenizer.cls_id, words)
        words = tf.where(column == length + 1, tokenizer.sep_id, words)
        ngram = {
            "input_word_ids": words,
            "input_mask": tf.cast(column <= length + 1, tf.int32),
        }
        return {"sentence": sentence, "ngram": ngram, "rest": rest}

    def _take(self, batch, ids, source):
        """Tokens from other places of their row; padding where there is none."""
        length = tf.shape(ids)[1]
        place = tf.minimum(source, length - 1)
        mask = tf.gather(batch["input_mask"], place, batch_dims=1)
        mask *= tf.cast(source < length, tf.int32)
        ids = tf.gather(ids, place, batch_dims=1)
        return {
            "input_word_ids": tf.where(mask > 0, ids, self.tokenizer.pad_id),
            "input_mask": mask,
        }

    def _masked(self, batch, draw, start, end):
        """The sentence with the first tokens of a drawn order masked, none of w."""
        ids = batch["input_word_ids"]
        order = batch["input_order"][:, draw]
        n_predictions = tf.shape(batch["masked_lm_weights"])[1]
        # Stable: what is not in w keeps its order.
        in_ngram = (order >= start) & (order < end)
        kept = tf.argsort(tf.cast(in_ngram, tf.int32), axis=1, stable=True)
        order = tf.gather(order, kept, batch_dims=1)
        short = tf.maximum(n_predictions - tf.shape(order)[1], 0)
        positions = tf.pad(order, [[0, 0], [0, short]])[:, :n_predictions]
        used = batch["masked_lm_weights"] > 0
        positions = tf.where(used, positions, 0)
        chosen = tf.reduce_any(
            (positions[:, :, tf.newaxis] == tf.range(tf.shape(ids)[1]))
            & used[:, :, tf.newaxis],
            axis=1,
        )
        return {
            "input_word_ids": tf.where(
                chosen, batch["input_replacements"][:, draw], ids
            ),
            "input_mask": batch["input_mask"],
            "masked_lm_positions": positions,
            "masked_lm_ids": tf.gather(ids, positions, batch_dims=1),
        }

    # ------------------------------------------------------------------- loss

    def _losses(self, batch, training):
        """The summed losses, float32 [terms], and all metrics."""
        parts = self.split(batch, *self._choose(batch))
        vectors, terms, metrics = {}, [], {}
        for name, inputs in parts.items():
            outputs = self.model.encoder(
                {key: inputs[key] for key in ("input_word_ids", "input_mask")},
                training=training,
            )
            vectors[name] = tf.cast(outputs["default"], tf.float32)
            if "masked_lm_ids" not in inputs:
                continue
            logits = self.masked_lm(
                outputs["sequence_output"], inputs["masked_lm_positions"]
            )
            labels = {
                "masked_lm_ids": inputs["masked_lm_ids"],
                "masked_lm_weights": batch["masked_lm_weights"],
            }
            loss, loss_metric, accuracy = self.masked_metrics(labels, logits)
            terms.append(loss)
            if name == "sentence":
                metrics |= {"loss": loss_metric, "accuracy": accuracy}
            else:
                metrics["rest_loss"] = loss_metric
        has_ngram = tf.cast(batch["span_mask"][:, 0], tf.float32)
        distance, cosine = losses.misad(
            vectors["ngram"], vectors["rest"], vectors["sentence"], self.config.form
        )
        found, n_rows = (
            tf.reduce_sum(has_ngram),
            tf.cast(tf.size(has_ngram), tf.float32),
        )
        distance = tf.reduce_sum(distance * has_ngram)
        metrics |= {
            "misad_loss": (distance, found),
            "cosine": (tf.reduce_sum(cosine * has_ngram), found),
            "found": (found, n_rows),
        }
        return tf.stack([*terms, distance]), metrics

    def loss(self, batch):
        return self._losses(batch, training=True)

    def evaluate(self, batch):
        return self._losses(batch, training=False)[1]
