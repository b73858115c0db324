"""The tokenizer gives BERT's ids, in tf.data and in an export alike."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text as tf_text
from tensorflow_text.python.ops import bert_tokenizer

from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.rules import Rules
from cmlm.tokenization.word_pieces import WordPiece

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
    tokenizer = WordPiece(vocab_file, Rules(lower_case))
    expected = oracle.tokenize(TEXTS).merge_dims(1, 2)
    assert tokenizer.tokenize(tf.constant(TEXTS)).to_list() == expected.to_list()


def test_pieces_by_hand(vocab_file):
    tokenizer = WordPiece(vocab_file)
    assert pieces(tokenizer.tokenize(tf.constant(TEXTS[:2]))) == [
        "the cat ##s sat on the mat , un ##believ ##able !".split(),
        [],
    ]
    assert pieces(
        WordPiece(vocab_file, Rules(False)).tokenize(tf.constant(["The cat"]))
    ) == [["[UNK]", "cat"]]


def test_a_sentence_without_spaces_is_not_one_unknown_word(tmp_path):
    thai = "ภาษาไทยเขียนติดกันโดยไม่เว้นวรรคระหว่างคำในประโยคเดียวกัน"
    letters = sorted({*thai} | {f"##{letter}" for letter in thai})
    vocab = [*VOCAB[:6], *letters]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab))
    ids = WordPiece(str(tmp_path / "vocab.txt"), Rules(False)).tokenize(
        tf.constant([thai])
    )
    assert "".join(vocab[i].removeprefix("##") for i in ids[0]) == thai
    assert len(thai.encode()) > 100


LONG = [
    "cat " + "a" * 100 + " cat",
    "cat " + "a" * 101 + ", cats",
    "CafÉ" + "é" * 96,  # a hundred characters, more bytes; none has an accent
    "é" * 97 + "CafÉ",
    "ก" * 100 + " " + "ก" * 101 + "!",
    "a" * 60 + "-" + "a" * 60 + "日本",
    "",
]


@pytest.mark.parametrize("lower_case", [True, False])
def test_long_words_are_unknown_as_at_hugging_face(tmp_path, lower_case):
    """Its WordPiece: a word of more than 100 characters, or a stuck one, is [UNK]."""
    letters = [*"acfte!,-éก日本"]
    vocab = [
        *vocabulary_file.SPECIAL_TOKENS,
        *letters,
        *(f"##{letter}" for letter in letters),
    ]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(vocab))
    ids = {piece: number for number, piece in enumerate(vocab)}

    def word_piece(word):
        found, start = [], 0
        while start < len(word) <= 100:
            ends = range(len(word), start, -1)
            mark = "##" if start else ""
            end = next((e for e in ends if mark + word[start:e] in ids), None)
            if end is None:
                return [ids["[UNK]"]]
            found.append(ids[mark + word[start:end]])
            start = end
        return found or [ids["[UNK]"]]

    words = bert_tokenizer.BasicTokenizer(lower_case).tokenize(LONG).to_list()
    expected = [[i for w in line for i in word_piece(w.decode())] for line in words]
    rules = Rules(lower_case, max_word_bytes=400, max_word_characters=100)
    tokenizer = WordPiece(str(path), rules)
    assert tokenizer.tokenize(tf.constant(LONG)).to_list() == expected
    # The graph is the same for lines without a long word.
    short = ["a cat", "", "日a"]
    plain = WordPiece(str(path), Rules(lower_case)).tokenize(tf.constant(short))
    assert tokenizer.tokenize(tf.constant(short)).to_list() == plain.to_list()
    unlimited = WordPiece(str(path), Rules(lower_case)).tokenize(tf.constant(LONG))
    assert unlimited.to_list() != expected


def test_a_long_word_changes_no_other_word(tmp_path):
    """NFC has no capital J with this accent, but the small letter."""
    path = tmp_path / "vocab.txt"
    vocab = [*vocabulary_file.SPECIAL_TOKENS, "j", "##\u030c", "\u01f0"]
    path.write_text("\n".join(vocab))
    rules = Rules(True, False, normalization="nfc", max_word_characters=100)
    found = WordPiece(str(path), rules).tokenize(
        tf.constant(["J\u030c", f"J\u030c {'a' * 101}", "J\u030c"])
    )
    tokens = [[vocab[i] for i in row] for row in found.to_list()]
    alone = ["j", "##\u030c"]
    assert tokens == [alone, [*alone, "[UNK]"], alone]


def test_a_long_word_in_a_long_text_takes_little_memory(vocab_file):
    """A copy of this text for each of its words would take 160 GB."""
    rules = Rules(max_word_bytes=400, max_word_characters=100)
    tokenizer = WordPiece(vocab_file, rules)
    text = "the cat. " * 50_000
    long = f"{text}{'u' * 101} {text}"
    expected = tokenizer.tokenize(tf.constant([text])).to_list()[0]
    found = tokenizer.tokenize(tf.constant([long, "the cat", ""])).to_list()
    assert found[0] == [*expected, tokenizer.unk_id, *expected]
    assert found[1:] == tokenizer.tokenize(tf.constant(["the cat", ""])).to_list()


def test_long_words_are_unknown_as_at_tf_text(vocab_file):
    """tf-text's default, which published TF Hub preprocessors are made with."""
    oracle = tf_text.BertTokenizer(vocab_file, lower_case=True, token_out_type=tf.int32)
    text = ["cat " + "un" * n + " cat" for n in (49, 50, 51)]
    expected = oracle.tokenize(text).merge_dims(1, 2).to_list()
    tokenizer = WordPiece(vocab_file, Rules(max_word_bytes=100))
    assert tokenizer.tokenize(tf.constant(text)).to_list() == expected


def test_special_ids_follow_the_vocabulary(vocab_file):
    tokenizer = WordPiece(vocab_file)
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
    everything = sorted([*tokenizer.ordinary_ids, *ids])
    assert everything == list(range(len(VOCAB)))


def test_encode_adds_special_tokens_and_cuts_the_end(vocab_file):
    tokenizer = WordPiece(vocab_file)
    encoded = pieces(tokenizer.encode(tf.constant(TEXTS[:2]), 6))
    assert encoded == ["[CLS] the cat ##s sat [SEP]".split(), ["[CLS]", "[SEP]"]]
    assert tokenizer.encode(tf.constant([], tf.string), 6).to_list() == []


def test_bytes_that_are_not_utf8_are_replaced(vocab_file):
    tokenizer = WordPiece(vocab_file)
    text = tf.constant([b"the \xff cat", b"\xc3"])
    assert pieces(tokenizer.tokenize(text)) == [["the", "\ufffd", "cat"], ["\ufffd"]]


def test_it_works_in_tf_data_and_in_a_saved_model(vocab_file, tmp_path):
    tokenizer = WordPiece(vocab_file)
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
