"""Weights of other programs give here the vectors they give there.

What is read is written by the tests: Hugging Face folders by numpy and safetensors, an
original checkpoint by TensorFlow's own op, the rest from it by Model Garden's converter
and exporter. The oracle is BERT in numpy in the layout of each.
"""

import contextlib
import copy
import gc
import json
import logging
import math
import re
import shutil
import time
from pathlib import Path

import ml_dtypes
import model_dirs
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import texts
import toys
from oracles import gelu, layer_norm, softmax

from cmlm.common import json_files
from cmlm.common.keras import building, keras
from cmlm.config import loading, model_dir
from cmlm.encoders import fingerprints, locating, opening
from cmlm.encoders.graph import SentenceGraph
from cmlm.encoders.reading import AS_TRAINED, Reading
from cmlm.errors import UserError
from cmlm.modeling import foreign, restoring, weights
from cmlm.modeling import pooling as pooling_lib
from cmlm.modeling.foreign import modules, tf_checkpoints, tf_hub
from cmlm.modeling.foreign import tensors as tensors_lib
from cmlm.modeling.model import SentenceModel
from cmlm.tokenization import rules, vocabulary_file
from cmlm.training import warm_start
from cmlm.training.building import build
from cmlm.training.stages import Stage
from export import encoder, huggingface_folder, saved_models

LAYERS, HIDDEN, HEADS, INNER, POSITIONS = 2, 16, 4, 32, 24
VOCAB = "[PAD] [UNK] [CLS] [SEP] [MASK] the cat sat on a mat dog , . ##s".split()
# The third is cut at the last position: the whole table is used.
TEXTS = ["The cat sat on the mat.", "a dog", "the cat , " * 20, ""]


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def torch_weights(seed=0, prefix="") -> dict[str, np.ndarray]:
    """A BertModel's weights under the names and in the layout of Hugging Face."""
    random = np.random.default_rng(seed)

    def array(*shape):
        return random.normal(0, 0.4, shape).astype(np.float32)

    made = {
        "embeddings.word_embeddings.weight": array(len(VOCAB), HIDDEN),
        "embeddings.position_embeddings.weight": array(POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": array(2, HIDDEN),
    }

    def norm(name):
        made[f"{name}.weight"] = 1 + array(HIDDEN)
        made[f"{name}.bias"] = array(HIDDEN)

    def dense(name, outputs, inputs):
        made[f"{name}.weight"] = array(outputs, inputs)
        made[f"{name}.bias"] = array(outputs)

    norm("embeddings.LayerNorm")
    for number in range(LAYERS):
        at = f"encoder.layer.{number}"
        for name in ("query", "key", "value"):
            dense(f"{at}.attention.self.{name}", HIDDEN, HIDDEN)
        dense(f"{at}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{at}.attention.output.LayerNorm")
        dense(f"{at}.intermediate.dense", INNER, HIDDEN)
        dense(f"{at}.output.dense", HIDDEN, INNER)
        norm(f"{at}.output.LayerNorm")
    dense("pooler.dense", HIDDEN, HIDDEN)
    return {f"{prefix}{name}": value for name, value in made.items()}


def head_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(9)
    shapes = {
        "cls.predictions.transform.dense.weight": (HIDDEN, HIDDEN),
        "cls.predictions.transform.dense.bias": (HIDDEN,),
        "cls.predictions.transform.LayerNorm.weight": (HIDDEN,),
        "cls.predictions.transform.LayerNorm.bias": (HIDDEN,),
        "cls.predictions.bias": (len(VOCAB),),
    }
    return {k: random.normal(size=v).astype(np.float32) for k, v in shapes.items()}


def write_folder(folder, tensors=None, **config):
    """A Hugging Face BERT folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = torch_weights() if tensors is None else tensors
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    settings = {
        "model_type": "bert",
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS,
        "vocab_size": len(VOCAB),
        **config,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return folder


def write_modules(folder, *modules):
    """What sentence-transformers adds: (type, path, config) for each module."""
    entries = [{"type": "sentence_transformers.models.Transformer", "path": ""}]
    for kind, path, config in modules:
        (folder / path).mkdir()
        (folder / path / "config.json").write_text(json.dumps(config))
        entries.append({"type": f"sentence_transformers.models.{kind}", "path": path})
    (folder / "modules.json").write_text(json.dumps(entries))


def tokens_of(text, limit=POSITIONS):
    """Ids by hand: the words of these texts are all in the vocabulary."""
    words = text.lower().replace(".", " .").split()
    ids = [VOCAB.index(word) for word in words][: limit - 2]
    return [VOCAB.index("[CLS]"), *ids, VOCAB.index("[SEP]")]


RELATIVE = "encoder.relative_attention_bias.weight"
PROJECTION = "embeddings_project"


def relative_buckets(length):
    """T5's formula with 32 buckets up to distance 128: int [queries, keys]."""
    buckets = np.zeros([length, length], int)
    for query, key in np.ndindex(length, length):
        distance = abs(key - query)
        if distance >= 8:
            share = math.log(distance / 8) / math.log(128 / 8)
            distance = min(8 + math.floor(share * 8 + 1e-9), 15)
        buckets[query, key] = distance + 16 * (key > query)
    return buckets


def forward(tensors, ids, activation=gelu, epsilon=1e-12, layers=LAYERS):
    """BertModel's last hidden state of one sentence: [tokens, HIDDEN]."""
    w = {name: value.astype(np.float64) for name, value in tensors.items()}

    def dense(name, x):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name, x):
        return layer_norm(x, w[f"{name}.weight"], w[f"{name}.bias"], epsilon)

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(
        "embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0]
    )
    if f"{PROJECTION}.weight" in w:
        x = dense(PROJECTION, x)
    added = np.zeros([HEADS, 1, 1])
    if RELATIVE in w:
        added = w[RELATIVE][relative_buckets(len(ids))].transpose(2, 0, 1)
    for number in range(layers):
        at = f"encoder.layer.{number}"
        # Heads one by one, as slices of the columns.
        q, k, v = (
            dense(f"{at}.attention.self.{n}", x) for n in ("query", "key", "value")
        )
        size = HIDDEN // HEADS
        mixed = np.concatenate(
            [
                softmax(q[:, c] @ k[:, c].T / np.sqrt(size) + added[h]) @ v[:, c]
                for h, c in enumerate(
                    slice(h * size, (h + 1) * size) for h in range(HEADS)
                )
            ],
            axis=1,
        )
        x = norm(
            f"{at}.attention.output.LayerNorm",
            x + dense(f"{at}.attention.output.dense", mixed),
        )
        inner = activation(dense(f"{at}.intermediate.dense", x))
        x = norm(f"{at}.output.LayerNorm", x + dense(f"{at}.output.dense", inner))
    return x


def expected(tensors, pooling="mean", **options):
    rows = []
    for text in TEXTS:
        x = forward(tensors, tokens_of(text), **options)
        pooler = np.tanh(
            x[0] @ tensors["pooler.dense.weight"].T + tensors["pooler.dense.bias"]
        )
        pooled = {"mean": x.mean(0), "max": x.max(0), "cls": x[0], "pooler": pooler}
        rows.append(pooled[pooling])
    return np.array(rows)


def vectors(path):
    """Eagerly: the graph is tested by `test_export` and `test_serving`."""
    trained = opening.open_weights(str(path))
    graph = SentenceGraph(trained.tokenizer, trained.encoder, POSITIONS)
    with toys.eagerly():
        return graph.vectors(tf.constant(TEXTS)).numpy(), trained


# -------------------------------------------------------------- Hugging Face


@pytest.mark.parametrize(
    "pooling, options",
    [
        ("mean", {}),
        pytest.param("cls", {"epsilon": 1e-2}, marks=pytest.mark.large),
        pytest.param("max", {"activation": gelu_tanh}, marks=pytest.mark.large),
        pytest.param("pooler", {}, marks=pytest.mark.large),
    ],
)
def test_sentence_transformers_folder_gives_its_vectors(tmp_path, pooling, options):
    config = {"layer_norm_eps": options.get("epsilon", 1e-12)}
    if "activation" in options:
        config["hidden_act"] = "gelu_new"
    folder = write_folder(tmp_path / "st", **config)
    mode = "cls" if pooling == "pooler" else pooling
    names = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}
    pool = {f"pooling_mode_{name}": key == mode for key, name in names.items()}
    modules = [("Pooling", "1_Pooling", pool)]
    tensors = torch_weights()
    if pooling == "pooler":
        sizes = {"in_features": HIDDEN, "out_features": HIDDEN}
        tanh = "torch.nn.modules.activation.Tanh"
        modules.append(("Dense", "2_Dense", {**sizes, "activation_function": tanh}))
    write_modules(folder, *modules)
    if pooling == "pooler":
        # Not the BERT's own pooler: the module's weights are the ones that count.
        own = torch_weights(seed=1)
        tensors |= {k: v for k, v in own.items() if k.startswith("pooler")}
        dense = {
            k.replace("pooler.dense", "linear"): own[k] for k in own if "pooler" in k
        }
        safetensors.numpy.save_file(dense, folder / "2_Dense" / "model.safetensors")
    actual, trained = vectors(folder)
    assert trained.config.model.pooling == pooling
    np.testing.assert_allclose(actual, expected(tensors, pooling, **options), atol=1e-5)


def test_an_encoder_takes_its_temporary_files_with_it(tmp_path):
    encoder = opening.open_encoder(str(write_folder(tmp_path / "bert")))
    assert encoder.encode(TEXTS).shape == (len(TEXTS), HIDDEN)
    folder = Path(encoder._tokenizer.vocab_file).parent
    assert folder.exists()
    del encoder
    gc.collect()
    assert not folder.exists()


