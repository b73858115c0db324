"""Byte-level BPE, SentencePiece and MPNet's WordPiece against their own libraries.

The tokenizers are learnt here; `tokenizers` and `sentencepiece` are the oracles.
"""

import base64
import gzip
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import tokenizers as hugging_face
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from cmlm.data import masking
from cmlm.errors import UserError
from cmlm.tokenization import byte_pairs as byte_pair_module
from cmlm.tokenization import charsmaps, tokenizer_file, vocabulary_file
from cmlm.tokenization.base import trim
from cmlm.tokenization.opening import open_tokenizer
from cmlm.vocabulary import of_run
from cmlm.vocabulary.settings import VocabularyConfig
from export import preprocessor

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
# The tokens before those of the merges.
BYTE_LEVEL = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
TEXTS = [
    "",
    " ",
    "a",
    "  two  spaces  ",
    "don't we're I'LL they'd 'sup it's 'tis",
    "tab\tline\n\n end",
    "no\u00a0break\u3000wide \u3000 \u2028x\u2029 y\u0085z",
    "👩‍👩‍👧 🇩🇪🇩🇪 👍🏽!",
    "a\r\nb  \n c",
    "ﬁ ½ Ⅳ １２３ ｶﾞ e\u0301 é",
    "aaaaaaaaaaaaa bbbb ---------- ......",
    "\u200bzero\u200dwidth\ufeff \x01\x7f",
    "หนึ่งสองสาม नमस्ते दुनिया 한국어 日本語のテキスト。",
    "İstanbul ß ǅ foo_bar.baz(qux)[1]{2} 3.14 10,000",
    "<s> is text, and so is <mask>.",
]
LEARNT = [
    "The file is on the table, and the table isn't in the house.",
    "Das Haus steht am Fluss; die Datei liegt auf dem Tisch.",
    "Файл лежит на столе. 日本語のテキストです。 नमस्ते दुनिया",
    *TEXTS,
] * 3


def byte_pairs(folder, prefix_space=False):
    made = hugging_face.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(LEARNT, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return _saved(made, folder)


def byte_level(folder, tokens, merges):
    """The tokenizer of a list of merges."""
    vocab = {token: number for number, token in enumerate(tokens)}
    made = hugging_face.Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return _saved(made, folder)


def pieces(folder):
    """SentencePiece's own model file, and XLM-R's tokenizer.json of it."""
    prefix = str(folder / "pieces")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in LEARNT if text.strip()]),
        model_prefix=prefix,
        vocab_size=200,
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    vocab = [(token, 0.0) for token in SPECIAL[:4]]
    vocab += [
        (theirs.id_to_piece(number), theirs.get_score(number))
        for number in range(3, theirs.get_piece_size())
    ]
    made = hugging_face.Tokenizer(models.Unigram([*vocab, ("<mask>", 0.0)], 3))
    made.normalizer = normalizers.Precompiled(_charsmap(Path(f"{prefix}.model")))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.add_special_tokens(SPECIAL)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return theirs, _saved(made, folder)


def alberts(folder):
    """ALBERT's tokenizer.json of the same pieces: quotes, accents and case go first."""
    _, (made, path) = pieces(folder)
    regex = hugging_face.Regex(" {2,}")
    made.normalizer = normalizers.Sequence(
        [
            *(normalizers.Replace(quote, '"') for quote in ("``", "''")),
            *(normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()),
            *(made.normalizer, normalizers.Replace(regex, " ")),
        ]
    )
    return _saved(made, folder)


def _charsmap(path: Path) -> bytes:
    """The normalisation of a model file: field 2 of its field 3."""

    def fields(message):
        while message:
            key, message = _number(message)
            if key & 7 == 0:
                value, message = _number(message)
            else:
                size, message = (4, message) if key & 7 == 5 else _number(message)
                value, message = message[:size], message[size:]
            yield key >> 3, value

    (normalizer,) = [value for n, value in fields(path.read_bytes()) if n == 3]
    (charsmap,) = [value for n, value in fields(normalizer) if n == 2]
    return charsmap


