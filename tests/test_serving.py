"""The serving model's signatures: every kind of request has a defined answer."""

import warnings

import model_dirs
import numpy as np
import pytest
import servers
import tensorflow as tf

from cmlm.common import arrays
from cmlm.common import components as components_lib
from cmlm.encoders import batching
from cmlm.encoders.graph import SentenceGraph
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.tokenization.word_pieces import WordPiece
from export import serving

TEXTS = [text.encode() for text in model_dirs.SENTENCES]
SIGNATURES = {"serving_default", "normalized", "tensors", "pcr", "pcr_tensors"}


@pytest.fixture(scope="module")
def served(toy_export):
    return tf.saved_model.load(f"{toy_export.path}/serving/1")


@pytest.fixture(scope="module")
def ask(served):
    """ask(signature, **inputs) gives the outputs as arrays."""

    def ask(signature, **inputs):
        types = {"text": tf.string, "language": tf.string}
        tensors = {
            name: tf.constant(value, types.get(name, tf.int32))
            for name, value in inputs.items()
        }
        outputs = served.signatures[signature](**tensors)
        return {name: value.numpy() for name, value in outputs.items()}

    return ask


@pytest.fixture(scope="module")
def session(toy_export):
    """As `ask`, in a session."""
    model = servers.SessionModel(f"{toy_export.path}/serving/1")
    return lambda signature, **inputs: model.predict(signature, inputs)


@pytest.fixture(scope="module")
def vectors(ask):
    return ask("serving_default", text=TEXTS)["default"]


def tensors_of(toy_export, texts, pad=0):
    """The three tensors, with `pad` columns more than the longest needs."""
    tokens = toy_export.trained.tokenizer.encode(
        tf.constant(texts), model_dirs.SEQ_LENGTH
    )
    ids = np.pad(tokens.to_tensor().numpy(), [[0, 0], [0, pad]])
    mask = np.pad(tf.ones_like(tokens).to_tensor().numpy(), [[0, 0], [0, pad]])
    return {
        "input_word_ids": ids,
        "input_mask": mask,
        "input_type_ids": np.zeros_like(ids),
    }


# ---------------------------------------------------------------- signatures


def test_signatures_and_their_types(served):
    assert set(served.signatures) == SIGNATURES
    text = [None], tf.string
    tokens = [None, None], tf.int32
    expected = {
        "text": text,
        "language": text,
        "language_index": ([None], tf.int32),
        **dict.fromkeys(("input_word_ids", "input_mask", "input_type_ids"), tokens),
    }
    outputs = {
        **dict.fromkeys(("default", "normalized", "pcr"), ([None, 16], tf.float32)),
        "language_index": ([None], tf.int32),
    }
    for signature in served.signatures.values():
        for specs, known in (
            (signature.structured_input_signature[1], expected),
            (signature.structured_outputs, outputs),
        ):
            for name, spec in specs.items():
                assert (spec.shape.as_list(), spec.dtype) == known[name], name


def test_without_components_there_is_no_pcr(toy_export):
    trained = toy_export.trained
    graph = SentenceGraph(trained.tokenizer, trained.encoder, 37)
    _, signatures = serving.build(graph, trained.config.model)
    assert set(signatures) == {"serving_default", "normalized", "tensors"}


def test_vectors_are_the_checkpoints(vectors, toy_export):
    expected = model_dirs.oracle_vectors(toy_export.trained, TEXTS)
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


def test_normalized_has_length_one(ask, vectors):
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.01
    normalized = ask("normalized", text=TEXTS)["normalized"]
    np.testing.assert_allclose(normalized, vectors / lengths, atol=1e-6)