def test_weights_that_a_source_lacks_have_the_values_of_the_seed(tmp_path):
    tensors = {k: v for k, v in torch_weights().items() if "pooler" not in k}
    folder = str(write_folder(tmp_path / "bert", tensors))
    trained = opening.open_weights(folder)
    with building(trained.config.trainer.seed):
        model = SentenceModel(trained.config.model)
    restoring.take(model, foreign.find(folder))
    want = weights.read(model.encoder, trained.config.model)
    arrays = weights.read(trained.encoder, trained.config.model)
    assert arrays.keys() == want.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, want[name], err_msg=name)
    assert arrays[f"{weights.POOLER}/kernel"].any()


def test_opening_draws_no_value_that_the_source_replaces(tmp_path, monkeypatch):
    folder = str(write_folder(tmp_path / "bert"))
    run = model_dirs.write(tmp_path / "run")
    drawn = []

    def draw(self, shape, dtype=None, **_):
        drawn.append(tuple(shape))
        return tf.zeros(shape, dtype)

    monkeypatch.setattr(keras.initializers.TruncatedNormal, "__call__", draw)
    model = opening.open_weights(folder).config.model
    positions = (model.max_position_embeddings, HIDDEN)
    assert drawn == [positions, (HIDDEN, HIDDEN)]
    drawn.clear()
    opening.open_weights(run)
    assert not drawn


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_large_weight_is_read_in_blocks(tmp_path, monkeypatch, dtype):
    stored = np.arange(35, dtype=np.float32).reshape(7, 5).astype(dtype)
    path = tmp_path / tensors_lib.FILE_NAME
    safetensors.numpy.save_file({"table": stored, "one": np.array(stored[0, 0])}, path)
    monkeypatch.setattr(tensors_lib, "_BLOCK", 12)
    folder = tensors_lib.Tensors(str(tmp_path))
    array = folder.read("table")
    assert array.dtype == np.float32
    np.testing.assert_array_equal(array, stored.astype(np.float32))
    assert folder.read("one") == 0


@pytest.mark.large
def test_rows_for_conditions_come_after_all_positions_of_the_source(tmp_path):
    tensors = torch_weights(prefix="bert.") | head_weights()
    tensors["cls.seq_relationship.weight"] = np.ones([2, HIDDEN], np.float32)
    _, trained = vectors(write_folder(tmp_path / "bert", tensors))
    model = trained.config.model
    assert model.max_position_embeddings == POSITIONS + model.num_views
    arrays = weights.read(trained.encoder, model)
    table = tensors["bert.embeddings.position_embeddings.weight"]
    np.testing.assert_array_equal(arrays[weights.POSITIONS][:POSITIONS], table)
    assert np.abs(arrays[weights.POSITIONS][POSITIONS:]).max() > 0


@pytest.mark.parametrize("name", ["classifier", "qa_outputs"])
def test_a_layer_for_another_task_is_unused(tmp_path, name):
    layer = {f"{name}.weight": np.ones([2, HIDDEN], np.float32)}
    folder = write_folder(tmp_path / "bert", torch_weights(prefix="bert.") | layer)
    assert foreign.find(str(folder)).unused == list(layer)


def test_rows_without_a_token_are_left_out(tmp_path, caplog):
    tensors = torch_weights(prefix="bert.") | head_weights()
    padded = dict(tensors)
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        rows = [(0, 3)] + [(0, 0)] * (tensors[name].ndim - 1)
        padded[name] = np.pad(tensors[name], rows, constant_values=9)
    folder = write_folder(tmp_path / "padded", padded, vocab_size=len(VOCAB) + 3)
    with caplog.at_level(logging.INFO, logger="cmlm"):
        actual, trained = vectors(folder)
    assert "padded: left out: 3 embedding rows without a token" in caplog.text
    np.testing.assert_allclose(actual, expected(torch_weights()), atol=1e-5)
    bias = foreign.find(str(folder)).load()[weights.OUTPUT_BIAS]
    np.testing.assert_array_equal(bias, tensors["cls.predictions.bias"])
    (tmp_path / "written").mkdir()
    huggingface_folder.write(trained, str(tmp_path / "written"), POSITIONS, False)
    config = json.loads((tmp_path / "written" / "config.json").read_text())
    assert config["vocab_size"] == len(VOCAB)
    again, _ = vectors(tmp_path / "written")
    np.testing.assert_array_equal(again, actual)


@pytest.mark.large
def test_half_precision_and_old_names_are_read(tmp_path):
    halves = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value.astype(np.float16)
        for name, value in torch_weights().items()
    }
    actual, _ = vectors(write_folder(tmp_path / "half", halves))
    rounded = {
        name: value.astype(np.float16).astype(np.float32)
        for name, value in torch_weights().items()
    }
    np.testing.assert_allclose(actual, expected(rounded), atol=1e-5)


def test_vocabulary_and_case_come_from_the_fast_tokenizer_too(tmp_path):
    folder = write_folder(tmp_path / "fast")
    (folder / "vocab.txt").unlink()
    model = {"type": "WordPiece", "vocab": {t: i for i, t in enumerate(VOCAB)}}
    normalizer = {"type": "BertNormalizer", "lowercase": False}
    fast = {"model": model, "normalizer": normalizer}
    (folder / "tokenizer.json").write_text(json.dumps(fast))
    source = foreign.find(str(folder))
    assert (source.vocab, source.rules["lower_case"]) == (VOCAB, False)


@pytest.mark.parametrize("settings", [None, {}, {"do_lower_case": True}])
@pytest.mark.parametrize("token", ["Cat", "cat's"])
def test_a_case_that_no_file_states_is_named(tmp_path, settings, token):
    folder = write_folder(tmp_path / "bare")
    (folder / "vocab.txt").write_text("\n".join([*VOCAB[:-1], token]) + "\n")
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    source = foreign.find(str(folder))
    assert source.rules["lower_case"]
    said = [text for text in source.warnings if "although the vocabulary has" in text]
    assert len(said) == (token == "Cat" and not settings)


def test_a_tokenizer_file_is_parsed_once(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "fast")
    fast_tokenizer()(folder)
    read, paths = json_files.read, []
    monkeypatch.setattr(
        json_files, "read", lambda path, *more: paths.append(path) or read(path, *more)
    )
    foreign.find(str(folder))
    assert paths.count(str(folder / "tokenizer.json")) == 1


