"""Opens encoders: exports, model_dirs, foreign weights, servers and stored vectors.

`locating` finds the files of an encoder.

Every command opens its encoder here, with `open_encoder` for vectors or `open_weights`
for weights (exports, fine-tuning). Only an export command opens a run by `model_dir`,
because its --checkpoint may name a checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Iterator

import tensorflow as tf

from cmlm.common import files, forks, json_files, machine, once, prompts
from cmlm.config import experiment, model_dir
from cmlm.encoders import external, locating, pretrained, run_weights
from cmlm.encoders.encoder import Encoder
from cmlm.encoders.exported_graph import ExportDescription, ExportedGraph
from cmlm.encoders.fingerprints import describe, fingerprint
from cmlm.encoders.graph import BagOfWords, SentenceGraph, TwoGraphs
from cmlm.encoders.opened_weights import OpenedWeights, resolve_seq_length
from cmlm.encoders.reading import AS_TRAINED, Reading
from cmlm.errors import UserError
from cmlm.modeling import export_layout, foreign, inference_graph
from cmlm.modeling.model import SECOND_ENCODER, SentenceModel
from cmlm.tokenization.base import Tokenizer


def open_encoder(
    model: str, reading: Reading = AS_TRAINED
) -> Encoder | external.ExternalEncoder:
    """Opens an encoder.

    Args:
        model: an export (its folder, the folder `serving` in it, or a version); a model
            that `open_weights` opens; `bow:` and a model_dir (the mean of its word
            embeddings); `both:` and a model_dir (see `_both`); or a form that
            `external` lists: the address of a model server, or stored vectors.
        reading: the reading of vectors; by default it keeps the settings of the model.
            The vectors of exports, servers and files are fixed, but for the choice of
            a prompt.

    Raises:
        UserError: the encoder does not exist or is damaged, `reading` does not fit, or
            TensorFlow would hang in this process.
    """
    place = locating.locate(model)
    if place.kind == "external":
        return _fixed(external.open_encoder(model), reading, model)
    forks.refuse(model)
    encoder = _open_local(place, model, reading)
    default = encoder.info.get("prompt") or ""
    pretrained.warn_without_default(model, encoder.prompts, default, reading)
    _warn_of_slow_precision(encoder)
    return encoder


def described(
    model: str, reading: Reading = AS_TRAINED
) -> Encoder | external.ExternalEncoder | ExportDescription:
    """The encoder for checks before its use; of an export, the description alone.

    This does not load the graph of an export. It opens every other encoder.

    Args:
        model, reading: as for `open_encoder`.

    Raises:
        UserError: as `open_encoder` does.
    """
    place = locating.locate(model)
    if place.kind != "export":
        return open_encoder(model, reading)
    found = _fixed(ExportDescription.read(place.path), reading, model)
    locating.check_version(place.path)
    return found


def _open_local(place: locating.Location, model: str, reading: Reading) -> Encoder:
    if place.kind == "export":
        return _from_export(place.path, reading, model)
    if place.prefix == "bow":
        # This baseline reads no layer, so pooling and precision have no effect.
        reading.validate()
        reading = dataclasses.replace(
            reading, pooling=None, sentence_vector=None, precision=None
        )
        opened = run_weights.load(place.path, reading=reading)
        return _bag_of_words(opened, reading, model)
    if place.prefix == "both":
        return _both(place.path, reading, model)
    with _naming_external(place):
        opened = open_weights(model, reading)
    return from_weights(opened, reading, model)


def _warn_of_slow_precision(encoder: Encoder) -> None:
    if encoder.info.get("precision") != "bfloat16" or machine.has_bfloat16():
        return
    if not tf.config.list_physical_devices("GPU"):
        once.warn(
            f"{encoder.name} computes in bfloat16, for which this processor has no "
            "instructions; float32 is faster: --precision=float32, here or for a new "
            "export"
        )


def check(model: str) -> None:
    """Refuses a name without an encoder; `open_encoder` would take longer to do so.

    Args:
        model: as for `open_encoder`.

    Raises:
        UserError: the encoder does not exist.
    """
    place = locating.locate(model)
    if place.kind == "external":
        external.check(model)
    elif place.kind == "run":
        config = model_dir.read_config(place.path)
        if place.prefix != "untrained":
            wanted = "best" if place.prefix == "best" else "latest"
            run_weights.find_checkpoint(place.path, config, wanted)
    elif place.kind == "weights":
        with _naming_external(place):
            source = locating.find_foreign(model)
        if source is None:
            model_dir.read_config(locating.run_of(model.removesuffix(".index")))


@contextlib.contextmanager
def _naming_external(place: locating.Location) -> Iterator[None]:
    """Adds the forms of `external` to the error of a path that does not exist."""
    try:
        yield
    except UserError as error:
        if place.kind != "weights" or tf.io.gfile.glob(f"{files.escaped(place.path)}*"):
            raise
        raise UserError(f"{error}; or {external.FORMS}") from error


def precision(model: str, reading: Reading = AS_TRAINED) -> str:
    """Tells the precision of the layers of an encoder without opening it.

    Args:
        model, reading: as for `open_encoder`.

    Returns:
        One of `choices.PRECISIONS`: the one of `reading`; else an export's own; else
        bfloat16 for a run that trained in it, and float32 for everything else.
    """
    place = locating.locate(model)
    if place.prefix == "bow":
        return "float32"
    if reading.precision:
        return reading.precision
    if place.kind == "external":
        return "float32"
    if place.kind == "export":
        path = os.path.join(place.path, export_layout.PROVENANCE)
        return json_files.read(path).get("precision", "float32")
    directory = place.path if place.kind == "run" else locating.run_of(place.path)
    if model_dir.is_model_dir(directory):
        return _trained_in(model_dir.read_config(directory))
    return "float32"


def _trained_in(config: experiment.ExperimentConfig) -> str:
    is_bfloat16 = config.runtime.mixed_precision_dtype == "bfloat16"
    return "bfloat16" if is_bfloat16 else "float32"


def open_weights(model: str, reading: Reading = AS_TRAINED) -> OpenedWeights:
    """Opens the weights of an encoder.

    Args:
        model: a model_dir; `best:` or `untrained:` and a model_dir (the best checkpoint
            or the initial weights of the run); a checkpoint in a model_dir; or weights
            of another program (see `foreign.ACCEPTED`).
        reading: the reading of vectors; by default it keeps the settings of the model.

    Raises:
        UserError: the encoder does not exist, is damaged, or lacks a layer that
            `reading` asks for.
    """
    place = locating.locate(model, exports=False)
    if place.kind == "external":
        raise UserError(
            f"{model} gives vectors and not weights; allowed: {foreign.ACCEPTED}"
        )
    if place.prefix == "bow":
        raise UserError(f"{model} has no layers; allowed: a model_dir without bow:")
    if place.prefix == "both":
        raise UserError(f"{model} is two encoders; allowed: a model_dir without both:")
    if place.kind == "run":
        return run_weights.load(place.path, place.prefix or "latest", reading)
    source = locating.find_foreign(model)
    if source is not None:
        return pretrained.load_weights(source, reading)
    return run_weights.load(
        locating.run_of(model), model.removesuffix(".index"), reading
    )


def _fixed(encoder, reading: Reading, model: str):
    """Returns an encoder with fixed vectors; refuses a different reading."""
    reading.check_prompts()
    # An encoder without a prompt does not describe one.
    known = {"prompt": "", "prompts": {}, **encoder.info}
    known |= {"seq_length": encoder.seq_length, "dimensions": encoder.dim}
    for name, value in vars(reading).items():
        if name == "prompt_name":
            continue
        own = known.get(name)
        if name == "dimensions" and value == 0 and _is_whole(encoder):
            continue
        if value not in (None, own):
            allowed = f"no --{name}" if own in (None, "", {}) else repr(own)
            raise UserError(
                f"--{name} is {value!r}; allowed with {model}: {allowed}, because its "
                "vectors are fixed"
            )
    if reading.prompt_name is None:
        return encoder
    prompts.check_name(reading.prompt_name, encoder.prompts, model, "--prompt_name")
    return encoder.prompted(reading.prompt_name)


def _is_whole(encoder) -> bool:
    """Whether an encoder describes itself, and as one without shorter vectors."""
    return "fingerprint" in encoder.info and not encoder.info.get("dimensions")


def live(model: SentenceModel, tokenizer: Tokenizer, seq_length: int) -> Encoder:
    """Makes an encoder that follows a model while it trains.

    Args:
        model: the model; every call reads its current weights.
        tokenizer: the tokenizer of the model's vocabulary.
        seq_length: the longest sentence in tokens; a longer one is cut.
    """
    config = model.config
    # The training keeps its own tokenizer, which adds no prompt.
    tokenizer = tokenizer.prompted(config.prompt)
    graph = SentenceGraph(tokenizer, model.encoder, seq_length)
    info = {
        "dim": config.vector_width,
        "prompt": config.prompt,
        "prompts": config.named_prompts,
    }
    return Encoder(graph, info, "the model", config.named_prompts)


def from_weights(
    opened: OpenedWeights, reading: Reading = AS_TRAINED, name: str = ""
) -> Encoder:
    """Makes the encoder of opened weights.

    Args:
        opened: the weights.
        reading: as for `open_encoder`.
        name: the name of the encoder, for messages.
    """
    seq_length = resolve_seq_length(opened, reading.seq_length)
    precision = reading.precision or _trained_in(opened.config)
    graph = _lean_graph(opened, seq_length, precision)
    info = {**describe(opened, seq_length), "precision": precision}
    return Encoder(graph, info, name, info.get("prompts"))


def _lean_graph(
    opened: OpenedWeights, seq_length: int, precision: str
) -> SentenceGraph:
    lean = inference_graph.build(opened.encoder, opened.config.model, precision)
    return SentenceGraph(opened.tokenizer, lean, seq_length)


def _bag_of_words(opened: OpenedWeights, reading: Reading, name: str) -> Encoder:
    seq_length = resolve_seq_length(opened, reading.seq_length)
    model = opened.config.model
    width = min(model.dimensions or model.embedding_width, model.embedding_width)
    bag = BagOfWords(opened.encoder.embedding_table, opened.tokenizer, width)
    graph = SentenceGraph(opened.tokenizer, bag, seq_length)
    info = {**describe(opened, seq_length), "precision": "float32"}
    info["pooling"] = info["sentence_vector"] = "bag of word embeddings"
    info["dim"] = width
    for key in {"fingerprint", prompts.PLAIN} & info.keys():
        info[key] = f"bow-{info[key]}"
    return Encoder(graph, info, name, info.get("prompts"))


def _both(directory: str, reading: Reading, name: str) -> Encoder:
    """Joins the vectors of QuickThought's two encoders.

    The vector is [f(s) / |f(s)|, g(s) / |g(s)|], as the released code evaluates it
    (https://github.com/lajanugen/S2V).

    Raises:
        UserError: the run has one encoder.
    """
    pair = [
        run_weights.load(directory, reading=reading, part=part)
        for part in ("encoder", SECOND_ENCODER)
    ]
    seq_length = resolve_seq_length(pair[0], reading.seq_length)
    precision = reading.precision or _trained_in(pair[0].config)
    graphs = [_lean_graph(opened, seq_length, precision) for opened in pair]
    info = {**describe(pair[0], seq_length), "precision": precision}
    prints = info["fingerprint"] + fingerprint(pair[1])
    info["fingerprint"] = hashlib.sha256(prints.encode()).hexdigest()
    for key in (prompts.PLAIN, "prompts"):
        info.pop(key, None)
    info["sentence_vector"] = "both encoders, each at unit length"
    info["dim"] *= 2

    return Encoder(TwoGraphs(*graphs), info, name)


def _from_export(path: str, reading: Reading, name: str) -> Encoder:
    locating.check_version(path)
    described = ExportDescription.read(path)
    # Loading the graph takes seconds, so a reading that does not fit is refused before.
    _fixed(described, reading, name)
    graph = ExportedGraph(path, described)
    info = {key: value for key, value in graph.info.items() if key != "config"}
    return _fixed(Encoder(graph, info, name, graph.prompts), reading, name)