@pytest.mark.parametrize("size", [0, 1e-44, 1e-30, 1e-18, 1e-7, 1, 1e18, 1e30])
def test_vectors_of_every_size_get_length_one(size):
    directions = np.random.default_rng(0).normal(size=[5, 7])
    vectors = (size * directions).astype(np.float32)
    # In double precision, their squares are numbers.
    exact = vectors.astype(np.float64)
    expected = exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-99)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mixed = arrays.unit_length(np.concatenate([vectors, np.eye(7)]))
    np.testing.assert_allclose(mixed[:5], expected, atol=1e-6)
    np.testing.assert_array_equal(mixed[5:], np.eye(7))
    if size == 0 or 1e-7 <= size <= 1e18:
        found = serving.OUTPUTS["normalized"].compute(tf.constant(vectors), {}, {})
        np.testing.assert_allclose(found["normalized"], expected, atol=1e-6)


# 100 columns are more than the encoder has positions: what is only padding is not read.
@pytest.mark.parametrize("pad", [0, 3, 100])
def test_tensors_give_the_vectors_of_text(ask, vectors, toy_export, pad):
    tensors = tensors_of(toy_export, TEXTS, pad)
    model_dirs.assert_same(ask("tensors", **tensors)["default"], vectors)


@pytest.mark.parametrize("name", ["input_word_ids", "input_mask", "input_type_ids"])
@pytest.mark.parametrize("cut", [np.s_[:-1], np.s_[:1], np.s_[:, :-1]])
def test_tensors_of_several_shapes_are_refused(ask, session, toy_export, name, cut):
    tensors = tensors_of(toy_export, TEXTS)
    tensors[name] = tensors[name][cut]
    index = np.zeros(len(tensors["input_mask"]), np.int32)
    for signature, inputs in (
        ("tensors", tensors),
        ("pcr_tensors", {**tensors, "language_index": index}),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="one shape for the"):
            ask(signature, **inputs)
        # In a session, as a model server calls it.
        with pytest.raises(ValueError, match="allowed: equal lengths") as error:
            session(signature, **inputs)
        assert "one shape for the" in str(error.value.__cause__)


def test_tensors_heed_segments_and_inner_masks(ask, toy_export):
    tensors = tensors_of(toy_export, [b"the cat sat on the mat"])
    plain = ask("tensors", **tensors)["default"]
    segments = {**tensors, "input_type_ids": np.ones_like(tensors["input_mask"])}
    assert np.abs(ask("tensors", **segments)["default"] - plain).max() > 0.01
    # A hole in the mask: the words behind it still count.
    mask = tensors["input_mask"].copy()
    mask[0, 2] = 0
    holed = {**tensors, "input_mask": mask}
    changed = {**holed, "input_word_ids": tensors["input_word_ids"].copy()}
    changed["input_word_ids"][0, -2] = 12
    assert np.abs(ask("tensors", **holed)["default"] - plain).max() > 0.01
    difference = (
        ask("tensors", **holed)["default"] - ask("tensors", **changed)["default"]
    )
    assert np.abs(difference).max() > 0.01


def test_ids_out_of_range_leave_the_other_rows_of_a_batch(ask, vectors, toy_export):
    tensors = tensors_of(toy_export, TEXTS, pad=100)
    odd = {name: value.copy() for name, value in tensors.items()}
    words, types = odd["input_word_ids"], odd["input_type_ids"]
    tokenizer = toy_export.trained.tokenizer
    words[0, 1:4] = tokenizer.vocab_size, -1, 2**31 - 1
    types[1, :2] = 2, -1
    # More tokens than positions.
    odd["input_mask"][2] = 1
    found = ask("tensors", **odd)["default"]
    model_dirs.assert_same(found[3:], vectors[3:])
    tensors["input_word_ids"][0, 1:4] = tokenizer.unk_id
    positions = toy_export.trained.config.model.max_position_embeddings
    tensors["input_mask"][2, :positions] = 1
    model_dirs.assert_same(ask("tensors", **tensors)["default"], found)


# ---------------------------------------------------------------------- pcr