def source_of_case(folder, settings, fast):
    """A folder with two statements on the case, as it is read."""
    write_folder(folder)
    fast_tokenizer(normalizer={"type": "BertNormalizer", **fast})(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return foreign.find(str(folder))


@pytest.mark.parametrize(
    "settings, fast, want",
    [
        # BertTokenizer of transformers obeys tokenizer_config.json.
        ({"do_lower_case": False}, {"lowercase": True}, (False, False)),
        ({"do_lower_case": True}, {"lowercase": False}, (True, True)),
        (
            {"do_lower_case": True, "strip_accents": None},
            {"lowercase": True, "strip_accents": False},
            (True, True),
        ),
        # PreTrainedTokenizerFast obeys tokenizer.json.
        (
            {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"},
            {"lowercase": True, "strip_accents": None},
            (True, True),
        ),
        (
            {"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"},
            {"lowercase": False},
            (False, False),
        ),
    ],
)
def test_the_case_is_that_of_transformers(tmp_path, settings, fast, want):
    source = source_of_case(tmp_path / "both", settings, fast)
    assert (source.rules["lower_case"], source.rules["strip_accents"]) == want
    assert not any("case and accents" in note for note in source.notes)


@pytest.mark.parametrize(
    "settings, fast, want",
    [
        ({}, {"lowercase": True, "strip_accents": False}, (True, False)),
        ({}, {"lowercase": False}, (False, False)),
        ({"do_lower_case": False}, {"strip_accents": True}, (False, True)),
    ],
)
def test_unstated_case_is_that_of_tokenizer_json(tmp_path, settings, fast, want):
    """BertTokenizer of transformers takes its defaults there, so a note says so."""
    source = source_of_case(tmp_path / "fast", settings, fast)
    assert (source.rules["lower_case"], source.rules["strip_accents"]) == want
    (note,) = [note for note in source.notes if "case and accents" in note]
    assert "those of tokenizer.json" in note and "takes its defaults (" in note


@pytest.mark.parametrize(
    "files, want",
    [
        # sentence-transformers 6.
        ({"tokenizer_config.json": {"model_max_length": 7}}, 7),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, POSITIONS),
        ({}, POSITIONS),
        # Earlier versions.
        ({"sentence_roberta_config.json": {"max_seq_length": 9}}, 9),
        (
            {
                "sentence_bert_config.json": {"max_seq_length": 8},
                "tokenizer_config.json": {"model_max_length": 7},
            },
            8,
        ),
    ],
)
def test_texts_are_cut_where_sentence_transformers_cuts(tmp_path, files, want):
    folder = write_folder(tmp_path / "st")
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    # Other programs do not say where a sentence ends.
    alone = foreign.find(str(folder)).seq_length
    assert alone == (want if any("sentence" in name for name in files) else None)
    write_modules(folder, ("Pooling", "1", {"pooling_mode": "mean"}))
    assert foreign.find(str(folder)).seq_length == want


def test_tokens_that_are_found_in_a_text_are_named(tmp_path):
    folder = write_folder(tmp_path / "added")
    special = {"id": 0, "content": VOCAB[0], "special": True}
    found = {"id": 5, "content": VOCAB[5], "special": False}
    fast_tokenizer(added_tokens=[special, found])(folder)
    (warning,) = foreign.find(str(folder)).warnings
    assert "added tokens" in warning
    assert warning.endswith(f"here they count as text: {VOCAB[5]}")


def test_added_tokens_with_rows_belong_to_the_vocabulary(tmp_path):
    folder = write_folder(tmp_path / "added")
    token = {"id": len(VOCAB) - 1, "content": VOCAB[-1], "special": False}
    ids = {token: number for number, token in enumerate(VOCAB[:-1])}
    fast_tokenizer(vocab=ids, added_tokens=[token])(folder)
    for tokens in (VOCAB[:-1], VOCAB):
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
        assert opening.open_weights(str(folder)).tokenizer.vocab == tuple(VOCAB)


def write_prompts(folder, default, prompts=None):
    write_modules(folder, ("Pooling", "1", {"pooling_mode": "mean"}))
    prompts = prompts or {"query": "query: ", "passage": "passage: ", "document": ""}
    settings = {"prompts": prompts, "default_prompt_name": default}
    (folder / modules.PROMPTS).write_text(json.dumps(settings))


def warnings_of(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("default", [None, "document", "unknown"])
def test_prompts_are_left_to_the_user(tmp_path, default, caplog):
    folder = write_folder(tmp_path / "e5")
    write_prompts(folder, default)
    source = foreign.find(str(folder))
    stated = json.loads((folder / modules.PROMPTS).read_text())["prompts"]
    assert (source.prompts, source.prompt) == (stated, "")
    encoder = opening.open_encoder(str(folder))
    assert not encoder.info.get("prompt")
    (warning,) = warnings_of(caplog)
    assert (
        "e5 has named prompts but no default prompt: 'query: ' (query), 'pass"
        in warning
    )
    # A run's text is its user's.
    for given in ([], ["model.pooling=source"]):
        caplog.clear()
        config = run_settings(tmp_path, folder, given)
        warm_start.warn_of_prompts(config)
        (warning,) = warnings_of(caplog)
        assert "e5 has prompts: 'query: ' (query), " in warning
    caplog.clear()
    config.task.pairs.weight, config.task.pairs.prompts = 1.0, ("query",)
    warm_start.warn_of_prompts(config)
    assert warnings_of(caplog) == []


def test_the_warning_lists_the_prompts_that_count(tmp_path, caplog):
    folder = write_folder(tmp_path / "e5")
    write_prompts(folder, None)
    opening.open_encoder(str(folder), Reading(prompts={"query": "Q: "}))
    (warning,) = warnings_of(caplog)
    said = "e5 with --prompts has named prompts but no default prompt: 'Q: ' (query); n"
    assert said in warning
    caplog.clear()
    opening.open_encoder(str(folder), Reading(prompts={}))
    assert warnings_of(caplog) == []


@pytest.mark.parametrize("prompt", ["the cat", ""])
def test_a_chosen_prompt_is_no_warning(prompt, tmp_path, caplog):
    folder = write_folder(tmp_path / "e5")
    write_prompts(folder, "query")
    encoder = opening.open_encoder(str(folder), Reading(prompt=prompt))
    assert encoder.info.get("prompt", "") == prompt
    assert warnings_of(caplog) == []


@pytest.mark.large
@pytest.mark.parametrize("by_default", [True, False])
def test_a_prompt_precedes_every_text(by_default, tmp_path):
    """In vectors, tokens and lengths, through every form that an encoder takes.

    An export is the same, whether its source or a reading states the prompt.
    """
    folder = write_folder(tmp_path / "e5")
    if by_default:
        write_prompts(folder, "query", {"query": "the cat "})
    else:
        write_modules(folder, ("Pooling", "1", {"pooling_mode": "mean"}))
    reading = AS_TRAINED if by_default else Reading(prompt="the cat ")
    opened = opening.open_weights(str(folder), reading)
    export = str(tmp_path / "export")
    back = tmp_path / "back"
    back.mkdir()
    huggingface_folder.write(opened, str(back), 16, normalize=False)
    forms = [(str(folder), reading), (str(back), AS_TRAINED)]
    if not by_default:
        saved_models.Export(opened, export, 16).write()
        assert (
            saved_models.Export(opened, export, 16).compare() <= saved_models.TOLERANCE
        )
        forms.append((export, AS_TRAINED))

    plain = opening.open_encoder(str(folder), Reading(prompt=""))
    texts = ["sat on a mat", "", "dog"]
    written = [f"the cat {text}" for text in texts]
    with toys.eagerly():
        want = plain.encode(written)
        assert not np.allclose(want, plain.encode(texts), atol=1e-3)
        for model, how in forms:
            encoder = opening.open_encoder(model, how)
            np.testing.assert_allclose(encoder.encode(texts), want, atol=1e-6)
            assert encoder.tokens(texts) == plain.tokens(written)
            lengths = encoder.lengths(texts)
            np.testing.assert_array_equal(lengths, plain.lengths(written))
            assert encoder.info["prompt"] == "the cat "
            assert encoder.info["fingerprint"] != plain.info["fingerprint"]
    written = json.loads((back / modules.PROMPTS).read_text())
    name = "query" if by_default else "default"
    assert written["default_prompt_name"] == name
    assert written["prompts"][name] == "the cat "
    card = (back / "README.md").read_text()
    assert "| prompt | 'the cat ' precedes every text |" in card
    if by_default:
        return
    with pytest.raises(
        UserError, match="--prompt is 'dog'; allowed with .*: 'the cat ', be"
    ):
        opening.open_encoder(export, Reading(prompt="dog"))
    same = opening.open_encoder(export, Reading(prompt="the cat "))
    assert same.info["prompt"] == "the cat "
    # The weights of an export keep it, too; the preprocessor adds it.
    assert opening.open_weights(export).tokenizer.prompt == "the cat "
    tokens = tf.saved_model.load(f"{export}/preprocessor")(texts)
    ids = plain._tokenizer.encode(tf.constant([f"the cat {t}" for t in texts]), 16)
    np.testing.assert_array_equal(
        tokens["input_word_ids"], ids.to_tensor(0, shape=[None, 16])
    )


def test_a_prompt_leaves_place_for_the_text(tmp_path):
    folder = str(write_folder(tmp_path / "e5"))
    with pytest.raises(
        UserError, match="--seq_length is 5; allowed: 6 to .* 'the cat sat'"
    ):
        opening.open_encoder(folder, Reading(prompt="the cat sat", seq_length=5))
    opening.open_encoder(folder, Reading(prompt="the cat sat", seq_length=6))


def test_settings_that_are_not_kept_are_named(tmp_path):
    folder = write_folder(tmp_path / "dot")
    pool = {"pooling_mode": "mean", "include_prompt": False}
    write_modules(folder, ("Pooling", "1", pool))
    settings = {"similarity_fn_name": "dot"}
    (folder / modules.PROMPTS).write_text(json.dumps(settings))
    source = foreign.find(str(folder))
    (note,), (warning,) = source.notes, source.warnings
    assert "similarity_fn_name 'dot' is not kept" in note
    # It changes vectors.
    assert "include_prompt false is not kept" in warning


@pytest.mark.parametrize(
    "config, said",
    [
        ({"use_residual": True}, "use_residual=True; allowed: False"),
        ({"module_input_name": "token_embeddings"}, "allowed: 'sentence_embedding'"),
        ({"module_output_name": "other"}, "module_output_name='other'; allowed: 'sent"),
        (
            {"activation_function": "torch.nn.modules.linear.Identity"},
            "with Identity; allowed: equal",
        ),
        ({"out_features": 8}, f"a layer from {HIDDEN} to 8 with Tanh"),
        ({"bias": False}, "allowed: equal sizes, a bias and Tanh"),
    ],
)
def test_a_dense_module_that_is_no_pooler_is_refused(tmp_path, config, said):
    tanh = "torch.nn.modules.activation.Tanh"
    sizes = {"in_features": HIDDEN, "out_features": HIDDEN}
    config = {**sizes, "activation_function": tanh, **config}
    (tmp_path / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(3)
    arrays = {
        "linear.weight": random.normal(size=(HIDDEN, HIDDEN)).astype(np.float32),
        "linear.bias": random.normal(size=HIDDEN).astype(np.float32),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=said):
        modules.read_dense(str(tmp_path))


@pytest.mark.parametrize("name", ["mean_sqrt_len_tokens", "weightedmean_tokens"])
def test_a_new_row_of_poolings_is_read_and_written(tmp_path, monkeypatch, name):
    row = pooling_lib.Pooling(
        "new", pooling_lib.POOLINGS["mean"].reduce, False, False, name
    )
    monkeypatch.setitem(pooling_lib.POOLINGS, "new", row)
    monkeypatch.setitem(modules.POOLINGS, name, "new")
    newer = {"pooling_mode": name.removesuffix("_tokens" if "weighted" in name else "")}
    older = modules.pooling_config("new", HIDDEN)
    assert older[f"pooling_mode_{name}"] is True
    for number, config in enumerate((newer, older)):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_modules(folder, ("Pooling", "1", config))
        assert modules.read(str(folder)).pooling == "new"
    (folder / "1" / "config.json").write_text('{"pooling_mode": "lasttoken"}')
    with pytest.raises(UserError, match="allowed: one of mean, "):
        modules.read(str(folder))


@pytest.mark.parametrize(
    "config, pooling",
    [
        ({}, "mean"),
        ({"pooling_mode": ["max"]}, "max"),
        ({"pooling_mode": "cls", "pooling_mode_mean_tokens": True}, "cls"),
    ],
)
def test_the_mode_of_the_pooling_is_sentence_transformers(tmp_path, config, pooling):
    write_modules(tmp_path, ("Pooling", "1", config))
    assert modules.read(str(tmp_path)).pooling == pooling


@pytest.mark.parametrize(
    "config",
    [
        {"pooling_mode": ["mean", "max"]},
        {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
    ],
)
def test_two_modes_of_pooling_are_refused(tmp_path, config):
    write_modules(tmp_path, ("Pooling", "1", config))
    with pytest.raises(UserError, match="pools by mean, max; allowed: one of mean, "):
        modules.read(str(tmp_path))


def test_vectors_may_be_scaled_twice(tmp_path):
    pool = ("Pooling", "1", {"pooling_mode": "cls"})
    write_modules(tmp_path, pool, ("Normalize", "2", {}), ("Normalize", "3", {}))
    found = modules.read(str(tmp_path))
    assert (found.pooling, found.normalized) == ("cls", True)


@pytest.mark.parametrize(
    "truncate_dim, dimensions",
    [(None, 0), (3, 3), (HIDDEN, 0), (HIDDEN + 1, 0)],
)
def test_a_folder_states_the_dimensions_of_its_vectors(
    tmp_path, truncate_dim, dimensions
):
    """sentence-transformers takes more than there are for all."""
    write_folder(tmp_path)
    write_modules(tmp_path, ("Pooling", "1", {}))
    plain = opening.open_encoder(str(tmp_path))
    settings = {"truncate_dim": truncate_dim}
    (tmp_path / modules.PROMPTS).write_text(json.dumps(settings))
    assert opening.open_weights(str(tmp_path)).config.model.dimensions == dimensions
    encoder = opening.open_encoder(str(tmp_path))
    expected = plain.encode(["a cat"])[:, : dimensions or HIDDEN]
    np.testing.assert_array_equal(encoder.encode(["a cat"]), expected)


@pytest.mark.parametrize("value", ["0", "-1", "true", '"8"', "8.5"])
def test_dimensions_that_a_vector_cannot_have_are_refused(tmp_path, value):
    write_modules(tmp_path, ("Pooling", "1", {}))
    (tmp_path / modules.PROMPTS).write_text(f'{{"truncate_dim": {value}}}')
    with pytest.raises(UserError, match="truncate_dim=.*; allowed: int from 1"):
        modules.read(str(tmp_path))


def break_weights(change):
    def breaks(folder):
        tensors = torch_weights()
        change(tensors)
        write_folder(folder, tensors)

    return breaks


def pickled(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def truncated(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def other_tokenizer(folder):
    model = {"type": "Unigram", "vocab": [["a", 0.0]]}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model}))


def long_vocabulary(folder):
    (folder / "vocab.txt").write_text("\n".join([*VOCAB, "more"]) + "\n")


def other_order(folder):
    """vocab.txt has two tokens in another order than tokenizer.json."""
    fast_tokenizer()(folder)
    swapped = [*VOCAB[:-2], VOCAB[-1], VOCAB[-2]]
    (folder / "vocab.txt").write_text("\n".join(swapped) + "\n")


def missing_token(folder):
    """tokenizer.json lacks the last token of vocab.txt."""
    fast_tokenizer(vocab={t: i for i, t in enumerate(VOCAB[:-1])})(folder)
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")


def special_tokens(folder):
    tensors = torch_weights()
    words = "embeddings.word_embeddings.weight"
    tensors[words] = tensors[words][:5].copy()
    write_folder(folder, tensors, vocab_size=5)
    (folder / "vocab.txt").write_text("\n".join(VOCAB[:5]) + "\n")


def added_token(folder):
    """The last row belongs to a token that vocab.txt does not have."""
    (folder / "vocab.txt").write_text("\n".join(VOCAB[:-1]) + "\n")
    (folder / "added_tokens.json").write_text(json.dumps({"<x>": len(VOCAB) - 1}))


KEY = "encoder.layer.1.attention.self.key.weight"


@pytest.mark.parametrize(
    "breaks, said",
    [
        (break_weights(lambda w: w.pop(KEY)), "lacks transformer/layer_1/.*key/kernel"),
        (break_weights(lambda w: w.update(other=w[KEY])), "has unknown weights: other"),
        (
            break_weights(lambda w: w.update({KEY: w[KEY][:, :-1].copy()})),
            r"key/kernel of shape \[15, 16\], the model has \[16, 16\]",
        ),
        (break_weights(lambda w: w[KEY].fill(np.nan)), "not finite"),
        (
            lambda f: write_folder(f, model_type="deberta"),
            "model_type='deberta' .*allowed: bert",
        ),
        (lambda f: write_folder(f, hidden_act="silu"), "hidden_act='silu'; allowed"),
        (lambda f: write_folder(f, num_hidden_layers="2"), "num_hidden_layers='2'"),
        (
            pickled,
            "pytorch_model.bin is a pickle.*allowed: model.safetensors; if you trust",
        ),
        (
            lambda f: (f / "model.safetensors").rename(f / "tf_model.h5"),
            "no model.safetensors; transformers 4 writes it: .*from_tf=True",
        ),
        (
            break_weights(lambda w: w.update({KEY: w[KEY].astype(np.int64)})),
            f"{KEY} as I64; allowed: F32, F16, BF16, F64",
        ),
        (truncated, "not a complete safetensors file"),
        (other_tokenizer, "post_processor.type=None; allowed: RobertaProcess"),
        (long_vocabulary, f"has {len(VOCAB) + 1} tokens, .* {len(VOCAB)} embedding"),
        (other_order, rf"gives the id {len(VOCAB) - 2} to .*, .*tokenizer.json to"),
        (
            missing_token,
            rf"gives the id {len(VOCAB) - 1} to '##s', .* to no token; all",
        ),
        (special_tokens, "has no token that a word can have .*; allowed: at least"),
        (added_token, f"has {len(VOCAB) - 1} tokens, .* {len(VOCAB)} embedding"),
        (
            lambda f: write_prompts(f, None, {"a=b": "c"}),
            "has the prompt 'a=b'; allowed: a name without =",
        ),
        (
            lambda f: write_prompts(f, None, {"": "c"}),
            "has the prompt ''; allowed: a name without =",
        ),
        (
            lambda f: write_prompts(f, None, {"query": 5}),
            "has query=5; allowed: str",
        ),
        (
            lambda f: write_modules(f, ("WeightedLayerPooling", "1", {})),
            "has the module",
        ),
        (
            lambda f: write_modules(
                f, *(("Pooling", str(n), {"pooling_mode": "cls"}) for n in (1, 2))
            ),
            r"Pooling' at position 2; allowed, in this order: Transformer, Pooling",
        ),
        (
            lambda f: write_modules(
                f,
                ("Pooling", "1", {"pooling_mode": "cls"}),
                ("Normalize", "2", {}),
                ("Dense", "3", {}),
            ),
            "Dense' at position 3; allowed, in this order",
        ),
        (
            lambda f: write_modules(f, ("Pooling", "1", {"pooling_mode": "lasttoken"})),
            "pools by lasttoken; allowed",
        ),
    ],
)
def test_what_cannot_be_taken_is_named(tmp_path, breaks, said):
    folder = write_folder(tmp_path / "broken")
    breaks(folder)
    with pytest.raises(UserError, match=said) as error:
        opening.open_weights(str(folder))
    assert "\n" not in str(error.value)


def fast_tokenizer(**changes):
    """Writes a tokenizer.json with other values of its `model`, or of itself."""

    def breaks(folder):
        (folder / "vocab.txt").unlink()
        model = {"type": "WordPiece", "vocab": {t: i for i, t in enumerate(VOCAB)}}
        ends = {"cls": ["[CLS]", 2], "sep": ["[SEP]", 3]}
        fast = {
            "truncation": None,
            "added_tokens": [],
            "normalizer": {"type": "BertNormalizer"},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", **ends},
        }
        for name, value in changes.items():
            (fast if name in fast else model)[name] = value
        fast["model"] = changes.get("whole", model)
        (folder / "tokenizer.json").write_text(json.dumps(fast))

    return breaks


CLS_ONLY = [
    {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
    {"Sequence": {"id": "A", "type_id": 0}},
]


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"normalizer": None}, "normalizer.type=None; allowed: 'BertNormalizer'"),
        ({"pre_tokenizer": None}, "pre_tokenizer.type=None; allowed: 'BertPreTok"),
        ({"post_processor": None}, "post_processor.type=None; allowed: RobertaProc"),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": CLS_ONLY,
                    "pair": [*CLS_ONLY, CLS_ONLY[1]],
                }
            },
            r"post_processor=.*allowed: a first token, the text and a separator",
        ),
        (
            {
                "post_processor": {
                    "type": "BertProcessing",
                    "cls": ["the", 5],
                    "sep": ["[SEP]", 3],
                }
            },
            r"puts \['the', '\[SEP\]'\] around a text; allowed: \['\[CLS\]', ",
        ),
    ],
)
def test_a_general_tokenizer_states_every_rule(tmp_path, changes, said):
    """The class of BERT takes these rules from its code."""
    folder = write_folder(tmp_path / "general")
    fast_tokenizer(**changes)(folder)
    settings = folder / "tokenizer_config.json"
    for name in (None, "BertTokenizer"):
        settings.write_text(json.dumps({"tokenizer_class": name}))
        assert foreign.find(str(folder)).vocab == VOCAB
    settings.write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UserError, match=said):
        foreign.find(str(folder))


