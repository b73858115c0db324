"""The tokenizer gives BERT's ids, in tf.data and in an export alike."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text

from cmlm.data.tokenization import Tokenizer

WORDS = "the cat sat on mat un ##believ ##able ##s café cafe ! , . \ufffd".split()
VOCAB = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
TEXTS = [
    "The cats sat on the MAT, unbelievable!",
    "",
    "   ",
    "Café xyzzy [MASK] the.",
    "the" * 60,
    "the" * 200,
    "the" * 201,
]


@pytest.fixture
def vocab_file(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(VOCAB) + "\n")
    return str(path)


def pieces(ids):
    return [[VOCAB[i] for i in row] for row in ids.to_list()]


@pytest.mark.parametrize("lower_case", [True, False])
def test_ids_are_those_of_the_slow_bert_tokenizer(vocab_file, lower_case):
    oracle = tf_text.BertTokenizer(
        vocab_file,
        max_bytes_per_word=600,
        lower_case=lower_case,
        token_out_type=tf.int32,
    )
    tokenizer = Tokenizer(vocab_file, lower_case)
    expected = oracle.tokenize(TEXTS).merge_dims(1, 2)
    assert tokenizer.tokenize(tf.constant(TEXTS)).to_list() == expected.to_list()


def test_pieces_by_hand(vocab_file):
    tokenizer = Tokenizer(vocab_file)
    assert pieces(tokenizer.tokenize(tf.constant(TEXTS[:2]))) == [
        "the cat ##s sat on the mat , un ##believ ##able !".split(),
        [],
    ]
    assert pieces(Tokenizer(vocab_file, False).tokenize(tf.constant(["The cat"]))) == [
        ["[UNK]", "cat"]
    ]


def test_a_sentence_without_spaces_is_not_one_unknown_word(tmp_path):
    thai = "ภาษาไทยเขียนติดกันโดยไม่เว้นวรรคระหว่างคำในประโยคเดียวกัน"
    letters = sorted({*thai} | {f"##{letter}" for letter in thai})
    vocab = [*VOCAB[:6], *letters]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab))
    ids = Tokenizer(str(tmp_path / "vocab.txt"), False).tokenize(tf.constant([thai]))
    assert "".join(vocab[i].removeprefix("##") for i in ids[0]) == thai
    assert len(thai.encode()) > 100


def test_special_ids_follow_the_vocabulary(vocab_file):
    tokenizer = Tokenizer(vocab_file)
    ids = (
        tokenizer.pad_id,
        tokenizer.unk_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.mask_id,
    )
    assert ids == (0, 2, 3, 4, 5)
    assert tokenizer.vocab_size == len(VOCAB)
    continuations = [VOCAB[i] for i in np.flatnonzero(tokenizer.is_continuation)]
    assert continuations == ["##believ", "##able", "##s"]
    everything = sorted([*tokenizer.ordinary_ids, *tokenizer.special_ids])
    assert everything == list(range(len(VOCAB)))


def test_encode_adds_special_tokens_and_cuts_the_end(vocab_file):
    tokenizer = Tokenizer(vocab_file)
    encoded = pieces(tokenizer.encode(tf.constant(TEXTS[:2]), 6))
    assert encoded == ["[CLS] the cat ##s sat [SEP]".split(), ["[CLS]", "[SEP]"]]
    assert tokenizer.encode(tf.constant([], tf.string), 6).to_list() == []


def test_bytes_that_are_not_utf8_are_replaced(vocab_file):
    tokenizer = Tokenizer(vocab_file)
    text = tf.constant([b"the \xff cat", b"\xc3"])
    assert pieces(tokenizer.tokenize(text)) == [["the", "\ufffd", "cat"], ["\ufffd"]]


def test_it_works_in_tf_data_and_in_a_saved_model(vocab_file, tmp_path):
    tokenizer = Tokenizer(vocab_file)
    expected = tokenizer.encode(tf.constant(TEXTS), 16).to_tensor().numpy()

    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(len(TEXTS))
    (batch,) = dataset.map(lambda text: tokenizer.encode(text, 16).to_tensor())
    np.testing.assert_array_equal(batch, expected)

    module = tf.Module()
    module.tokenizer = tokenizer
    module.encode = tf.function(
        lambda text: tokenizer.encode(text, 16).to_tensor(),
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path / "export"))
    loaded = tf.saved_model.load(str(tmp_path / "export"))
    np.testing.assert_array_equal(loaded.encode(tf.constant(TEXTS)), expected)
