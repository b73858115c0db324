"""Encoding sentences with a trained encoder, from wherever it lies.

encoder = encoding.load("OUT")  # an export, or a model_dir
vectors = encoder.encode(["a sentence", "another"])  # float32 [2, dim]
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
import tqdm

from cmlm import external_encoders, model_dir, pretrained
from cmlm.data.tokenization import Tokenizer
from cmlm.errors import UserError
from cmlm.modeling import inference
from cmlm.modeling.model import SentenceModel
from cmlm.pretrained import DEFAULT_SEQ_LENGTH

# Where an export says what it is; servers ignore this folder.
PROVENANCE = os.path.join("assets.extra", "export.json")
# Tokens of a batch, padding included. On a CPU 1024 to 4096 are equally fast, more is
# slower, and each batch costs as much as 25 to 125 tokens more. So sentences of nearly
# one length share a batch up to MOST_TOKENS, others up to LEAST_TOKENS only: of 32
# sentences, or 100, padding would cost more than batches do.
MOST_TOKENS, LEAST_TOKENS = 2048, 512
# Tenths of the longest sentence's length that are nearly as long.
NEARLY = 8
_LENGTHS_AT_ONCE = 4096


class SentenceGraph:
    """Strings to vectors inside TensorFlow: what is exported, and what runs here.

    Args:
        tokenizer: of the encoder.
        encoder: a dict of int32 [batch, seq] `input_word_ids` and `input_mask` to a
            dict with `default`, float [batch, dim].
        seq_length: longest sentence in tokens, [CLS] and [SEP] included; a longer one
            is cut.

    Attributes:
        vectors: tf.function, string [n] to float32 [n, dim].
        token_vectors: tf.function, `input_word_ids`, `input_mask` and `input_type_ids`,
            each int32 [n, seq], to float32 [n, dim].
        lengths: tf.function, string [n] to int32 [n], tokens before any cut, [CLS] and
            [SEP] included.
    """

    TEXT = tf.TensorSpec([None], tf.string, name="text")
    TOKENS = tuple(
        tf.TensorSpec([None, None], tf.int32, name=name)
        for name in ("input_word_ids", "input_mask", "input_type_ids")
    )

    def __init__(self, tokenizer: Tokenizer, encoder: Callable, seq_length: int):
        self.tokenizer = tokenizer
        self._encoder = encoder
        self.seq_length = seq_length
        signature = {"input_signature": [self.TEXT], "autograph": False}
        self.vectors = tf.function(self._vectors, **signature)
        self.lengths = tf.function(self._lengths, **signature)
        # One function for both forms: an export holds its graph once.
        self.token_vectors = tf.function(
            self._token_vectors,
            input_signature=self.TOKENS,
            autograph=False,
            # Inlined into a loop, layers would lose most of their fusions.
            experimental_attributes={"_noinline": True},
        )

    def _vectors(self, text: tf.Tensor) -> tf.Tensor:
        tokens = self.tokenizer.encode(text, self.seq_length)
        lengths = tokens.row_lengths()
        # Only as wide as the longest sentence; but the encoder looks at position 0
        # even when there is no sentence at all.
        width = tf.reduce_max(tf.concat([lengths, [1]], axis=0))
        ids = tokens.to_tensor(self.tokenizer.pad_id, shape=tf.stack([-1, width]))
        mask = tf.sequence_mask(lengths, width, dtype=tf.int32)
        return self.token_vectors(ids, mask, tf.zeros_like(ids))

    def _token_vectors(self, *tensors: tf.Tensor) -> tf.Tensor:
        names = [spec.name for spec in self.TOKENS]
        outputs = self._encoder(dict(zip(names, tensors, strict=True)))
        return tf.cast(outputs["default"], tf.float32)

    def _lengths(self, text: tf.Tensor) -> tf.Tensor:
        tokens = self.tokenizer.tokenize(text)
        return tf.cast(tokens.row_lengths(), tf.int32) + 2


class BagOfWords:
    """The mean of a sentence's word embeddings, without any layer above them.

    The baseline that tells what an encoder adds to its own embedding table. [CLS]
    and [SEP] do not count; a sentence without words is all zeros.

    Args:
        table: float [vocab_size, dim].
        tokenizer: of the table.
    """

    def __init__(self, table: tf.Variable, tokenizer: Tokenizer):
        self._table = table
        self._added = (tokenizer.cls_id, tokenizer.sep_id)

    def __call__(self, inputs: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        ids, mask = inputs["input_word_ids"], inputs["input_mask"]
        for added in self._added:
            mask *= tf.cast(ids != added, mask.dtype)
        weights = tf.cast(mask, tf.float32)[:, :, tf.newaxis]
        words = tf.cast(tf.gather(self._table, ids), tf.float32)
        total = tf.reduce_sum(words * weights, axis=1)
        count = tf.reduce_sum(weights, axis=1)
        return {"default": tf.math.divide_no_nan(total, count)}


class Encoder:
    """Sentences in, vectors out; made by `load`.

    Args:
        vectors: string [n] to float32 [n, dim].
        lengths: string [n] to int32 [n], tokens before any cut.
        dim: width of a vector.
        seq_length: where sentences are cut, in tokens.
        info: what the encoder is, for reports: checkpoint, pooling and so on.
    """

    def __init__(
        self,
        vectors: Callable[[tf.Tensor], tf.Tensor],
        lengths: Callable[[tf.Tensor], tf.Tensor],
        dim: int,
        seq_length: int,
        info: dict,
    ):
        self._vectors = vectors
        self._lengths = lengths
        self.dim = dim
        self.seq_length = seq_length
        self.info = info

    def encode(
        self,
        sentences: Sequence[str],
        normalize: bool = False,
        progress: bool | None = None,
    ) -> np.ndarray:
        """Encodes sentences.

        Each distinct sentence is encoded once, in a batch of its like in length. A
        vector does not depend on the other sentences.

        Args:
            sentences: any number of them; "" is a sentence too.
            normalize: scale every vector to length 1.
            progress: show a bar on stderr; by default only for long lists.

        Returns:
            float32 [len(sentences), dim], in the order of `sentences`.

        Raises:
            TypeError: `sentences` is not a list of str.
        """
        _check_sentences(sentences)
        distinct: dict[str, int] = {}
        rows = [distinct.setdefault(text, len(distinct)) for text in sentences]
        texts = _to_bytes(distinct)
        lengths = np.minimum(self._count(texts), self.seq_length)
        vectors = np.empty([len(texts), self.dim], np.float32)
        if progress is None:
            progress = lengths.sum() > 50 * MOST_TOKENS
        with progress_bar(len(texts), disable=not progress) as bar:
            for batch in length_batches(lengths):
                text = tf.constant([texts[row] for row in batch])
                vectors[batch] = self._vectors(text).numpy()
                bar.update(len(batch))
        if normalize:
            norms = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors /= np.maximum(norms, np.finfo(np.float32).tiny)
        return vectors if len(distinct) == len(rows) else vectors[rows]

    def lengths(self, sentences: Sequence[str]) -> np.ndarray:
        """Tokens of each sentence before any cut, [CLS] and [SEP] included.

        Returns:
            int32 [len(sentences)]; what exceeds `seq_length` is cut by `encode`.
        """
        _check_sentences(sentences)
        return self._count(_to_bytes(sentences))

    def _count(self, texts: list[bytes]) -> np.ndarray:
        counts = [
            self._lengths(tf.constant(texts[start : start + _LENGTHS_AT_ONCE])).numpy()
            for start in range(0, len(texts), _LENGTHS_AT_ONCE)
        ]
        return np.concatenate([np.zeros(0, np.int32), *counts])


def length_batches(
    lengths: np.ndarray, most: int = MOST_TOKENS, least: int = LEAST_TOKENS
) -> Iterator[np.ndarray]:
    """Groups rows of like length into batches.

    Args:
        lengths: int [n], in tokens.
        most: tokens of a batch, padding included; a longer row is a batch alone.
        least: tokens up to which rows share a batch, however they differ.

    Yields:
        Indices into `lengths`; every row once, the longest first, so that what does not
        fit into memory fails at once and the time to go is not underestimated.
    """
    order = np.argsort(-lengths, kind="stable")
    ascending = -lengths[order]
    start = 0
    while start < len(order):
        longest = max(-int(ascending[start]), 1)
        near = np.searchsorted(ascending, -NEARLY * longest / 10, "right") - start
        size = max(min(near, most // longest), least // longest, 1)
        yield order[start : start + size]
        start += size


def progress_bar(total: int, disable: bool = False) -> tqdm.tqdm:
    """A bar that counts sentences on stderr, and is short in a log file."""
    return tqdm.tqdm(
        total=total,
        unit=" sentences",
        disable=disable,
        leave=False,
        delay=1,
        mininterval=0.1 if sys.stderr.isatty() else 10,
    )


def _check_sentences(sentences: Sequence[str]) -> None:
    if isinstance(sentences, (str, bytes)):
        raise TypeError("encode takes a list of str; this is a single string")
    for row, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            kind = type(sentence).__name__
            raise TypeError(f"encode takes a list of str; item {row} is {kind}")


def _to_bytes(sentences) -> list[bytes]:
    # A lone surrogate has no UTF-8; its bytes are replaced in the graph, like any
    # that are not valid.
    return [text.encode("utf-8", "surrogatepass") for text in sentences]


# ------------------------------------------------------------------- loading


def load(model: str) -> Encoder | external_encoders.ExternalEncoder:
    """Opens an encoder.

    Args:
        model: an export (the folder, its `serving` or a version of that), a model_dir,
            a checkpoint, weights of another program (see `foreign.ACCEPTED`), or a
            model_dir after one of the prefixes `best:` (its best checkpoint),
            `untrained:` (the weights it started from) and `bow:` (the mean of its word
            embeddings). Besides, what `external_encoders` knows: the address of a model
            server, and vectors that were made before.

    Raises:
        UserError: there is no such thing, or it is damaged.
    """
    if model.startswith(external_encoders.PREFIXES):
        return external_encoders.open_encoder(model)
    prefix, _, directory = model.rpartition(":")
    if prefix in ("best", "untrained", "bow"):
        return _from_model_dir(directory, prefix)
    if tf.io.gfile.exists(os.path.join(model, model_dir.PARAMS)):
        return _from_model_dir(model, "latest")
    saved_model = _find_saved_model(model)
    if saved_model:
        return _from_export(saved_model)
    trained = pretrained.load_encoder(model)
    return _from_trained(trained, default_seq_length(trained))


def default_seq_length(trained: model_dir.TrainedEncoder) -> int:
    """Where sentences are cut unless told otherwise, in tokens.

    That is what the source of foreign weights says of its own vectors.
    """
    if trained.checkpoint == trained.config.init_checkpoint:
        return trained.seq_length
    return resolve_seq_length(trained.config.model)


def resolve_seq_length(config, seq_length: int | None = None) -> int:
    """Checks a sentence length against the encoder's position table.

    Args:
        config: EncoderConfig.
        seq_length: in tokens; None means the default.

    Raises:
        UserError: there are not so many positions.
    """
    limit = config.max_position_embeddings - config.num_views
    if seq_length is None:
        return min(DEFAULT_SEQ_LENGTH, limit)
    if not 3 <= seq_length <= limit:
        raise UserError(
            f"--seq_length is {seq_length}; allowed: 3 to {limit}, the encoder's "
            "positions less those of its conditions"
        )
    return seq_length


def fingerprint(trained: model_dir.TrainedEncoder) -> str:
    """What the vectors follow from, in one number: weights, vocabulary, settings.

    The same for a checkpoint and for its exports, on every version of TensorFlow.

    Returns:
        64 hexadecimal digits.
    """
    # Sorted and without names, which Keras chooses. What is not trained, BERT's own
    # pooler, has no part in a vector.
    weights = []
    for variable in trained.encoder.trainable_variables:
        array = np.ascontiguousarray(variable.numpy(), "<f4")
        content = hashlib.sha256(array).hexdigest()
        weights.append(f"{list(array.shape)} {content}")
    config = trained.config.model
    settings = [
        config.pooling,
        config.sentence_vector,
        config.hidden_activation,
        config.num_attention_heads,
        config.layer_norm_epsilon,
        trained.tokenizer.lower_case,
    ]
    parts = [sorted(weights), settings, trained.tokenizer.vocab]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def describe(trained: model_dir.TrainedEncoder, seq_length: int) -> dict:
    """What an encoder is, in plain values: for reports and export.json."""
    step = re.search(r"-(\d+)$", trained.checkpoint)
    return {
        "fingerprint": fingerprint(trained),
        "checkpoint": trained.checkpoint,
        "step": int(step.group(1)) if step else 0,
        "dim": trained.config.model.hidden_size,
        "pooling": trained.config.model.pooling,
        "sentence_vector": trained.config.model.sentence_vector,
        "seq_length": seq_length,
        "trained_seq_length": trained.seq_length,
        "vocab_size": trained.tokenizer.vocab_size,
        "lower_case": trained.tokenizer.lower_case,
    }


def _from_model_dir(directory: str, which: str) -> Encoder:
    trained = model_dir.load_encoder(directory, "latest" if which == "bow" else which)
    seq_length = resolve_seq_length(trained.config.model)
    return _from_trained(trained, seq_length, bag_of_words=which == "bow")


def live(model: SentenceModel, tokenizer: Tokenizer, seq_length: int) -> Encoder:
    """An encoder that follows a model while it trains.

    Args:
        model: its weights are read anew at every call.
        tokenizer: of its vocabulary.
        seq_length: where sentences are cut, in tokens.
    """
    graph = SentenceGraph(tokenizer, model.encoder, seq_length)
    width = model.config.hidden_size
    return Encoder(graph.vectors, graph.lengths, width, seq_length, {})


def _from_trained(
    trained: model_dir.TrainedEncoder, seq_length: int, bag_of_words: bool = False
) -> Encoder:
    encoder = inference.build(trained.encoder, trained.config.model)
    info = describe(trained, seq_length)
    if bag_of_words:
        encoder = BagOfWords(trained.encoder.embedding_table, trained.tokenizer)
        info["pooling"] = info["sentence_vector"] = "bag of word embeddings"
        info["fingerprint"] = f"bow-{info['fingerprint']}"
    graph = SentenceGraph(trained.tokenizer, encoder, seq_length)
    return Encoder(graph.vectors, graph.lengths, info["dim"], seq_length, info)


def _find_saved_model(directory: str) -> str | None:
    """The newest version of an export, as a model server would choose it."""
    candidates = [directory]
    for parent in (directory, os.path.join(directory, "serving")):
        if tf.io.gfile.isdir(parent):
            names = [name.rstrip("/") for name in tf.io.gfile.listdir(parent)]
            versions = sorted(int(name) for name in names if name.isdecimal())
            candidates += [os.path.join(parent, str(v)) for v in reversed(versions)]
    for candidate in candidates:
        if tf.io.gfile.exists(os.path.join(candidate, PROVENANCE)):
            return candidate
    return None


def _from_export(path: str) -> Encoder:
    try:
        with tf.io.gfile.GFile(os.path.join(path, PROVENANCE)) as file:
            info = json.loads(file.read())
        served = tf.saved_model.load(path)
        signature, lengths = served.signatures["serving_default"], served.lengths
    except (tf.errors.OpError, OSError, ValueError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} is not a whole export: {reason}") from error

    def vectors(text, keep_alive=served):
        # The signature alone does not own its variables; `served` does.
        return signature(text=text)["default"]

    info = {key: value for key, value in info.items() if key != "config"}
    return Encoder(vectors, lengths, info["dim"], info["seq_length"], info)