def test_a_sequence_of_one_step_is_the_step(tmp_path):
    folder = write_folder(tmp_path / "sequence")
    steps = [{"type": "BertPreTokenizer"}]
    sequence = {"type": "Sequence", "pretokenizers": steps}
    fast_tokenizer(pre_tokenizer=sequence)(folder)
    assert foreign.find(str(folder)).vocab == VOCAB
    steps.append({"type": "Punctuation"})
    fast_tokenizer(pre_tokenizer=sequence)(write_folder(folder))
    with pytest.raises(UserError, match="pre_tokenizer.type='Sequence'; allowed"):
        foreign.find(str(folder))


@pytest.mark.parametrize(
    "stated, direction, said",
    [
        ("left", "Right", "tokenizer_config.json has truncation_side='left'; allowed"),
        (None, "Left", "tokenizer.json has truncation.direction='Left'; allowed: 'ri"),
        ("right", "Left", ""),
        (None, "Right", ""),
    ],
)
def test_a_long_text_loses_its_end(tmp_path, stated, direction, said):
    folder = write_folder(tmp_path / "cut")
    fast_tokenizer(truncation={"direction": direction})(folder)
    settings = json.dumps({"truncation_side": stated} if stated else {})
    (folder / "tokenizer_config.json").write_text(settings)
    with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
        foreign.find(str(folder))