def _number(message: bytes) -> tuple[int, bytes]:
    number, shift = 0, 0
    for place, byte in enumerate(message):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, message[place + 1 :]
    raise ValueError("no number")


def mpnet(folder):
    """BERT's vocabulary between the special tokens of RoBERTa."""
    made = hugging_face.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    own = [*SPECIAL[:4], "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=own, show_progress=False
    )
    made.train_from_iterator(LEARNT, trainer)
    made.add_special_tokens(["<mask>"])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return _saved(made, folder)


def _saved(made, folder):
    path = str(folder / "tokenizer.json")
    made.save(path)
    return made, path


def plain(texts):
    """Texts without special tokens, which only other programs look for in a text."""
    return [text for text in texts if "<s>" not in text]


@pytest.mark.parametrize("prefix_space", [False, True])
def test_byte_pairs_are_those_of_tokenizers(tmp_path, prefix_space):
    theirs, path = byte_pairs(tmp_path, prefix_space)
    ours = open_tokenizer(path)
    texts = plain(TEXTS)
    actual = ours.tokenize(tf.constant(texts)).to_list()
    expected = theirs.encode_batch(texts, add_special_tokens=False)
    for text, found, wanted in zip(texts, actual, expected, strict=True):
        assert found == wanted.ids, text
    # A text never gives a special token, as in this project's WordPiece.
    (row,) = ours.tokenize(tf.constant(["<s>"])).to_list()
    assert row and not ours.is_special[row].any()


@pytest.mark.parametrize("stride", [2, 5, byte_pair_module._STRIDE])
@pytest.mark.parametrize("seed", range(4))
def test_runs_of_characters_merge_as_in_tokenizers(tmp_path, seed, stride, monkeypatch):
    # With a short stride, some windows share a token and others share none.
    monkeypatch.setattr(byte_pair_module, "_STRIDE", stride)
    draw = random.Random(seed)
    # A list in no order: a merge may make a pair of a lower rank.
    tokens, merges = ["a", "b"], []
    while len(merges) < 14:
        pair = draw.choice(tokens), draw.choice(tokens)
        if pair not in merges and len("".join(pair)) < 9:
            merges.append(pair)
            tokens = list(dict.fromkeys([*tokens, "".join(pair)]))
    if seed % 2:
        draw.shuffle(merges)
    theirs, path = byte_level(tmp_path, [*BYTE_LEVEL, *tokens[2:]], merges)
    runs = ["a" * n for n in range(1, 20)] + ["aab" * 7, "abab" * 4 + "a", "bbaaa"]
    mixed = ["".join(draw.choices("ab", k=30)) for _ in range(40)]
    several = " ".join(runs)
    texts = [*runs, *mixed, several]
    actual = open_tokenizer(path).tokenize(tf.constant(texts)).to_list()
    expected = theirs.encode_batch(texts, add_special_tokens=False)
    for text, found, wanted in zip(texts, actual, expected, strict=True):
        assert found == wanted.ids, text


def test_a_merge_that_makes_a_pair_of_a_lower_rank_comes_alone(tmp_path):
    merges = [("aa", "a"), ("a", "a")]
    theirs, path = byte_level(tmp_path, [*BYTE_LEVEL, "aa", "aaa"], merges)
    texts = ["a" * n for n in range(1, 9)] + ["aaaa aaaaa"]
    actual = open_tokenizer(path).tokenize(tf.constant(texts)).to_list()
    expected = theirs.encode_batch(texts, add_special_tokens=False)
    assert actual == [row.ids for row in expected]


@pytest.fixture
def count_rounds(monkeypatch):
    """count_rounds(tokenizer, text): the tokens, and the word of each byte by round."""

    def count(ours, text):
        rounds = []
        ranks = ours._ranks

        def counted(ids, word):
            rounds.append(word)
            return ranks(ids, word)

        with monkeypatch.context() as patched:
            patched.setattr(ours, "_ranks", counted)
            (row,) = ours.tokenize(tf.constant([text])).to_list()
        return row, rounds

    return count


