"""Vocabularies are checked when read, and learnt ones cover their text."""

import collections
import dataclasses
import itertools
import resource

import commands
import pytest
import tensorflow as tf

from cmlm.common import fields
from cmlm.errors import UserError
from cmlm.tokenization import rules, vocabulary_file
from cmlm.tokenization.rules import Rules
from cmlm.tokenization.word_pieces import WordPiece
from cmlm.vocabulary import coverage, learning, of_run, words
from cmlm.vocabulary.settings import VocabularyConfig

SPECIAL = list(vocabulary_file.SPECIAL_TOKENS)


def write(path, tokens):
    path.write_text("\n".join(tokens) + "\n")
    return str(path)


def test_load_gives_tokens_by_id(tmp_path):
    tokens = [*SPECIAL, "the", "##s", "\u2028"]
    assert vocabulary_file.load(write(tmp_path / "v.txt", tokens)) == tokens


@pytest.mark.parametrize(
    "tokens, message",
    [
        ([], "v.txt is empty; allowed: one token a line"),
        (["the", "[CLS]", "[SEP]", "[PAD]"], r"v.txt lacks \[UNK\], \[MASK\]"),
        ([*SPECIAL, "a", "b", "a"], "'a' twice: lines 6 and 8"),
        ([*SPECIAL, "a", "", "b"], "line 7 is empty; allowed: one token a line"),
        ([*SPECIAL, "a", "b\0c"], "line 7 has a NUL byte"),
        ([*SPECIAL, "x" * 900_000], "line 6 has 900,000 characters; allowed: at most"),
    ],
    ids=["empty", "special", "twice", "empty line", "NUL", "900,000 characters"],
)
def test_what_is_no_vocabulary_is_refused(tmp_path, tokens, message):
    path = write(tmp_path / "v.txt", tokens)
    with pytest.raises(UserError, match=message):
        vocabulary_file.load(path)
    with pytest.raises(UserError, match=message):
        WordPiece(path)