@pytest.mark.parametrize(
    "stated, said",
    [
        ({"tokenizer_args": {"truncation_side": "left"}}, "tokenizer_args.truncation_"),
        ({"processor_kwargs": {"model_max_length": 7}}, "allowed: None or 8"),
        ({"processing_kwargs": {"text": {"max_length": 7}}}, "text.max_length=7; allo"),
        ({"tokenizer_args": {"model_max_length": 8}, "processor_kwargs": None}, ""),
        ({"processing_kwargs": {"text": {"padding": True}, "audio": {"a": 1}}}, ""),
        (
            {"config_args": {"num_hidden_layers": 1}},
            "num_hidden_layers=1; allowed: the",
        ),
        ({"model_kwargs": {"dtype": "float16", "use_cache": False}}, ""),
        ({"transformer_task": "fill-mask"}, "allowed: 'feature-extraction'"),
        ({"module_output_name": "token_embeddings"}, ""),
        ({"query_length": 8, "document_length": None, "query_expansion": None}, ""),
        ({"document_length": 7}, "document_length=7; allowed: null, or the longest"),
        ({"query_expansion": 8}, "query_expansion=8; allowed: null$"),
        ({"query_expansion": {"strategy": "x"}}, "query_expansion={.*; allowed: null$"),
        ({"modality_config": {"text": {"method": "other"}}}, "modality_config={.*allo"),
    ],
)
def test_arguments_of_encoder_and_tokenizer_say_nothing_new(tmp_path, stated, said):
    folder = write_folder(tmp_path / "arguments")
    settings = json.dumps({"max_seq_length": 8, **stated})
    (folder / "sentence_bert_config.json").write_text(settings)
    with pytest.raises(UserError, match=said) if said else contextlib.nullcontext():
        assert foreign.find(str(folder)).seq_length == 8


def rename_weight(name):
    return break_weights(lambda w: w.update({name: w.pop(KEY)}))


def side_file(name, content):
    return lambda folder: (folder / name).write_text(content)


def with_length(value):
    return side_file("sentence_bert_config.json", f'{{"max_seq_length": {value}}}')


@pytest.mark.parametrize(
    "breaks, said",
    [
        (with_length(-5), "max_seq_length=-5; allowed: int from 3"),
        (with_length(1), "max_seq_length=1; allowed: int from 3"),
        (with_length("true"), "max_seq_length=True; allowed: int from 3"),
        (with_length('"128"'), "max_seq_length='128'; allowed"),
        (with_length("1" + "0" * 5000), "is not JSON: Exceeds the limit"),
        (side_file("sentence_bert_config.json", "[" * 100_000), "is not JSON"),
        (rename_weight("encoder.layer.10000000.output.dense.bias"), "unknown weights"),
        (rename_weight(f"encoder.layer.{'9' * 5000}.output.dense.bias"), "unknown wei"),
        (lambda f: write_folder(f, model_type=["bert"]), "model_type=.'bert'"),
        (
            lambda f: write_folder(f, num_hidden_layers=100_000),
            "beside it have 2 layers",
        ),
        (lambda f: write_folder(f, hidden_size=100_000), r"has shape \[\d+, 16\]"),
        (lambda f: write_folder(f, vocab_size=10**9), r"has shape \[\d+, 16\]"),
        (lambda f: write_folder(f, intermediate_size=10**9), "has shape"),
        (lambda f: write_folder(f, max_position_embeddings=10**9), "has shape"),
        (lambda f: write_folder(f, type_vocab_size=10**9), "has shape"),
        (lambda f: write_folder(f, layer_norm_eps=float("nan")), "layer_norm_eps=nan"),
        (lambda f: write_folder(f, hidden_size=-16), "hidden_size=-16; allowed"),
        (lambda f: write_folder(f, num_attention_heads=0), "num_attention_heads=0"),
        (lambda f: write_folder(f, pad_token_id=-1, model_type="roberta"), "pad_token"),
        (lambda f: write_folder(f, cmlm=[1]), r"cmlm=\[1\]; allowed: dict"),
        (lambda f: write_folder(f, hidden_act="x" * 10_000), "10,002 characters"),
        (fast_tokenizer(whole=[]), "tokenizer.json has model=.*allowed: dict"),
        (fast_tokenizer(vocab={"a": "0"}), "gives 'a' the id '0'; allowed: an integer"),
        (fast_tokenizer(vocab={"a": [0]}), r"'a' the id \[0\]; allowed: an integer"),
        (
            fast_tokenizer(vocab={"a": 0, "b": 2}),
            "gives 'b' the id 2, where 1 is next; allowed: ids from 0 to 1, each once",
        ),
        (fast_tokenizer(vocab={"a": 0, "b": 0}), "gives 'b' the id 0, where 1 is next"),
        (fast_tokenizer(vocab={"\ud800": 0}), "is not JSON: .*surrogates"),
        (fast_tokenizer(normalizer=[1]), "normalizer=.*allowed: dict"),
        (fast_tokenizer(added_tokens=[1]), "added_tokens"),
        (fast_tokenizer(added_tokens={"a": 1}), "added_tokens"),
        (fast_tokenizer(max_input_chars_per_word="x"), "max_input_chars_per_word='x'"),
        (fast_tokenizer(max_input_chars_per_word=-1), "max_input_chars_per_word=-1"),
        (
            fast_tokenizer(normalizer={"type": "BertNormalizer", "lowercase": "no"}),
            "lowercase='no'; allowed: bool",
        ),
        (side_file("tokenizer_config.json", '{"do_lower_case": 3}'), "do_lower_case=3"),
        (
            side_file("tokenizer_config.json", '{"word_tokenizer_type": "mecab"}'),
            "word_tokenizer_type='mecab'; allowed: 'basic'",
        ),
        (
            fast_tokenizer(pre_tokenizer={"type": "WhitespaceSplit"}),
            "pre_tokenizer.type='WhitespaceSplit'; allowed: 'BertPreTokenizer'",
        ),
        (
            fast_tokenizer(normalizer={"type": "BertNormalizer", "clean_text": False}),
            "normalizer.clean_text=False; allowed: True",
        ),
        (
            fast_tokenizer(continuing_subword_prefix="@@"),
            "model.continuing_subword_prefix='@@'; allowed: '##'",
        ),
        (
            fast_tokenizer(unk_token="the"),
            r"model.unk_token='the'; allowed: '\[UNK\]'",
        ),
        (
            side_file("tokenizer_config.json", '{"tokenize_chinese_chars": false}'),
            "tokenize_chinese_chars=False; allowed: True",
        ),
        (
            fast_tokenizer(
                normalizer={"type": "BertNormalizer", "handle_chinese_chars": False}
            ),
            "tokenize_chinese_chars=False; allowed: True",
        ),
        (
            fast_tokenizer(normalizer={"type": "Lowercase"}),
            "normalises by 'Lowercase'; allowed: BertNormalizer",
        ),
        (
            fast_tokenizer(
                normalizer={
                    "type": "Sequence",
                    "normalizers": [{"type": "Lowercase"}, {"type": "BertNormalizer"}],
                }
            ),
            "normalises by 'Lowercase', 'BertNormalizer'; allowed: BertNormalizer",
        ),
        (side_file("vocab.txt", "a\0b\n" + "\n".join(VOCAB)), "line 1 has .*NUL"),
        (side_file("vocab.txt", "\n".join([*VOCAB, "x" * 900_000])), "characters"),
    ],
)
def test_values_that_cannot_be_are_named_at_once(tmp_path, breaks, said):
    folder = write_folder(tmp_path / "broken")
    breaks(folder)
    start = time.process_time()
    with pytest.raises(UserError, match=said) as error:
        opening.open_weights(str(folder))
    assert time.process_time() - start < 5
    assert "\n" not in str(error.value) and len(str(error.value)) < 1000


# ------------------------------------------------------------- TensorFlow's


def tf1_weights(tensors):
    """The same weights under the names and in the layout of the original code."""
    made = {"global_step": np.array(7, np.int64)}
    for name, value in tensors.items():
        name = name.replace("encoder.layer.", "encoder.layer_").replace(".", "/")
        if name.endswith("embeddings/weight"):
            name = name.removesuffix("/weight")
        elif "LayerNorm" in name:
            name = name.replace("/weight", "/gamma").replace("/bias", "/beta")
        elif name == "cls/predictions/bias":
            name = "cls/predictions/output_bias"
        elif name.endswith("/weight"):
            name, value = name.removesuffix("weight") + "kernel", value.T
        if not name.startswith("cls"):
            name = f"bert/{name}"
        made[name] = made[f"{name}/adam_m"] = value
    return made


def write_tf1(folder, arrays):
    """The checkpoint alone."""
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(arrays),
        shape_and_slices=[""] * len(arrays),
        tensors=[tf.constant(value) for value in arrays.values()],
    )


def write_original(folder):
    """An original BERT checkpoint with configuration and vocabulary."""
    write_tf1(folder, tf1_weights(torch_weights() | head_weights()))
    config = {
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        "hidden_act": "gelu",
        "max_position_embeddings": POSITIONS,
        "type_vocab_size": 2,
        "vocab_size": len(VOCAB),
    }
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return write_original(tmp_path_factory.mktemp("original"))