def test_a_long_run_takes_few_rounds(tmp_path, count_rounds):
    powers = ["a" * 2**n for n in range(1, 7)]
    merges = [(power[: len(power) // 2],) * 2 for power in powers]
    theirs, path = byte_level(tmp_path, [*BYTE_LEVEL, *powers], merges)
    ours = open_tokenizer(path)
    text = "a" * 4095
    row, rounds = count_rounds(ours, text)
    assert row == theirs.encode(text, add_special_tokens=False).ids
    assert len(rounds) == len(merges) + 1


def test_the_work_for_a_word_grows_with_its_length_alone(tmp_path, count_rounds):
    theirs, path = byte_pairs(tmp_path)
    ours = open_tokenizer(path)
    draw = random.Random(0)
    letters = [text for text in "".join(LEARNT) if text.isalpha()]
    word = "".join(draw.choices(letters, k=2048))
    work = []
    for text in (word[:256], word):
        row, rounds = count_rounds(ours, text)
        assert row == theirs.encode(text, add_special_tokens=False).ids
        work.append(sum(map(len, rounds)))
    # Eight times the length. Merges of whole words take sixteen times the work.
    assert work[1] < 10 * work[0]


@pytest.mark.parametrize("searched", [6, byte_pair_module._SEARCHED])
def test_a_long_text_is_cut_without_other_tokens(tmp_path, searched, monkeypatch):
    monkeypatch.setattr(byte_pair_module, "_SEARCHED", searched)
    merges = [("a", "b"), ("s", "\u0120"), ("\u0120", "a"), ("1", "1"), ("ab", "ab")]
    # The last letter of this word decides on all of its tokens.
    chain = "cdefghijklmnopqrtuvwxyzABCDEFGHIJKLMNOPQ"
    merges += [*zip(chain, chain[1:], strict=False)][::-1]
    vocab = [*BYTE_LEVEL, *("".join(pair) for pair in merges)]
    _, path = byte_level(tmp_path, vocab, merges)
    ours = open_tokenizer(path)
    draw = random.Random(0)
    letters = "abs1'.  \n\u00a0\u00e9\u0939\u093f\0\ufdd0"
    texts = ["".join(draw.choices(letters, k=k)) for k in range(40, 240)]
    texts += ["ab" * 70, "ab" * 70 + " a", "'s" * 90, "", "a"]
    texts += [f"{chain} a", f"{chain[:-1]} a"]
    given, other = tf.constant(texts), tf.constant(texts[::-1])
    for length in (4, 7, 12):
        whole = ours.enclose(ours.tokenize(given), length).to_list()
        assert ours.encode(given, length).to_list() == whole
        first, second = trim(
            [ours.tokenize(given), ours.tokenize(other)],
            length - 2 - ours.pair_separators,
        )
        both = ours.encode_pair(given, other, length).to_list()
        expected = zip(first.to_list(), second.to_list(), strict=True)
        special = {ours.cls_id, ours.sep_id}
        assert [[i for i in row if i not in special] for row in both] == [
            [*a, *b] for a, b in expected
        ]


def test_a_long_text_is_cut_soon(tmp_path):
    ours = open_tokenizer(byte_pairs(tmp_path)[1])
    text = tf.constant(["short", "a1" * 10**6, "word " * 10**6, "a" * 10**6])
    short, *cut, one_word = ours._beginning(text, 16).numpy()
    assert short == b"short" and len(one_word) == 10**6
    longest = 16 * max(map(len, ours.vocab))
    assert [len(text) for text in cut] == pytest.approx([longest] * 2, abs=6)


def test_unigrams_are_sentencepieces(tmp_path):
    theirs, (hugging, path) = pieces(tmp_path)
    ours = open_tokenizer(path)
    # Two splits of 000 have one score, and versions of SentencePiece differ there.
    texts = [text.replace("10,000", "10") for text in TEXTS]
    actual = ours.tokenize(tf.constant(texts)).to_list()
    for text, found in zip(texts, actual, strict=True):
        # XLM-R has one more special token before SentencePiece's own pieces.
        expected = [3 if n == 0 else n + 1 for n in theirs.encode(text)]
        assert found == expected, text
    # `tokenizers` does not normalise U+0085 and e with a combining accent as
    # SentencePiece does.
    usual = [text for text in plain(texts) if not {"\u0085", "\u0301"} & set(text)]
    actual = ours.tokenize(tf.constant(usual)).to_list()
    expected = hugging.encode_batch(usual, add_special_tokens=False)
    assert actual == [row.ids for row in expected]


def test_alberts_rules_come_before_the_pieces(tmp_path):
    theirs, path = alberts(tmp_path)
    ours = open_tokenizer(path)
    texts = [
        *TEXTS,
        "``The Table'' isn''t",
        "e\u0301\u20dd \u0915\u093f \u039f\u0394\u039f\u03a3",
        "a\\b",
    ]
    texts = [text.replace("10,000", "10") for text in plain(texts)]
    # `tokenizers` leaves U+0085 and decomposed Korean as they are; SentencePiece's
    # normalisation makes a space and composes.
    usual = [text for text in texts if not {"\u0085", "한"} & set(text)]
    actual = ours.tokenize(tf.constant(usual)).to_list()
    expected = theirs.encode_batch(usual, add_special_tokens=False)
    for text, found, wanted in zip(usual, actual, expected, strict=True):
        assert found == wanted.ids, text
    one, other = ours.tokenize(
        tf.constant(["The FILE, \u00e9", "the file, e"])
    ).to_list()
    assert one == other


def test_mpnets_wordpiece_is_that_of_tokenizers(tmp_path):
    theirs, path = mpnet(tmp_path)
    ours = open_tokenizer(path)
    texts = plain(TEXTS)
    actual = ours.tokenize(tf.constant(texts)).to_list()
    expected = theirs.encode_batch(texts, add_special_tokens=False)
    assert actual == [row.ids for row in expected]
    roles = (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id)
    special = [ours.vocab[number] for number in roles]
    assert special == ["<pad>", "[UNK]", "<s>", "</s>", "<mask>"]


def test_real_text_in_many_languages_has_the_same_byte_pairs(tmp_path, shared_data):
    theirs, path = byte_pairs(tmp_path)
    texts = []
    for file in sorted((shared_data / "text").glob("*/wikipedia-*.txt.gz")):
        with gzip.open(file, "rt", encoding="utf-8", newline="\n") as lines:
            texts += [line.rstrip("\n") for line, _ in zip(lines, range(20))]
    assert len(texts) > 200
    actual = open_tokenizer(path).tokenize(tf.constant(texts)).to_list()
    expected = theirs.encode_batch(texts, add_special_tokens=False)
    assert actual == [row.ids for row in expected]


MADE = {
    "BPE": lambda folder: byte_pairs(folder)[1],
    "Unigram": lambda folder: pieces(folder)[1][1],
    "WordPiece": lambda folder: mpnet(folder)[1],
}


@pytest.mark.parametrize("kind", MADE)
def test_a_file_is_read_once(tmp_path, kind, monkeypatch):
    path, read = MADE[kind](tmp_path), []
    load = tokenizer_file.load
    monkeypatch.setattr(tokenizer_file, "load", lambda p: read.append(p) or load(p))
    assert open_tokenizer(path).vocab_file == path
    assert read == [path]


@pytest.mark.parametrize("kind", MADE)
def test_special_tokens_of_one_text_and_of_a_pair(tmp_path, kind):
    path = MADE[kind](tmp_path)
    ours, theirs = open_tokenizer(path), hugging_face.Tokenizer.from_file(path)
    first, second = "the file", "das Haus"
    (row,) = ours.encode(tf.constant([first]), 30).to_list()
    assert row == theirs.encode(first).ids
    (row,) = ours.encode_pair(tf.constant([first]), tf.constant([second]), 30).to_list()
    assert row == theirs.encode(first, second).ids
    pair = ours.encode_pair(tf.constant([first]), tf.constant([second]), 7)
    assert pair.row_lengths().numpy().tolist() == [7]


@pytest.mark.parametrize("kind", MADE)
def test_segments_mark_the_second_text_and_no_padding(tmp_path, kind):
    tokenizer = open_tokenizer(MADE[kind](tmp_path))
    first, second = tf.constant(["the file"]), tf.constant(["das Haus"])
    padded = {"default_value": tokenizer.pad_id, "shape": [1, 30]}
    pair = tokenizer.encode_pair(first, second, 30).to_tensor(**padded)
    marked = tf.boolean_mask(pair, tokenizer.segments(pair) == 1).numpy().tolist()
    (words,) = tokenizer.tokenize(second).to_list()
    assert marked == [*words, tokenizer.sep_id]
    alone = tokenizer.encode(first, 30).to_tensor(**padded)
    assert not tokenizer.segments(alone).numpy().any()
    # The preprocessor of an export gives what training reads.
    parts = [tokenizer.tokenize(first), tokenizer.tokenize(second)]
    for ids, segments in ((pair, parts), (alone, parts[:1])):
        packed = preprocessor.pack_segments(segments, 30, tokenizer)
        np.testing.assert_array_equal(packed["input_word_ids"], ids)
        types = tokenizer.segments(ids)
        np.testing.assert_array_equal(packed["input_type_ids"], types)


@pytest.mark.parametrize("kind", MADE)
def test_a_seed_leaves_the_tokenizer_as_it_is(tmp_path, kind):
    ours = open_tokenizer(MADE[kind](tmp_path))
    text = tf.constant(["the table"])
    batches = tf.data.Dataset.from_tensors(text).map(lambda text: ours.encode(text, 9))
    expected = ours.encode(text, 9).to_list()
    # Seeding clears TensorFlow's eager kernels, and what belongs to them.
    tf.keras.utils.set_random_seed(1)
    assert ours.encode(text, 9).to_list() == expected
    (batch,) = batches
    assert batch.to_list() == expected


def test_a_new_vocabulary_of_a_run_replaces_that_of_another_tokenizer(tmp_path):
    path = byte_pairs(tmp_path)[1]
    text, run = tmp_path / "text.txt", str(tmp_path / "run")
    text.write_text("the table is in the house\n" * 20)
    files = {"": [str(text)]}
    learnt = VocabularyConfig(size=200)
    first = of_run.prepare(learnt, files, run, has_weights=False)
    assert sorted(os.listdir(run)) == ["vocab.txt", "vocab.txt.json"]
    given = VocabularyConfig(file=path)
    copied = of_run.prepare(given, files, run, has_weights=False)
    assert os.listdir(run) == ["tokenizer.json"]
    assert vocabulary_file.same(path, copied)
    # Without weights, only a vocabulary of the same settings stays.
    assert of_run.prepare(learnt, files, run, has_weights=False) == first
    assert sorted(os.listdir(run)) == ["vocab.txt", "vocab.txt.json"]
    with pytest.raises(UserError, match="differs from the run's vocabulary, .*vocab"):
        of_run.prepare(given, files, run, has_weights=True)


@pytest.mark.parametrize("kind", MADE)
def test_words_begin_at_spaces_and_punctuation(tmp_path, kind):
    ours = open_tokenizer(MADE[kind](tmp_path))
    text = "the tablehouse, isn't(file)"
    ids = ours.encode(tf.constant([text]), 60).to_tensor(ours.pad_id)
    joined = ours.continues(ids).numpy()[0]
    words: list[list[int]] = []
    for number, joins in zip(ids.numpy()[0].tolist(), joined, strict=True):
        words.append(words.pop() + [number] if joins else [number])
    spelled = [
        "".join(ours.vocab[n].replace("##", "").lstrip("Ġ▁") for n in word)
        for word in words[1:-1]
    ]
    expected = ["the", "tablehouse", ",", "isn", "'", "t", "(", "file", ")"]
    assert [word for word in spelled if word] == expected or spelled == [
        # BPE keeps a contraction together.
        *("the", "tablehouse", ",", "isn", "'t", "(", "file", ")")
    ]


@pytest.mark.parametrize("kind", MADE)
def test_whole_words_are_masked(tmp_path, kind):
    ours = open_tokenizer(MADE[kind](tmp_path))
    ids = ours.encode(tf.constant(["the tablehouse stands"] * 50), 60)
    ids = ids.to_tensor(ours.pad_id)
    config = masking.MaskingConfig(rate=0.5, mask_token_share=1, random_token_share=0)
    config.whole_word = True
    masked = masking.mask_tokens(ids, ours, config, tf.constant([1, 2]))
    hidden = (masked["input_word_ids"] == ours.mask_id).numpy()
    assert hidden.any(axis=1).all()
    # A token that continues a word shares the fate of the token before it.
    joined = ours.continues(ids).numpy()
    n_words = (~joined[0]).sum() - 2
    assert n_words == 3 and joined[0].any()
    for row in hidden:
        partly = [
            row[place] != row[place - 1]
            for place in range(1, len(row))
            if joined[0, place]
        ]
        assert not any(partly)


@pytest.mark.parametrize(
    ("part", "value", "said"),
    [
        ("normalizer", {"type": "NFC"}, "normalizer={'type': 'NFC'}; allowed: null"),
        ("pre_tokenizer", {"type": "Whitespace"}, "allowed: ByteLevel"),
        ("post_processor", None, "post_processor.type=None; allowed: RobertaProcess"),
        ("model", {"type": "WordLevel", "vocab": {}}, "model.type='WordLevel'; allo"),
        ("added_tokens", [{"id": 300, "content": "a\0b"}], "the token 'a.x00b'; allow"),
        ("model", {"type": "BPE"}, r"is not a tokenizer.json \(KeyError: 'vocab'\)"),
    ],
)
def test_other_rules_are_refused_by_name(tmp_path, part, value, said):
    _, path = byte_pairs(tmp_path)
    values = json.loads(Path(path).read_text()) | {part: value}
    Path(path).write_text(json.dumps(values))
    with pytest.raises(UserError, match=said) as refused:
        open_tokenizer(path)
    assert "\n" not in str(refused.value)
    assert str(refused.value).count(path) == 1


@pytest.mark.parametrize("longest", ["9", 0, -5, True])
def test_a_longest_word_that_is_no_length_is_refused(tmp_path, longest):
    values = json.loads(Path(mpnet(tmp_path)[1]).read_text())
    values["model"]["max_input_chars_per_word"] = longest
    said = "max_input_chars_per_word=.*; allowed: int from 1"
    with pytest.raises(UserError, match=said):
        tokenizer_file.parse(values, "tokenizer.json")


def test_a_longest_word_may_be_longer_than_any_text(tmp_path):
    _, path = mpnet(tmp_path)
    values = json.loads(Path(path).read_text())
    values["model"]["max_input_chars_per_word"] = 10**30
    Path(path).write_text(json.dumps(values))
    made = open_tokenizer(path)
    (row,) = made.tokenize(tf.constant(["the" * 1000])).to_list()
    assert made.vocab[row[0]] == "the" and len(row) > 100


@pytest.mark.parametrize(
    ("score", "content", "pattern", "said"),
    [
        (1e39, "", "a", "a score of '<s>'=1e.39; allowed: a float32"),
        (float("nan"), "", "a", "a score of '<s>'=nan; allowed: a float32"),
        (0, None, "a", "normalizer=.*'content': None.*; allowed: Replace of a str"),
        (0, "", 5, "normalizer=.*'String': 5.*; allowed: Replace of a string by a str"),
    ],
)
def test_scores_and_texts_of_another_type_are_refused(
    tmp_path, score, content, pattern, said
):
    _, (_, path) = pieces(tmp_path)
    values = json.loads(Path(path).read_text())
    values["model"]["vocab"][0][1] = score
    step = {"type": "Replace", "pattern": {"String": pattern}, "content": content}
    steps = [step, values["normalizer"]]
    values["normalizer"] = {"type": "Sequence", "normalizers": steps}
    with pytest.raises(UserError, match=said):
        tokenizer_file.parse(values, path)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (["", "a"], "has the token ''; allowed: at least 1 character"),
        ([], "has no token that a text can have; allowed: at least one"),
    ],
)
def test_pieces_that_sentencepiece_refuses_are_named(tmp_path, others, said):
    _, (_, path) = pieces(tmp_path)
    values = json.loads(Path(path).read_text())
    tokens = [*SPECIAL, *others]
    values["model"].update(vocab=[[token, -1.0] for token in tokens], unk_id=3)
    for token in values["added_tokens"]:
        token["id"] = tokens.index(token["content"])
    Path(path).write_text(json.dumps(values))
    with pytest.raises(UserError, match=said):
        open_tokenizer(path)


def test_a_charsmap_that_leads_outside_of_itself_is_refused(tmp_path):
    _, (_, path) = pieces(tmp_path)
    good = _charsmap(tmp_path / "pieces.model")
    charsmaps.check(good, path)
    charsmaps.check(b"", path)
    size = int.from_bytes(good[:4], "little")
    trie, texts = np.frombuffer(good[4 : 4 + size], "<u4"), good[4 + size :]

    def built(trie, texts, size=size):
        return size.to_bytes(4, "little") + trie.tobytes() + texts

    assert built(trie, texts) == good
    places = trie >= 1 << 31
    far = np.uint32((1 << 30) + (1 << 9))
    outside = {
        "the root": np.where(np.arange(len(trie)) == 0, far, trie),
        "a marked root": np.where(np.arange(len(trie)) == 0, far + (1 << 31), trie),
        "the last node": np.where(np.arange(len(trie)) == len(trie) - 1, far, trie),
        "all texts": np.where(places, (1 << 31) + len(texts), trie),
    }
    bad = {name: built(nodes.astype("<u4"), texts) for name, nodes in outside.items()}
    bad |= {
        "cut size": good[:3],
        "no trie": good[:4],
        "no texts": good[: 4 + size],
        "texts without end": good[:-1] + b"x",
        "other size": built(trie, texts, size - 4),
        "size beyond": built(trie, texts, size + 1024 * len(good)),
        "no size": built(trie, texts, 0),
    }
    for name, blob in bad.items():
        with pytest.raises(UserError, match="has a damaged precompiled_charsmap"):
            charsmaps.check(blob, path)
            pytest.fail(name)
    values = json.loads(Path(path).read_text())
    stored = base64.b64encode(bad["the root"]).decode()
    values["normalizer"]["precompiled_charsmap"] = stored
    with pytest.raises(UserError, match=f"{path} has a damaged"):
        tokenizer_file.parse(values, path)


@pytest.mark.parametrize(
    ("has_charsmap", "has_one_space", "has_split", "allowed"),
    [
        (True, False, True, ""),
        (True, True, False, ""),
        (False, True, False, ""),
        (True, False, False, "Metaspace after a Replace of repeated spaces"),
        (False, True, True, "WhitespaceSplit after the normalizer Precompiled"),
    ],
)
def test_sentencepiece_divides_words_as_the_steps_of_tokenizers(
    tmp_path, has_charsmap, has_one_space, has_split, allowed
):
    made, path = pieces(tmp_path)[1]
    one_space = normalizers.Replace(hugging_face.Regex(" {2,}"), " ")
    steps = [made.normalizer] * has_charsmap + [one_space] * has_one_space
    made.normalizer = normalizers.Sequence(steps)
    split = [pre_tokenizers.WhitespaceSplit()] * has_split
    made.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.Metaspace()])
    made.save(path)
    if allowed:
        with pytest.raises(UserError, match=f"allowed: {allowed}"):
            tokenizer_file.parse(tokenizer_file.load(path), path)
        return
    text = "the  file\u3000is a\ttab" if has_charsmap else "the  file   is"
    ours = open_tokenizer(path).tokenize(tf.constant([text])).to_list()
    assert ours == [made.encode(text, add_special_tokens=False).ids]