def test_pcr_removes_the_components_of_each_language(ask, vectors, toy_export):
    languages = ["de", "zh-hant", "fr", "DE", "", "Zh-Hant", "d\u00e9"]
    answer = ask("pcr", text=TEXTS, language=languages)
    assert list(answer["language_index"]) == [0, 1, -1, 0, -1, 1, -1]
    table = toy_export.components.table
    for row, index in enumerate(answer["language_index"]):
        if index < 0:
            # Not one bit of a vector of an unknown language changes.
            np.testing.assert_array_equal(answer["pcr"][row], vectors[row])
            continue
        components = table[index].astype(np.float64)
        expected = vectors[row] - components.T @ (components @ vectors[row])
        np.testing.assert_allclose(answer["pcr"][row], expected, atol=1e-6)
        np.testing.assert_allclose(components @ answer["pcr"][row], 0, atol=1e-6)
        assert np.abs(components @ vectors[row]).max() > 0.1


def test_pcr_of_tensors_takes_the_index(ask, toy_export):
    index = [0, 1, -1, 2, 99, -7, 1]
    tensors = tensors_of(toy_export, TEXTS)
    answer = ask("pcr_tensors", **tensors, language_index=index)
    assert list(answer["language_index"]) == [0, 1, -1, -1, -1, -1, 1]
    names = [*model_dirs.LANGUAGES, "?"]
    languages = [names[row] for row in answer["language_index"]]
    model_dirs.assert_same(
        answer["pcr"], ask("pcr", text=TEXTS, language=languages)["pcr"]
    )