@pytest.fixture(scope="module")
def garden(original, tmp_path_factory):
    """A checkpoint of Model Garden's pre-trainer, by Model Garden's converter."""
    from official.nlp.configs import encoders
    from official.nlp.modeling import models
    from official.nlp.tools import tf1_bert_checkpoint_converter_lib as converter

    folder = tmp_path_factory.mktemp("garden")
    config = encoders.EncoderConfig(type="bert")
    config.get().override(
        {
            "vocab_size": len(VOCAB),
            "hidden_size": HIDDEN,
            "num_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": INNER,
            "max_position_embeddings": POSITIONS,
        }
    )
    pretrainer = models.BertPretrainerV2(encoder_network=encoders.build_encoder(config))
    pretrainer(pretrainer.inputs)
    converter.convert(
        checkpoint_from_path=str(original / "bert_model.ckpt"),
        checkpoint_to_path=str(folder / "temporary"),
        num_heads=HEADS,
        name_replacements=converter.BERT_V2_NAME_REPLACEMENTS,
        permutations=converter.BERT_V2_PERMUTATIONS,
        exclude_patterns=["adam", "Adam"],
    )
    converter.create_v2_checkpoint(
        pretrainer, str(folder / "temporary"), str(folder / "ckpt" / "pre"), "model"
    )
    (folder / "ckpt" / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return config, folder / "ckpt"


def test_original_checkpoint_gives_its_vectors(original, caplog):
    # The original code's `gelu` is the tanh form.
    with caplog.at_level(logging.INFO, logger="cmlm"):
        actual, trained = vectors(original)
    # The optimizer's slots are no weights of the encoder.
    assert "an original BERT checkpoint" in caplog.text and "adam" not in caplog.text
    np.testing.assert_allclose(
        actual, expected(torch_weights(), activation=gelu_tanh), atol=1e-5
    )
    by_prefix, _ = vectors(original / "bert_model.ckpt")
    np.testing.assert_array_equal(actual, by_prefix)
    assert trained.tokenizer.rules.lower_case


def test_an_original_checkpoint_gives_its_first_components(original, tmp_path):
    """Also an export of it, a folder of it, and a run that starts from it."""
    whole = expected(torch_weights(), activation=gelu_tanh)
    reading = Reading(dimensions=5, seq_length=POSITIONS)
    short = opening.open_encoder(str(original), reading)
    assert (short.dim, short.info["dimensions"]) == (5, 5)
    np.testing.assert_allclose(short.encode(TEXTS), whole[:, :5], atol=1e-5)
    opened = opening.open_weights(str(original), reading)
    huggingface_folder.write(opened, str(tmp_path), POSITIONS, normalize=False)
    again = opening.open_encoder(str(tmp_path))
    np.testing.assert_allclose(again.encode(TEXTS), whole[:, :5], atol=1e-5)
    assert again.info["fingerprint"] == short.info["fingerprint"]
    with pytest.raises(UserError, match="--dimensions is 17; allowed: 1 to 16, the"):
        opening.open_encoder(str(original), Reading(dimensions=17))
    config = toys.run_config("corpus.txt", **{"model.dimensions": 5})
    config.init_checkpoint = str(original)
    warm_start.adopt_for_run(config, {"model.dimensions"}, None, None)
    assert (config.model.dimensions, config.model.hidden_size) == (5, HIDDEN)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b'model_checkpoint_path: "%s/bert_model.ckpt"',
        b'model_checkpoint_path: "../elsewhere/bert_model.ckpt"',
        b'model_checkpoint_path: ".."',
        b'model_checkpoint_path: "subfolder"',
    ],
)
def test_a_checkpoint_file_leads_nowhere_else(original, tmp_path, content):
    for name in ("elsewhere", "here"):
        shutil.copytree(original, tmp_path / name)
    if b"%s" in content:
        content %= str(tmp_path / "elsewhere").encode()
    (tmp_path / "here" / "checkpoint").write_bytes(content)
    # Each names weights elsewhere.
    state = f'model_checkpoint_path: "{tmp_path}/elsewhere/bert_model.ckpt"'
    texts.write(tmp_path / "here" / "subfolder" / "checkpoint", state)
    texts.write(tmp_path / "checkpoint", state)
    assert foreign.find(f"{tmp_path}/here").path == f"{tmp_path}/here/bert_model.ckpt"


@pytest.mark.large
def test_model_garden_checkpoint_gives_the_same_vectors(garden):
    actual, trained = vectors(garden[1])
    np.testing.assert_allclose(
        actual, expected(torch_weights(), activation=gelu_tanh), atol=1e-5
    )
    assert trained.config.model.num_attention_heads == HEADS


@pytest.fixture
def dropout_with_generators():
    """Keras' other way; a SavedModel holds the generators, too."""
    keras.backend.experimental.enable_tf_random_generator()
    yield
    keras.backend.experimental.disable_tf_random_generator()


@pytest.mark.large
@pytest.mark.usefixtures("dropout_with_generators")
def test_saved_model_with_generators_and_a_masked_lm_gives_its_vectors(
    garden, tmp_path
):
    """By Model Garden's exporter, which traces each layer many times.

    `test_hub_contract` reads one without both.
    """
    import tensorflow_hub as hub
    from official.nlp.tools import export_tfhub_lib

    config, folder = copy.deepcopy(garden[0]), garden[1]
    config.get().num_layers = 1
    vocab_file = tmp_path / "uncased.txt"
    vocab_file.write_text("\n".join(VOCAB) + "\n")
    export_tfhub_lib.export_model(
        str(tmp_path / "hub"),
        encoder_config=config,
        model_checkpoint_path=tf.train.latest_checkpoint(str(folder)),
        with_mlm=True,
        vocab_file=str(vocab_file),
        do_lower_case=True,
    )
    actual, trained = vectors(tmp_path / "hub")
    assert trained.config.model.pooling == "pooler"
    assert trained.config.model.hidden_activation == "gelu_tanh"
    oracle = expected(torch_weights(), "pooler", activation=gelu_tanh, layers=1)
    np.testing.assert_allclose(actual, oracle, atol=1e-5)
    published = hub.load(str(tmp_path / "hub"))
    ids = tf.constant([tokens_of(TEXTS[0])])
    inputs = {
        "input_word_ids": ids,
        "input_mask": ids * 0 + 1,
        "input_type_ids": ids * 0,
    }
    np.testing.assert_allclose(actual[:1], published(inputs)["default"], atol=1e-5)


def test_a_configuration_that_contradicts_its_weights_is_named(original, tmp_path):
    for file in original.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "bert_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": 12}))
    with pytest.raises(UserError, match="num_hidden_layers=12, the weights.* 2"):
        foreign.find(str(tmp_path))
    path.unlink()
    with pytest.raises(UserError, match="has no bert_config.json beside it"):
        foreign.find(str(tmp_path))


def test_brackets_in_the_name_of_a_folder_are_no_pattern(original, tmp_path):
    folder = shutil.copytree(original, tmp_path / "bert[1]")
    # A neighbour that the name matches as a pattern.
    shutil.copytree(original, tmp_path / "bert1")
    with pytest.raises(
        UserError, match=r"path is .*bert\[1\].*; allowed: a path without"
    ):
        foreign.find(str(folder))
    (tmp_path / "bert1" / "more.index").touch()
    named = locating.weight_files(str(folder / "bert_model.ckpt"))
    ends = ("data-00000-of-00001", "index")
    assert named == [f"{folder}/bert_model.ckpt.{end}" for end in ends]
    (folder / "vocab.txt").rename(folder / "cased_vocab.txt")
    assert tf_hub._vocabulary_near(str(folder)) == f"{folder}/cased_vocab.txt"


def test_flipped_bits_in_a_checkpoint_are_named(original, tmp_path):
    for file in original.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (path,) = tmp_path.glob("*.data-*")
    content = bytearray(path.read_bytes())
    # In every tensor: TensorFlow orders them, the optimizer's too, by name.
    content[::16] = bytes(byte ^ 1 for byte in content[::16])
    path.write_bytes(content)
    with pytest.raises(
        UserError, match="tensor .*/.* cannot be read: .*bert_model.ckpt"
    ):
        foreign.find(str(tmp_path)).load()


@pytest.mark.large
@pytest.mark.parametrize("kind", ["checkpoint", "SavedModel"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "graph"])
def test_a_damaged_object_graph_is_named(garden, toy_export, tmp_path, kind, damage):
    """TensorFlow writes it last, so a file that was cut off lacks it first."""
    source = garden[1] if kind == "checkpoint" else f"{toy_export.path}/encoder"
    folder = Path(shutil.copytree(source, tmp_path / "damaged"))
    (path,) = folder.rglob("*.data-*")
    content = path.read_bytes()
    if damage == "graph":
        reader = tf.train.load_checkpoint(str(path).partition(".data-")[0])
        names = reader.get_variable_to_shape_map()
        tensors = {name: reader.get_tensor(name) for name in names}
        tensors[tf_checkpoints.OBJECT_GRAPH] = b"no graph"
        tf.raw_ops.SaveV2(
            prefix=str(path).partition(".data-")[0],
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=[tf.constant(value) for value in tensors.values()],
        )
    else:
        flipped = content[:-40] + bytes(byte ^ 1 for byte in content[-40:])
        path.write_bytes(content[:-40] if damage == "cut" else flipped)
    with pytest.raises(UserError, match=f"{folder}.*CHECKPOINTABLE_OBJECT") as refused:
        foreign.find(str(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("names", ["nothing", "a lost one"])
def test_the_newest_checkpoint_of_a_copied_run_counts(tmp_path, names):
    """With or without its file `checkpoint`, as `restoring` finds it."""
    model = tf.train.Checkpoint(model=toys.model(num_layers=1))
    for step in (5, 10):
        model.write(str(tmp_path / f"ckpt-{step}"))
    if names != "nothing":
        (tmp_path / "checkpoint").write_text('model_checkpoint_path: "ckpt-70"\n')
    assert foreign.find(str(tmp_path)) is None
    assert restoring.find(str(tmp_path)) == str(tmp_path / "ckpt-10")


def test_several_checkpoints_of_other_names_are_a_choice(original, tmp_path):
    for file in original.glob("bert_model.ckpt*"):
        for name in ("a", "b"):
            (tmp_path / file.name.replace("bert_model", name)).write_bytes(
                file.read_bytes()
            )
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "c.ckpt"\n')
    with pytest.raises(UserError, match="has 2 checkpoints; allowed: one of them"):
        foreign.find(str(tmp_path))


@pytest.mark.large
@pytest.mark.parametrize("pooling", pooling_lib.POOLINGS)
@pytest.mark.parametrize("dimensions", [0, 5])
def test_an_encoder_without_export_json_shows_its_reading(
    tmp_path, pooling, dimensions
):
    made = toys.model(num_layers=1, pooling=pooling, dimensions=dimensions).encoder
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text("\n".join(VOCAB) + "\n")
    rules.write(str(vocab_file), rules.UNCASED)
    record = rules.path_of(str(vocab_file))
    exported, signatures = encoder.build(made, str(vocab_file), True, record)
    tf.saved_model.save(exported, str(tmp_path / "encoder"), signatures)
    source = tf_hub.read(str(tmp_path / "encoder"))
    assert source.model["pooling"] == pooling
    assert source.model.get("dimensions", 0) == dimensions
    (warning,) = source.warnings
    assert "export.json of this export is missing" in warning


@pytest.mark.large
def test_encoder_of_our_own_export_is_read_back(toy_export, caplog):
    trained = toy_export.trained
    with caplog.at_level(logging.INFO, logger="cmlm"):
        again = opening.open_weights(f"{toy_export.path}/encoder")
    # Counters, random states and the flag of lower case are no weights.
    assert "a TF Hub SavedModel" in caplog.text and "unused" not in caplog.text
    assert again.config.model.as_dict() == {
        **trained.config.model.as_dict(),
        "preset": "base",
        "seq_length": model_dirs.SEQ_LENGTH,
        # What a SavedModel does not say.
        **{
            name: again.config.model.as_dict()[name]
            for name in ("dropout_rate", "attention_dropout_rate", "initializer_range")
        },
    }
    before = weights.read(trained.encoder, trained.config.model)
    after = weights.read(again.encoder, again.config.model)
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])