def test_a_copy_is_the_same_vocabulary(tmp_path):
    _, path = byte_pairs(tmp_path)
    (tmp_path / "run").mkdir()
    copied = vocabulary_file.copy(path, str(tmp_path / "run"))
    assert vocabulary_file.same(path, copied)
    assert vocabulary_file.find(str(tmp_path / "run")) == copied
    values = json.loads(Path(path).read_text())
    values["model"]["merges"].reverse()
    Path(path).write_text(json.dumps(values))
    # The tokens are equal; the ranks of the merges are not.
    assert vocabulary_file.load(path) == vocabulary_file.load(copied)
    assert not vocabulary_file.same(path, copied)


def test_bytes_have_gpt2s_letters():
    letters = tokenizer_file.BYTE_LETTERS
    assert sorted(letters) == sorted(pre_tokenizers.ByteLevel.alphabet())
    assert (letters[0], letters[0x20], letters[0x41]) == ("Ā", "Ġ", "A")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ignore_merges": True}, "model.ignore_merges=True; allowed: false"),
        ({"dropout": 0.1}, "model.dropout=0.1; allowed: 0"),
        ({"byte_fallback": True}, "model.byte_fallback=True; allowed: false"),
        ({"end_of_word_suffix": "</w>"}, "end_of_word_suffix='</w>'; allowed"),
        ({"merges": [["a", "b", "c"]]}, r"merge 1, \('a', 'b', 'c'\), is not of two"),
        ({"merges": ["a \u0142x"]}, "merge 1, .* is not of two tokens"),
    ],
)
def test_other_merges_are_refused_by_name(tmp_path, change, said):
    _, path = byte_pairs(tmp_path)
    values = json.loads(Path(path).read_text())
    values["model"] |= change
    Path(path).write_text(json.dumps(values))
    with pytest.raises(UserError, match=said):
        open_tokenizer(path)