def test_one_language_is_not_spread_over_all_texts(ask, toy_export):
    with pytest.raises(tf.errors.InvalidArgumentError, match="one language for each"):
        ask("pcr", text=TEXTS, language=["de"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="one language for each"):
        ask("pcr_tensors", **tensors_of(toy_export, TEXTS), language_index=[0])


# ------------------------------------------------------- kinds of requests


@pytest.mark.parametrize("signature", sorted(SIGNATURES))
def test_an_empty_request_gives_no_vectors(ask, served, signature):
    specs = served.signatures[signature].structured_input_signature[1]
    nothing = {
        name: np.zeros([0] + [5] * (spec.shape.rank - 1))
        for name, spec in specs.items()
    }
    for name in ("text", "language"):
        if name in nothing:
            nothing[name] = []
    answer = ask(signature, **nothing)
    vectors = answer.pop(next(name for name in answer if name != "language_index"))
    assert vectors.shape == (0, 16)
    assert all(value.shape == (0,) for value in answer.values())


def test_a_row_without_tokens_is_finite(ask):
    names = ("input_word_ids", "input_mask", "input_type_ids")
    zeros = dict.fromkeys(names, np.zeros([2, 3], np.int32))
    answer = ask("tensors", **zeros)["default"]
    assert answer.shape == (2, 16) and np.isfinite(answer).all()


def test_bytes_that_are_not_utf8_are_replacement_characters(ask):
    broken = [b"the \xff cat", b"\xc3", b"cat \xed\xa0\x80"]
    clean = [text.decode(errors="replace").encode() for text in broken]
    assert clean[0] == "the \ufffd cat".encode()
    answer = ask("serving_default", text=broken + clean[:2])["default"]
    assert np.isfinite(answer).all()
    model_dirs.assert_same(answer[:2], answer[3:])


def test_a_megabyte_is_cut(ask):
    megabyte = b"the cat sat on the mat . " * 42_000
    assert len(megabyte) > 1 << 20
    head = megabyte[:300]
    answer = ask("serving_default", text=[megabyte, b"dog", head])["default"]
    model_dirs.assert_same(answer[0], answer[2])
    one_word = ask("serving_default", text=[b"a" * (1 << 20), b"[UNK]"])["default"]
    assert np.isfinite(one_word).all()


def test_ten_thousand_strings(ask):
    random = np.random.default_rng(3)
    words = [word for word in model_dirs.VOCAB[5:20] if not word.startswith("##")]
    texts = [
        " ".join(random.choice(words, random.integers(0, 60))) for _ in range(10_000)
    ]
    answer = ask("serving_default", text=texts)["default"]
    assert answer.shape == (10_000, 16)
    for row in random.integers(0, 10_000, 20):
        alone = ask("serving_default", text=[texts[row]])["default"]
        model_dirs.assert_same(answer[row], alone[0])


@pytest.mark.parametrize("signature", ["serving_default", "tensors"])
def test_a_vector_does_not_depend_on_its_batch(ask, vectors, toy_export, signature):
    for row, text in enumerate(TEXTS):
        for others in ([], TEXTS[5:6] * 9, TEXTS[::-1]):
            texts = [text, *others]
            inputs = {"text": texts}
            if signature == "tensors":
                inputs = tensors_of(toy_export, texts)
            answer = ask(signature, **inputs)["default"]
            model_dirs.assert_same(answer[0], vectors[row])


# ------------------------------------------------------------------- portions


@pytest.fixture
def portions(tmp_path):
    """Serves an encoder whose vector is what it was given: rows, width, real tokens."""
    vocab_file = tmp_path / "vocab.txt"
    vocab_file.write_text("\n".join(model_dirs.VOCAB) + "\n")

    def encoder(inputs):
        mask = tf.cast(inputs["input_mask"], tf.float32)
        rows, width = tf.unstack(tf.cast(tf.shape(mask), tf.float32))
        shape = tf.stack([rows, width])[tf.newaxis]
        shape = tf.tile(shape, [tf.shape(mask)[0], 1])
        real = tf.reduce_sum(mask, axis=1, keepdims=True)
        return {"default": tf.concat([shape, real], axis=1)}

    graph = SentenceGraph(WordPiece(str(vocab_file)), encoder, 100)
    return serving.build(graph, EncoderConfig())[1]


@pytest.mark.parametrize("signature", ["serving_default", "tensors"])
def test_work_is_in_bounded_portions_of_like_length(portions, signature):
    lengths = np.random.default_rng(0).integers(0, 130, 500)
    if signature == "tensors":
        lengths = np.minimum(lengths, 98)
        mask = (np.arange(200) < lengths[:, None] + 2).astype(np.int32)
        answer = portions[signature](mask, mask, mask)["default"]
    else:
        texts = tf.constant([" ".join(["cat"] * length) for length in lengths])
        answer = portions[signature](texts)["default"]
    rows, width, real = answer.numpy().astype(int).T
    np.testing.assert_array_equal(real, np.minimum(lengths + 2, 100))
    # Memory: never more than so many tokens at a time.
    assert (rows * width <= batching.MOST_TOKENS).all()
    assert len(np.unique(width)) > 5
    # Width: the longest of the portion, not of the request.
    for portion in np.unique(width):
        assert real[width == portion].max() == portion
    # The graph's portions are those of batching.length_batches.
    for portion in batching.length_batches(np.minimum(lengths + 2, 100)):
        assert (rows[portion] == len(portion)).all()
        assert (width[portion] == real[portion].max()).all()
    # Padding would be half of everything without the portions.
    assert real.sum() / width.sum() > 0.9


def test_one_request_is_as_wide_as_its_longest(portions):
    texts = tf.constant(["cat", "cat cat cat", ""])
    answer = portions["serving_default"](texts)["default"].numpy()
    np.testing.assert_array_equal(answer, [[3, 5, 3], [3, 5, 5], [3, 5, 2]])


def test_numpy_and_the_graph_remove_alike(ask, vectors, toy_export):
    found = toy_export.components.languages["de"]
    answer = ask("pcr", text=TEXTS, language=["de"] * len(TEXTS))["pcr"]
    expected = components_lib.remove(vectors, found.components)
    np.testing.assert_allclose(answer, expected, atol=1e-6)