def leads_to(op, given=(), called=""):
    """Changes the graph: an op computes the first output of the encoder's call."""

    def change(saved):
        graph = saved.meta_graphs[0].graph_def.library.function
        call = tf_hub._child_of_root(saved, "__call__")
        (name,) = call.function.concrete_functions[:1]
        (function,) = [each for each in graph if each.signature.name == name]
        node = function.node_def.add(name="mine", op=op, input=given)
        if called:
            node.attr["f"].func.name = name
        function.ret[function.signature.output_arg[0].name] = "mine:output:0"

    return change


def without_call(saved):
    for child in saved.meta_graphs[0].object_graph_def.nodes[0].children:
        child.node_id = 1_000_000


def with_epsilon_of_no_type(saved):
    saved.meta_graphs[0].graph_def.node.add(op="Const", name="a/batchnorm/add/y")


@pytest.mark.large
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (leads_to("Identity", ["mine:output:0"]), "over 200 steps from an output"),
        (leads_to("PartitionedCall", called="itself"), "over 200 steps from an output"),
        (leads_to("Identity"), "index"),
        (without_call, "index"),
        (with_epsilon_of_no_type, "type"),
    ],
    ids=["circle", "recursion", "no input", "no node", "no type"],
)
def test_a_graph_that_leads_nowhere_is_damaged(toy_export, tmp_path, change, said):
    folder = shutil.copytree(f"{toy_export.path}/encoder", tmp_path / "encoder")
    saved = tf_hub._parse(str(folder / "saved_model.pb"))
    change(saved)
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    said = f"{folder} has a damaged graph: .*{said}"
    with pytest.raises(UserError, match=said) as refused:
        tf_hub.read(str(folder))
    assert "\n" not in str(refused.value)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> str:
    """A run of one layer."""
    return model_dirs.write(tmp_path_factory.mktemp("source") / "run")


@pytest.mark.large
def test_a_start_from_an_export_equals_a_start_from_its_run(tmp_path):
    prompts = ("query=a=b: ", "document=")
    settings = {"task.cmlm.train_data.seq_length": 20}
    run = model_dirs.write(tmp_path / "source", **settings)
    config = model_dir.read_config(run)
    config.model.normalized, config.model.prompts = True, prompts
    model_dir.write_config(run, config)
    trained = opening.open_weights(run)
    export = str(tmp_path / "export")
    saved_models.Export(trained, export, 24).write()

    again = opening.open_weights(export)
    assert (again.seq_length, again.trained_seq_length) == (24, 20)
    assert again.config.model.normalized
    assert tuple(again.config.model.prompts) == prompts
    assert fingerprints.fingerprint(again) == fingerprints.fingerprint(trained)
    about = json_files.read(f"{export}/export.json")
    assert about["fingerprint"] == fingerprints.fingerprint(trained)
    assert about["trained_seq_length"] == 20
    # Exports of an export state it, too; their configuration is that of a start.
    stated = fingerprints.describe(again, 24)
    assert stated["trained_seq_length"] == again.trained_seq_length == 20
    # The checksums are those of the file before.
    Path(export, "checksums.json").unlink()
    second = {**about, **stated, "config": again.config.as_dict()}
    json_files.write(f"{export}/export.json", second)
    assert opening.open_weights(export).trained_seq_length == 20
    longer = ["task.cmlm.train_data.seq_length=30"]
    assert run_settings(tmp_path, export, longer).longest_sentence == 30

    # An export of an early version.
    del about["trained_by_run"]
    about["seq_length"] = 20
    json_files.write(f"{export}/export.json", about)
    for own in (9, 30):
        more = [f"task.cmlm.train_data.seq_length={own}"]
        starts = [run_settings(tmp_path, path, more) for path in (run, export)]
        before, after = (start.model.as_dict() for start in starts)
        # The trainer fills in the rows of a run, and weights fill in the preset.
        filled = {name: after[name] for name in ("preset", "vocab_size")}
        assert after == before | filled
        assert starts[1].longest_sentence == max(20, own)


@pytest.mark.large
def test_a_checkpoint_of_a_run_opens_the_run(source):
    by_path = opening.open_encoder(f"{source}/ckpt-3").encode(TEXTS)
    np.testing.assert_array_equal(by_path, opening.open_encoder(source).encode(TEXTS))


# ---------------------------------------------------------------- warm start


def run_settings(tmp_path, folder, more=()):
    """A run from foreign weights, as `cmlm.train` configures it."""
    text = toys.write_corpus(tmp_path / "text.txt")
    settings = [
        "model.num_views=3",
        "task.cmlm.train_data.global_batch_size=8",
        "task.cmlm.train_data.seq_length=16",
        "task.cmlm.passages=false",
        "trainer.optimizer.warmup_steps=2",
        "trainer.train_steps=20",
        # Most words of the text are [UNK] in the toy vocabulary.
        "vocabulary.max_unknown_share=1",
        *more,
    ]
    config, given = loading.load_given("cmlm/english", (), settings)
    config.task.cmlm.train_data.input_path = text
    config.init_checkpoint = str(folder)
    begun = model_dir.begun_config(str(tmp_path / "run"))
    warm_start.adopt_for_run(config, given, begun, str(tmp_path / "run"))
    config.validate()
    return config


@pytest.mark.large
def test_a_run_starts_with_the_form_of_the_run_that_it_starts_from(tmp_path):
    form = {"model.embedding_size": 6, "model.relative_positions": True}
    settings = form | model_dirs.MASKED_LM
    source = model_dirs.write(tmp_path / "source", **settings)
    config = toys.run_config("text.txt", init_checkpoint=source)
    warm_start.adopt_for_run(config, (), None, None)
    assert config.model.embedding_size == 6
    assert config.model.relative_positions


@pytest.mark.parametrize(
    "setting, said",
    [
        (
            "model.preset=tiny",
            "model.preset is 'tiny', which has num_layers=2; allowed: a preset with "
            "num_layers=1 or none, as {} says",
        ),
        ("model.preset=tiny,model.num_layers=1", "preset with hidden_size=16 or none"),
        ("model.num_layers=3", "model.num_layers is 3; allowed: 1, as {} says"),
        ("model.embedding_size=8", "model.embedding_size is 8; allowed: 0, as {} says"),
        ("model.type_vocab_size=4", "type_vocab_size is 4; allowed: 2, as {} says"),
        ("model.relative_positions=true", "True; allowed: False, as {} says"),
        ("model.hidden_size=16,model.num_layers=1", None),
        # The width of the encoder, which 0 means.
        ("model.embedding_size=16", None),
    ],
)
def test_a_run_has_the_shape_of_the_run_that_it_starts_from(source, setting, said):
    """The command says so before it builds a model of the wrong shape."""
    config, given = loading.load_given("labse/dual_encoder", (), [setting])
    config.init_checkpoint = source
    if said is None:
        warm_start.adopt_for_run(config, given, None, None)
        assert config.model.intermediate_size == toys.encoder_config().intermediate_size
        return
    with pytest.raises(UserError, match=re.escape(said.format(source))):
        warm_start.adopt_for_run(config, given, None, None)