def test_bytes_ids_and_division_are_those_of_byte_level_bpe(tmp_path):
    _, path = byte_pairs(tmp_path)
    whole = json.loads(Path(path).read_text())
    left = [token for token in whole["model"]["vocab"] if token != "\u0100"]
    vocab = {token: number for number, token in enumerate(left)}
    model = {**whole["model"], "vocab": vocab, "merges": []}
    twice = {"id": 0, "content": "<mask>", "special": True}
    last = max(whole["model"]["vocab"].values())
    gap = {**whole["model"]["vocab"], "new": last + 2}
    id_ = whole["model"]["vocab"]["<mask>"]
    division = {**whole["pre_tokenizer"], "use_regex": False}
    for part, value, said in (
        ("model", model, "lacks the tokens of 1 of the 256 bytes, such as 'Ā'; allo"),
        (
            "model",
            {**whole["model"], "vocab": gap},
            f"gives 'new' the id {last + 2}, where {last + 1} is next; allowed: ids fr",
        ),
        (
            "added_tokens",
            [*whole["added_tokens"], twice],
            f"has two ids for '<mask>': {id_} and 0; allowed: one",
        ),
        ("pre_tokenizer", division, "use_regex=False"),
    ):
        Path(path).write_text(json.dumps({**whole, part: value}))
        with pytest.raises(UserError, match=said):
            open_tokenizer(path)