def test_a_full_disk_leaves_no_new_rules_beside_an_old_vocabulary(tmp_path):
    path = str(tmp_path / "v.txt")
    learning.write(SPECIAL, path, Rules(lower_case=False), {})
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(before) == {"v.txt", "v.txt.json"}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # The rules fit, the vocabulary does not.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(tf.errors.OpError, match="File too large"):
            tokens = [*SPECIAL, *(f"word{number}" for number in range(1000))]
            learning.write(tokens, path, Rules(lower_case=True), {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_sign_stands_while_a_vocabulary_and_its_rules_get_their_names(
    tmp_path, monkeypatch
):
    """A kill in between leaves it, so that the next command may replace both."""
    rename, signs = tf.io.gfile.rename, []

    def spy(*arguments, **keywords):
        signs.append((tmp_path / "v.txt.naming").exists())
        rename(*arguments, **keywords)

    monkeypatch.setattr(tf.io.gfile, "rename", spy)
    learning.write(SPECIAL, str(tmp_path / "v.txt"), Rules(), {})
    assert signs[-2:] == [True, True]
    assert {file.name for file in tmp_path.iterdir()} == {"v.txt", "v.txt.json"}


def test_a_missing_vocabulary_is_named(tmp_path):
    with pytest.raises(UserError, match="missing.txt does not exist; allowed: a voc"):
        vocabulary_file.load(str(tmp_path / "missing.txt"))


def test_a_learnt_vocabulary_reads_its_text_and_any_ascii(text_file, tmp_path):
    path = str(tmp_path / "v.txt")
    tokens = learning.learn({"": [text_file]}, VocabularyConfig(size=220), path)
    assert tokens[:5] == SPECIAL
    assert tokens == vocabulary_file.load(path)
    assert 110 < len(tokens) <= 220
    tokenizer = WordPiece(path)
    counts = words.count({None: [text_file]}, Rules(), 1 << 30).counts
    found = coverage.measure(tokenizer, counts)
    assert found.unknown_tokens == 0.0
    assert 1.0 <= found.tokens_per_word < 1.5
    assert tokenizer.unk_id not in tokenizer.tokenize(["$3D {x} zq#@~ |9^"]).values


def test_the_log_tells_real_sizes_and_smoothed_shares(tmp_path, caplog):
    """1,000 words and 10: shares of 1000^0.3 and 10^0.3."""
    for language, number in (("en", 1000), ("de", 10)):
        (tmp_path / language).write_text("word\n" * number)
    files = {language: [str(tmp_path / language)] for language in ("en", "de")}
    config = VocabularyConfig(size=200)
    with caplog.at_level("INFO"):
        learning.learn(files, config, str(tmp_path / "v.txt"))
        learning.learn({"": files["de"]}, config, str(tmp_path / "v.txt"))
        both = {"": files["en"], "de": files["de"]}
        learning.learn(both, config, str(tmp_path / "v.txt"))
    assert (
        "a vocabulary of 200 tokens from 1,010 words: en 1,000 (79.9%), de 10 (20.1%); "
        "shares by number^0.3" in caplog.text
    )
    assert "a vocabulary of 200 tokens from 10 words\n" in caplog.text
    assert "1,010 words: unnamed 1,000 (79.9%), de 10 (20.1%)" in caplog.text


def test_the_size_is_kept_exactly_where_the_text_has_enough_pieces():
    counts = collections.Counter(
        {f"{a}{b}{c}": 1 + (ord(a) * ord(b) * ord(c)) % 50
         for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcd"}
    )  # fmt: skip
    for size in (300, 500):
        tokens = learning.learn_from_counts(counts, size)
        assert len(tokens) == len(set(tokens)) == size
        assert set("abcdefghijklmnopqrstuvwxyz") <= set(tokens)


def test_many_characters_do_not_exceed_the_smallest_size():
    """ASCII in both cases and the special tokens take most of it."""
    words = [
        "".join(chr(0x410 + (n * 7 + i) % 64) for i in range(4)) for n in range(99)
    ]
    counts = collections.Counter({"Aa": 9, **dict.fromkeys(words, 5)})
    for size in (200, 210):
        assert len(learning.learn_from_counts(counts, size)) == size


def test_chinese_characters_take_one_token_each():
    """BERT's tokenizer makes a word of each, so that no `##` form is ever read."""
    characters = [chr(0x4E00 + i) for i in range(200)]
    counts = collections.Counter(dict.fromkeys([*characters, "straße"], 10))
    tokens = set(learning.learn_from_counts(counts, 900))
    assert tokens >= set(characters)
    assert not tokens & {f"##{character}" for character in characters}
    assert tokens >= {"ß", "##ß"}


def test_characters_take_the_tokens_that_no_piece_needs():
    """More than a quarter of the size, as a Chinese word is one character."""
    characters = [chr(0x4E00 + i) for i in range(2000)]
    counts = collections.Counter({c: 3000 - n for n, c in enumerate(characters)})
    enough = learning.learn_from_counts(counts, 3000)
    assert set(enough) >= set(characters) and len(enough) < 3000
    # With too many characters, the most frequent ones have a token.
    assert learning.learn_from_counts(counts, 900) == enough[:900]


def test_coverage_by_hand(tmp_path):
    tokens = [*SPECIAL, "the", "cat", "##s"]
    tokenizer = WordPiece(write(tmp_path / "v.txt", tokens))
    counts = collections.Counter({"the": 6, "cats": 3, "dog": 1})
    found = coverage.measure(tokenizer, counts)
    assert found.words_in_one_piece == pytest.approx(6 / 10)
    assert found.tokens_per_word == pytest.approx(13 / 10)
    assert found.unknown_tokens == pytest.approx(1 / 13)
    assert found.known_words == pytest.approx(9 / 10)
    assert found.known_characters == pytest.approx(30 / 33)


def test_words_that_occur_once_have_pieces():
    """The count of a piece exceeds that of each word."""
    parts = ["ba", "ko", "mi", "tu", "le", "sa", "rin", "dor", "pel", "vun"]
    names = list(map("".join, itertools.product(parts, repeat=4)))
    tokens = learning.learn_from_counts(collections.Counter(names), 200)
    assert len(tokens) == 200
    assert set(tokens) >= {f"##{part}" for part in parts}


@pytest.mark.parametrize("factor", [1, 30])
def test_a_size_beyond_the_pieces_of_a_text_makes_no_word_a_piece(factor):
    """Whole words would leave no piece for the parts of other words."""
    parts = ["ba", "ko", "mi", "tu", "le", "sa", "rin", "dor", "pel", "vun"]
    names = list(map("".join, itertools.product(parts, repeat=4)))
    counts = collections.Counter(dict.fromkeys(names[::9], factor))
    once = frozenset(counts if factor > 1 else ())
    tokens = set(learning.learn_from_counts(counts, 5000, once))
    assert len(tokens) < 5000
    assert not tokens & set(names)
    assert tokens >= {f"##{part}" for part in parts}


def test_the_log_tells_why_a_vocabulary_is_smaller(text_file, tmp_path, caplog):
    config, path = VocabularyConfig(size=5000), str(tmp_path / "v.txt")
    with caplog.at_level("INFO"):
        tokens = learning.learn({"": [text_file]}, config, path)
    assert (
        f"the vocabulary has {len(tokens)} tokens instead of 5,000, because the "
        "learner found no more pieces that occur twice\n" in caplog.text
    )
    # A foreign letter in a million has no token, even if the letter occurs twice.
    counts = collections.Counter({"house": 400_000, "café": 2})
    smoothed = words.SmoothedCounts(counts, frozenset())
    with caplog.at_level("INFO"):
        tokens = learning.learn_and_write(smoothed, {"": 1}, config, path, {})
    assert "é" not in tokens
    assert (
        "pieces that occur twice; rare characters without a token: 1\n" in caplog.text
    )


def test_a_run_names_the_size_of_the_vocabulary_that_it_has_learnt(tmp_path, caplog):
    characters = "".join(chr(0x4E00 + i) for i in range(130))
    text = write(tmp_path / "text.txt", [characters[:50] * 20, characters])
    config, files = VocabularyConfig(size=200), {"zh": [text]}
    path = of_run.prepare(config, files, str(tmp_path / "run"))
    tokenizer = config.tokenizer(path)
    of_run.check_coverage(config, tokenizer, files, "", {})
    # Of 130 characters, 39 beyond 200 tokens, 109 of them special or ASCII.
    assert caplog.messages == [
        "3.5% of the zh tokens are [UNK]: rare characters lack a token at "
        "vocabulary.size=200; a larger size gives them one"
    ]
    caplog.clear()
    # A resumed run with other text.
    lines = [characters[:50] * 10, characters]
    other = {"zh": [write(tmp_path / "other.txt", lines)]}
    of_run.check_coverage(config, tokenizer, other, "", {})
    assert "are [UNK]: the vocabulary comes from other text, or diff" in caplog.text


def test_long_words_teach_their_parts():
    """Thai has spaces between phrases only."""
    phrases = ["ab" * 25 + end for end in ("xyz", "uvwxyz", "rstuvwxyz")]
    tokens = learning.learn_from_counts(collections.Counter(phrases), 220)
    assert set(tokens) >= {"ab" * 25, "##uvwxyz"}
    parts = {"ab" * 25, "##xyz", "##uvwxyz", "##rstuvwxyz"}
    words, once = learning._cut([(phrase, 9) for phrase in phrases], set(phrases[:2]))
    assert dict(words) == dict.fromkeys(parts, 9) | {"ab" * 25: 27}
    assert once == {"##xyz", "##uvwxyz"}
    # A later part begins no word.
    counts = collections.Counter({phrases[0]: 9, "klm": 9})
    tokens = learning.learn_from_counts(counts, 220)
    assert {"klm", "##xyz"} <= set(tokens) and "xyz" not in tokens


def test_shares_of_files_without_lines_and_without_a_second_column(tmp_path, caplog):
    tokenizer = WordPiece(write(tmp_path / "v.txt", [*SPECIAL, "the", "cat"]))
    texts = {
        "a.txt": "the cat\ndog\nthe\tcat the\n",
        "b.txt": "",
        "pairs.tsv": "the cat the\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    paths = {name: str(tmp_path / name) for name in texts}
    files = {"en": [paths["a.txt"], paths["b.txt"]], "en-de": [paths["pairs.tsv"]]}
    # Of each tab-separated text alone; [CLS] and [SEP] count.
    shares = coverage.shares(tokenizer, files, dict.fromkeys(paths.values(), 4))
    assert {name: dataclasses.astuple(found) for name, found in shares.items()} == {
        "en": pytest.approx((1 / 9, 1 / 4)),
        "de": (0.0, None),
    }
    limits = dict.fromkeys(paths.values(), 3)
    assert coverage.shares(tokenizer, files, limits)["en"].cut == 3 / 4
    # Text without a language has a name beside other text only.
    with caplog.at_level("INFO"):
        one, two = {"": files["en"]}, {"": files["en"], "en": files["en"]}
        for given in (one, two):
            config = VocabularyConfig(max_unknown_share=1)
            of_run.check_coverage(config, tokenizer, given, "", {})
    told = [message for message in caplog.messages if message.startswith("[UNK]: ")]
    assert told[0].startswith("[UNK]: 16.67% of the tokens")
    assert told[1].startswith("[UNK]: unnamed 16.67%, en 16.67% of the tokens")
    # A file of passages is not cut.
    del limits[paths["a.txt"]]
    assert coverage.shares(tokenizer, files, limits)["en"].cut == 1
    assert (
        coverage.shares(tokenizer, {"en": [paths["a.txt"]]}, limits)["en"].cut is None
    )


def test_bitext_counts_for_the_languages_of_its_columns(tmp_path, caplog):
    texts = {
        "en.txt": "house\n" * 5,
        "en-de.tsv": "the house\tdas Haus\n" * 10,
        "en-tr.tsv": "a house\tbir ev\tbir at\n" * 20 + "alone\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    files = {name.partition(".")[0]: [str(tmp_path / name)] for name in texts}
    counted = dict(words.count_languages(files, Rules(False), 1 << 30, 100))
    assert {name: dict(found.counts) for name, found in counted.items()} == {
        "en": {"house": 35, "the": 10, "a": 20, "alone": 1},
        "de": {"das": 10, "Haus": 10},
        "tr": {"bir": 40, "ev": 20, "at": 20},
    }
    with caplog.at_level("INFO"):
        learning.learn(files, VocabularyConfig(size=200), str(tmp_path / "v.txt"))
    assert "from 166 words: en 66 (" in caplog.text


def test_prepare_learns_once_and_then_reuses(text_file, tmp_path):
    model_dir = str(tmp_path / "model")
    config = VocabularyConfig(size=220)
    path = of_run.prepare(config, {"": [text_file]}, model_dir)
    assert path == f"{model_dir}/vocab.txt"
    learnt = vocabulary_file.load(path)
    missing = {"": [str(tmp_path / "missing.txt")]}
    assert of_run.prepare(config, missing, model_dir) == path
    assert vocabulary_file.load(path) == learnt


def test_prepare_copies_a_given_vocabulary_and_keeps_to_it(tmp_path):
    given = write(tmp_path / "given.txt", [*SPECIAL, "the"])
    other = write(tmp_path / "other.txt", [*SPECIAL, "a"])
    model_dir = str(tmp_path / "model")
    path = of_run.prepare(VocabularyConfig(file=given), {}, model_dir)
    assert vocabulary_file.load(path) == [*SPECIAL, "the"]
    assert of_run.prepare(VocabularyConfig(file=given), {}, model_dir) == path
    with pytest.raises(UserError, match="other.txt differs from the run's vocabulary"):
        of_run.prepare(VocabularyConfig(file=other), {}, model_dir)


def test_prepare_leaves_no_vocabulary_that_does_not_fit_the_model(tmp_path):
    given = write(tmp_path / "given.txt", [*SPECIAL, "the"])
    model_dir = tmp_path / "model"
    config = VocabularyConfig(file=given)
    said = "model.vocab_size is 7, .*given.txt has 6 entries; allowed: .* of 7 entries"
    with pytest.raises(UserError, match=said):
        of_run.prepare(config, {}, str(model_dir), model_size=7)
    assert not model_dir.exists()
    of_run.prepare(config, {}, str(model_dir), model_size=6)
    with pytest.raises(UserError, match="model.vocab_size is 7, .*model/vocab.txt has"):
        of_run.prepare(VocabularyConfig(), {}, str(model_dir), model_size=7)


def test_the_command_refuses_what_is_no_text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("One.\nTwo.\n", encoding="utf-16")
    done = commands.run("cmlm.vocab", f"--input={path}", f"--output={tmp_path}/v.txt")
    assert (done.returncode, done.stdout) == (1, "")
    said = f"error: {path} is UTF-16; allowed: UTF-8, as `iconv "
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1
    assert not (tmp_path / "v.txt").exists()
    (tmp_path / "v.txt.json").touch()
    done = commands.run("cmlm.vocab", f"--input={path}", f"--output={tmp_path}/v.txt")
    assert done.stderr.startswith(f"error: {tmp_path}/v.txt.json exists")


def test_a_text_without_words_teaches_nothing(tmp_path):
    path = write(tmp_path / "text.txt", ["", "  "])
    with pytest.raises(UserError, match="no word to learn a .* from; allowed: at l"):
        learning.learn({"": [path]}, VocabularyConfig(), str(tmp_path / "v.txt"))
    assert not (tmp_path / "v.txt").exists()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"size": 10}, "size is 10; allowed: at least 200"),
        ({"max_text_bytes": 0}, "max_text_bytes is 0"),
    ],
)
def test_wrong_values_are_named(changes, message):
    with pytest.raises(UserError, match=message):
        fields.check(VocabularyConfig(**changes))


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_languages_are_smoothed_by_the_set_exponent_up_to_the_limit(
    tmp_path, monkeypatch, caplog, exponent
):
    chunk, seen = words.LINES_PER_CHUNK, []
    # The limit of one byte ends the first language behind its first chunk; the size of
    # its file tells that it has three.
    for language, word, lines in (
        ("en", "house", 3 * chunk),
        ("de", "haus", chunk // 64),
    ):
        (tmp_path / language).write_text(f"{word}\n" * lines)
    files = {language: [str(tmp_path / language)] for language in ("en", "de")}

    def learn(counts, *_):
        seen.append(counts)
        return SPECIAL

    monkeypatch.setattr(learning, "learn_from_counts", learn)
    config = VocabularyConfig(size=200, sampling_exponent=exponent, max_text_bytes=1)
    with caplog.at_level("INFO"):
        learning.learn(files, config, str(tmp_path / "v.txt"))
    assert seen == [
        {"house": chunk, "haus": chunk}
        if exponent == 0
        else {"house": 3 * chunk, "haus": chunk // 64}
    ]
    assert "read about 33.33% of en; the numbers of words are" in caplog.text
    assert "words: en 3,072 (" in caplog.text


def test_the_flags_are_the_settings_of_the_vocabulary(tmp_path):
    (tmp_path / "a.txt").write_text("Caf\u00e9 the house\n" * 20)
    (tmp_path / "b.txt").write_text("das Haus\n" * 20)
    done = commands.run(
        *("cmlm.vocab", f"--input=en={tmp_path}/a.txt,de={tmp_path}/b.txt"),
        *(f"--output={tmp_path}/v.txt", "--size=201", "--nostrip_accents"),
        *("--dotless_i", "--normalization=nfc", "--sampling_exponent=1"),
        "--max_text_bytes=99",
    )
    assert done.returncode == 0, done.stderr
    found = rules.read(str(tmp_path / "v.txt"))
    want = Rules(True, False, dotless_i=True, normalization="nfc")
    assert found.rules == want.as_dict()
    settings = {"size": 201, "sampling_exponent": 1, "max_text_bytes": 99}
    assert found.origin.items() >= settings.items()