@pytest.mark.usefixtures("eager")
def test_a_run_starts_from_foreign_weights_and_resumes_without_them(tmp_path, caplog):
    tensors = torch_weights(prefix="bert.") | head_weights()
    folder = write_folder(tmp_path / "bert", tensors)
    config = run_settings(tmp_path, folder)
    assert (config.model.num_layers, config.model.hidden_size) == (LAYERS, HIDDEN)
    with caplog.at_level(logging.INFO, logger="cmlm"):
        run = build(Stage(config, str(tmp_path / "run")))
    model = run.trainer.model
    table = model.encoder.embedding_table.numpy()
    words = tensors["bert.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(table, words)
    head = model.parts["masked_lm"]
    dense = tensors["cls.predictions.transform.dense.weight"]
    np.testing.assert_array_equal(head.dense.kernel.numpy(), dense.T)
    np.testing.assert_array_equal(head.bias.numpy(), tensors["cls.predictions.bias"])
    assert (tmp_path / "run" / "vocab.txt").read_text().split() == VOCAB
    assert "encoder, masked_lm" in caplog.text
    run.manager.save(1)

    untrained = opening.open_weights(f"untrained:{tmp_path}/run").encoder
    begun = run.trainer.model.encoder
    for a, b in zip(untrained.get_weights(), begun.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for file in folder.iterdir():
        file.unlink()
    with pytest.raises(UserError, match=f"untrained:.*: {folder} holds no weights"):
        opening.open_weights(f"untrained:{tmp_path}/run")
    again = build(Stage(run_settings(tmp_path, folder), str(tmp_path / "run")))
    words = again.trainer.model.encoder.embedding_table.numpy()
    np.testing.assert_array_equal(words, table)


@pytest.mark.parametrize(
    "setting, said",
    [
        ("model.num_layers=3", "model.num_layers is 3; allowed: 2, as .* says"),
        ("model.preset=base", "'base', which has num_layers=12; allowed: .*=2 or none"),
        (
            "model.max_position_embeddings=24",
            r"is 24; allowed: 27 \(24 and model.num_views\), as .* says",
        ),
        (
            "vocabulary.lower_case=false",
            "lower_case is False; allowed: True, as .* says",
        ),
        ("model.relative_positions=true", "is True; allowed: False, as .* says"),
    ],
)
def test_a_contradiction_names_both(tmp_path, setting, said):
    folder = write_folder(tmp_path / "bert")
    with pytest.raises(UserError, match=said):
        run_settings(tmp_path, folder, [setting])


@pytest.mark.large
@pytest.mark.parametrize("recipe_pooling", ["mean", "max", "cls"])
@pytest.mark.parametrize("source_pooling", ["mean", "cls"])
def test_a_warm_start_keeps_the_pooling_of_the_recipe(
    tmp_path, caplog, monkeypatch, recipe_pooling, source_pooling
):
    folder = write_folder(tmp_path / "bert")
    name = {"mean": "mean_tokens", "cls": "cls_token"}[source_pooling]
    pool = {f"pooling_mode_{name}": True}
    write_modules(folder, ("Pooling", "1_Pooling", pool))
    assert opening.open_weights(str(folder)).config.model.pooling == source_pooling
    load = loading.load_given

    def load_given(*args):
        config, given = load(*args)
        config.model.pooling = recipe_pooling
        return config, given

    monkeypatch.setattr(loading, "load_given", load_given)
    with caplog.at_level(logging.INFO, logger="cmlm"):
        config = run_settings(tmp_path, folder)
    assert config.model.pooling == recipe_pooling
    named = f"pooling: {recipe_pooling}, as the run is configured; {folder} pools by "
    assert (named + source_pooling in caplog.text) == (recipe_pooling != source_pooling)


@pytest.mark.large
def test_a_source_without_a_pooler_names_the_poolings_that_need_none(tmp_path):
    tensors = {k: v for k, v in torch_weights().items() if "pooler" not in k}
    folder = write_folder(tmp_path / "bert", tensors)
    config = run_settings(tmp_path, folder, ["model.pooling=pooler"])
    others = ", ".join(
        n for n, row in pooling_lib.POOLINGS.items() if not row.through_pooler
    )
    message = f"model.pooling is 'pooler'; allowed: {others}, as .* has no pooler"
    with pytest.raises(UserError, match=message):
        build(Stage(config, str(tmp_path / "run")))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["foreign", "own"])
def test_a_run_killed_before_its_first_checkpoint_keeps_the_vocabulary(tmp_path, kind):
    directory = str(tmp_path / "run")
    source = tmp_path / "source"
    (write_folder if kind == "foreign" else model_dirs.write)(source)
    for _ in range(2):
        text = toys.write_corpus(tmp_path / "text.txt")
        values = {"init_checkpoint": str(source), "vocabulary.max_unknown_share": 1}
        config = toys.run_config(text, **values)
        begun = model_dir.begun_config(directory)
        warm_start.adopt_for_run(config, (), begun, directory)
        build(Stage(config, directory))
        assert vocabulary_file.same(f"{directory}/vocab.txt", f"{source}/vocab.txt")


def test_what_is_given_stands_where_weights_leave_the_choice(tmp_path):
    folder = write_folder(tmp_path / "bert")
    config = run_settings(
        tmp_path, folder, ["model.pooling=cls,model.dropout_rate=0.3"]
    )
    assert (config.model.pooling, config.model.dropout_rate) == ("cls", 0.3)
    other = tmp_path / "vocab.txt"
    other.write_text("\n".join([*VOCAB[:-1], "other"]) + "\n")
    config.vocabulary.file = str(other)
    with pytest.raises(UserError, match="differs from .*vocab.txt"):
        build(Stage(config, str(tmp_path / "run")))


def test_a_run_trains_by_its_recipe_and_not_by_the_folder(tmp_path):
    stored = {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    folder = write_folder(tmp_path / "bert", **stored, initializer_range=0.5)
    model = run_settings(tmp_path, folder).model
    assert (model.dropout_rate, model.attention_dropout_rate) == (0.1, 0.1)
    assert model.initializer_range == 0.02
    opened = opening.open_weights(str(folder)).config.model
    assert (opened.dropout_rate, opened.attention_dropout_rate) == (0.3, 0.2)


@pytest.mark.large
def test_a_round_trip_keeps_length_pooling_scaling_and_prompts(tmp_path):
    """What the folder says, through a run that reads shorter texts, and back."""
    folder = write_folder(tmp_path / "bert")
    modes = {"pooling_mode_cls_token": True, "word_embedding_dimension": HIDDEN}
    write_modules(folder, ("Pooling", "1_Pooling", modes), ("Normalize", "2_Norm", {}))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    prompts = {"query": "a=b, c: ", "document": ""}
    (folder / modules.PROMPTS).write_text(json.dumps({"prompts": prompts}))
    settings = ["model.pooling=source", "vocabulary.max_unknown_share=1"]
    config = run_settings(tmp_path, folder, settings)
    run = build(Stage(config, str(tmp_path / "run")))
    run.manager.save(1)
    # A run from the run has it, too.
    second = run_settings(tmp_path, tmp_path / "run", settings)
    trained = opening.open_weights(str(tmp_path / "run"))
    for model in (second.model, trained.config.model):
        assert (model.pooling, model.normalized, model.seq_length) == ("cls", True, 20)
    assert trained.seq_length == 20
    back = tmp_path / "back"
    back.mkdir()
    model = trained.config.model
    huggingface_folder.write(trained, str(back), trained.seq_length, model.normalized)
    source = foreign.find(str(back))
    assert (source.model["pooling"], source.normalized) == ("cls", True)
    assert source.seq_length == 20
    written = json.loads((back / modules.PROMPTS).read_text())
    assert written == {"prompts": prompts, "default_prompt_name": None}


def test_a_run_without_a_source_pools_by_mean():
    config = loading.load("adapt/pairs")
    config.validate()
    assert config.model.pooling == "mean"


@pytest.mark.parametrize(
    "name", ["sentence-transformers/all-MiniLM-L6-v2", "bert-base"]
)
def test_a_name_of_the_hub_is_answered_with_its_download(name):
    with pytest.raises(UserError, match=f"`hf download {name} --local-dir="):
        foreign.find(name)
    with pytest.raises(UserError) as error:
        foreign.find(f"/no/folder/{name}")
    assert "hf download" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("custom_st.Pooling", "module 'custom_st.Pooling' at position 1; allowed"),
        ("sentence_transformers.models.Normalize", "has no module Pooling"),
    ],
)
def test_a_chain_without_pooling_of_sentence_transformers_is_refused(
    tmp_path, kind, said
):
    names = ("sentence_transformers.models.Transformer", kind)
    entries = [{"type": name, "path": ""} for name in names]
    (tmp_path / "modules.json").write_text(json.dumps(entries))
    with pytest.raises(UserError, match=said):
        modules.read(str(tmp_path))


def test_an_adapter_beside_the_weights_is_refused(tmp_path):
    folder = write_folder(tmp_path / "bert")
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match="adapter_config.json adds an adapter"):
        foreign.find(str(folder))


def test_weights_that_are_replaced_while_they_are_read_are_refused(tmp_path):
    folder = write_folder(tmp_path / "bert")
    stored = tensors_lib.Tensors(str(folder))
    name = next(iter(stored))
    before = stored.read(name)
    safetensors.numpy.save_file({name: before + 1}, tmp_path / "other")
    (tmp_path / "other").rename(folder / tensors_lib.FILE_NAME)
    with pytest.raises(UserError, match="was replaced while it was read; try again"):
        stored.read(name)


def test_weights_on_another_machine_are_refused():
    folder = "ram://foreign_weights"
    tf.io.gfile.makedirs(folder)
    with tf.io.gfile.GFile(f"{folder}/{tensors_lib.FILE_NAME}", "w") as file:
        file.write("x")
    with pytest.raises(UserError, match="is not a local file; allowed: a copy on"):
        tensors_lib.Tensors(folder)


@pytest.mark.parametrize("is_absolute", [False, True])
def test_a_module_outside_of_the_folder_is_refused(tmp_path, is_absolute):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text('{"pooling_mode": "cls"}')
    (tmp_path / "st").mkdir()
    where = str(tmp_path / "out") if is_absolute else "../out"
    entries = [{"type": "sentence_transformers.models.Pooling", "path": where}]
    (tmp_path / "st" / "modules.json").write_text(json.dumps(entries))
    said = "names '.*out'; allowed: paths inside the folder"
    with pytest.raises(UserError, match=said):
        modules.read(str(tmp_path / "st"))