def test_other_rules_of_sentencepiece_are_refused_by_name(tmp_path):
    _, (_, path) = pieces(tmp_path)
    for part, name in (("model", "byte_fallback"), ("pre_tokenizer", "prepend_scheme")):
        values = json.loads(Path(path).read_text())
        if part == "model":
            values["model"][name] = True
        else:
            values["pre_tokenizer"]["pretokenizers"][-1][name] = "never"
        other = tmp_path / f"{name}.json"
        other.write_text(json.dumps(values))
        with pytest.raises(UserError, match=f"{part}.{name}="):
            open_tokenizer(str(other))
    values = json.loads(Path(path).read_text())
    values["model"]["vocab"].insert(9, values["model"]["vocab"][7])
    other.write_text(json.dumps(values))
    with pytest.raises(UserError, match="has '.+' twice: ids 7 and 9; allowed: each t"):
        open_tokenizer(str(other))


def test_added_tokens_of_sentencepiece_count_as_text(tmp_path):
    _, (theirs, path) = pieces(tmp_path)
    plain = open_tokenizer(path).tokenize(tf.constant(["anewb a new b"])).to_list()
    theirs.add_tokens(["new"])
    _, path = _saved(theirs, tmp_path)
    added = open_tokenizer(path)
    assert "new" in added.vocab
    assert added.tokenize(tf.constant(["anewb a new b"])).to_list() == plain
