"""Opens encoders, wherever they lie: exports, model_dirs, foreign weights, servers."""

from __future__ import annotations

import json
import os

import tensorflow as tf

from cmlm.data.tokenization import Tokenizer
from cmlm.encoders import external, model_dir, pretrained
from cmlm.encoders.encoder import Encoder
from cmlm.encoders.graph import BagOfWords, SentenceGraph
from cmlm.encoders.identity import describe
from cmlm.encoders.trained import TrainedEncoder, resolve_seq_length
from cmlm.errors import UserError
from cmlm.modeling import inference_graph
from cmlm.modeling.model import SentenceModel

# Where an export says what it is; servers ignore this folder.
PROVENANCE = os.path.join("assets.extra", "export.json")


def open_encoder(
    model: str, seq_length: int | None = None
) -> Encoder | external.ExternalEncoder:
    """Opens an encoder.

    Args:
        model: an export (the folder, its `serving` or a version of that), a model_dir,
            a checkpoint, weights of another program (see `foreign.ACCEPTED`), or a
            model_dir after one of the prefixes `best:` (its best checkpoint),
            `untrained:` (the weights it started from) and `bow:` (the mean of its word
            embeddings). Besides, what `external_encoders` knows: the address of a model
            server, and vectors that were made before.
        seq_length: where sentences are cut, in tokens; by default the encoder's own
            length. Only weights that are opened here can be cut elsewhere, not exports,
            servers or stored vectors.

    Raises:
        UserError: there is no such thing, or it is damaged.
    """
    if model.startswith(external.PREFIXES):
        return _uncut(external.open_encoder(model), seq_length, model)
    prefix, _, directory = model.rpartition(":")
    if prefix in ("best", "untrained", "bow"):
        return _from_model_dir(directory, prefix, seq_length)
    if tf.io.gfile.exists(os.path.join(model, model_dir.PARAMS)):
        return _from_model_dir(model, "latest", seq_length)
    saved_model = _find_saved_model(model)
    if saved_model:
        return _uncut(_from_export(saved_model), seq_length, model)
    return _from_trained(pretrained.load_encoder(model), seq_length)


def _uncut(encoder, seq_length: int | None, model: str):
    """Refuses a cut length that the encoder does not have itself."""
    if seq_length not in (None, encoder.seq_length):
        raise UserError(
            f"--seq_length is {seq_length}; allowed with {model}: "
            f"{encoder.seq_length}, the length it was made with"
        )
    return encoder


def _from_model_dir(directory: str, which: str, seq_length: int | None) -> Encoder:
    trained = model_dir.load_encoder(directory, "latest" if which == "bow" else which)
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
    trained: TrainedEncoder, seq_length: int | None, bag_of_words: bool = False
) -> Encoder:
    seq_length = resolve_seq_length(trained, seq_length)
    encoder = inference_graph.build(trained.encoder, trained.config.model)
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


def open_trained(
    source: str | None, directory: str | None, checkpoint: str
) -> TrainedEncoder:
    """Opens the trained encoder of a model_dir, or of another program's weights.

    Args:
        source: weights of another program, see `foreign.ACCEPTED`; None for a
            model_dir.
        directory: the model_dir.
        checkpoint: `latest`, `best` or the path of a checkpoint of the model_dir.

    Raises:
        UserError: there is no such encoder.
    """
    if source:
        return pretrained.load_encoder(source)
    return model_dir.load_encoder(directory, checkpoint)
