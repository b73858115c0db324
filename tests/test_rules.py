"""A vocabulary's rules: the same ids as Hugging Face, and a record that is obeyed."""

import json
import os
import unicodedata

import pytest
import tensorflow as tf
import toys

from cmlm.config import model_dir
from cmlm.encoders import opening
from cmlm.errors import UserError
from cmlm.tokenization import letters, rules, vocabulary_file
from cmlm.tokenization.rules import Rules
from cmlm.tokenization.word_pieces import WordPiece, WordSplitter
from cmlm.training import building, warm_start
from cmlm.training.stages import Stage
from cmlm.vocabulary import learning, of_run
from cmlm.vocabulary.settings import VocabularyConfig
from export import huggingface_folder, saved_models

LATIN = [*range(0x21, 0x250), *range(0x1E00, 0x1F00)]
OTHER = [*range(0x370, 0x530), *range(0x1F00, 0x2000), *range(0x10A0, 0x1100)]


def _known(letter):
    """Whether the letter is one, and ends no line."""
    return unicodedata.category(letter) != "Cn" and letter not in "\n\r"


LINES = [
    "a".join(filter(_known, map(chr, codes[start : start + 40])))
    for codes in (LATIN, OTHER)
    for start in range(0, len(codes), 40)
] + [
    "İstanbul'da IŞIK, ığdır ŞİŞLİ ÇAĞ Öküz Ünlü",
    "Tiếng Việt: Đường phố Hà Nội, ĂÂĐÊÔƠƯ",
    "Größe STRASSE ẞ Äpfel naïve Café",
    "cafe\u0301 A\u030angstro\u0308m I\u0307 i\u0307",
    "ΟΔΥΣΣΕΥΣ Ἀχιλλεύς Москва Й й Ё",
    "日本語 が か\u3099 한국어 中文。",
    "co\u00adop na\u200cme x\u200dy \ufeffbom\u0007bell tab\there",
    "नमस्ते ภาษาไทย العَرَبِيَّة עִבְרִית",
]


def write_vocabulary(path, splitters):
    """Every character of LINES by any rules, alone and inside a word."""
    letters_seen = set()
    for splitter in splitters:
        for line in splitter.normalize(tf.constant(LINES)).numpy():
            letters_seen.update(line.decode())
    alone = sorted(letter for letter in letters_seen if not letter.isspace())
    tokens = [*vocabulary_file.SPECIAL_TOKENS, *alone, *(f"##{x}" for x in alone)]
    vocabulary_file.write(tokens, str(path))
    return tokens


@pytest.mark.parametrize("lower_case", [True, False])
@pytest.mark.parametrize("strip_accents", [True, False])
def test_ids_are_those_of_hugging_face(lower_case, strip_accents, tmp_path):
    """In all four combinations, over every Latin, Greek, Cyrillic, Georgian letter."""
    tokenizers = pytest.importorskip("tokenizers")
    of = Rules(lower_case, strip_accents, style="hugging-face")
    tokens = write_vocabulary(tmp_path / "vocab.txt", [WordSplitter(of)])
    oracle = tokenizers.BertWordPieceTokenizer(
        {token: number for number, token in enumerate(tokens)},
        lowercase=lower_case,
        strip_accents=strip_accents,
    )
    # Invalid bytes become U+FFFD, which BERT drops.
    lines = [*LINES, "caf\ufffd b\ufffda \ufffd"]
    ours = WordPiece(str(tmp_path / "vocab.txt"), of).tokenize(tf.constant(lines))
    for line, ids in zip(lines, ours.to_list(), strict=True):
        want = oracle.encode(line, add_special_tokens=False).tokens
        assert [tokens[i] for i in ids] == want, line


def test_case_and_accents_are_separate():
    line = tf.constant(["Ärger, ŞİŞLİ"])

    def words(*args, **values):
        (found,) = WordSplitter(Rules(*args, **values)).split_lines(line)
        return b" ".join(found).decode()

    assert words(True) == words(True, True) == "arger , sisli"
    assert words(True, False) == "ärger , şi\u0307şli\u0307"
    assert words(False, True) == "Arger , SISLI"
    assert words(False) == words(False, False) == "Ärger , ŞİŞLİ"
    assert words(True, False, dotless_i=True) == "ärger , şişli"


def test_styles_differ_in_folding_and_control_characters():
    line = tf.constant(["Stra\u00dfe co\u00adop b\u0007ell"])

    def words(**values):
        (found,) = WordSplitter(Rules(**values)).split_lines(line)
        return [word.decode() for word in found]

    # Case folding drops the soft hyphen; tf-text splits at what it does not drop.
    assert words() == ["strasse", "coop", "b", "ell"]
    assert words(lower_case=False) == ["Straße", "co", "op", "b", "ell"]
    for lower_case, first in ((True, "straße"), (False, "Straße")):
        found = words(lower_case=lower_case, style="hugging-face")
        assert found == [first, "coop", "bell"]


@pytest.mark.parametrize("strip_accents", [True, False])
def test_turkish_capitals(strip_accents):
    line = tf.constant(["IŞIK İĞNE ılık in I\u0307"])
    splitter = WordSplitter(Rules(True, strip_accents, dotless_i=True))
    (words,) = splitter.split_lines(line)
    got = [word.decode() for word in words]
    accented = ["ışık", "iğne", "ılık", "in", "i"]
    assert got == (["ısık", "igne", "ılık", "in", "i"] if strip_accents else accented)


def test_normalization_joins_letters_and_accents():
    line = tf.constant(["cafe\u0301 ﬁn"])
    by_form = {}
    for form in ("", "nfc", "nfkc"):
        (words,) = WordSplitter(Rules(True, False, normalization=form)).split_lines(
            line
        )
        by_form[form] = [word.decode() for word in words]
    assert by_form == {
        "": ["cafe\u0301", "ﬁn"],
        "nfc": ["caf\u00e9", "ﬁn"],
        "nfkc": ["caf\u00e9", "fin"],
    }


def test_no_op_of_the_tokenizer_asks_the_machines_locale():
    """tf.strings.lower makes ı of I where the locale is Turkish."""
    for of in (Rules(True, False), Rules(True, True), Rules(True, dotless_i=True)):
        traced = tf.function(lambda text, of=of: letters.prepare(text, of))
        graph = traced.get_concrete_function(tf.TensorSpec([None], tf.string)).graph
        assert not [op for op in graph.get_operations() if op.type == "StringLower"]


def test_turkish_is_known_by_name():
    assert rules.has_dotless_i(["tr"]) and rules.has_dotless_i(["tr", "az-Latn"])
    assert rules.has_dotless_i(["tur"]) and rules.has_dotless_i(["tr-aze"])
    assert not rules.has_dotless_i(["tr", "en"])
    assert not rules.has_dotless_i([""]) and not rules.has_dotless_i([])
    # A bitext has two languages.
    assert rules.has_dotless_i(["tr-az", "tr-TR"])
    for pair in ("tr-en", "en-tr", "az-Latn-de", "tur-eng"):
        assert not rules.has_dotless_i([pair])


# ------------------------------------------------------------------- the record


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    lines = "Nr {} Der Ärger in ŞİŞLİ ist groß .\nDie Öfen sind heiß .\n"
    path.write_text("\n".join(lines.format(number) for number in range(30)))
    return str(path)


def test_a_learnt_vocabulary_states_its_rules(text_file, tmp_path):
    path = str(tmp_path / "v.txt")
    config = VocabularyConfig(size=220, strip_accents=False, normalization="nfc")
    learning.learn({"de": [text_file]}, config, path)
    record = rules.read(path)
    assert record.rules == Rules(True, False, normalization="nfc").as_dict()
    adopted = VocabularyConfig(file=path, lower_case=False)
    adopted.adopt_file()
    assert adopted.rules() == config.rules()
    # Programs that read a plain vocabulary see nothing but tokens.
    assert all(" " not in token for token in vocabulary_file.load(path))


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("lower_case", False, r"lower_case is False; allowed: True, as .*v.txt.json"),
        ("strip_accents", True, r"strip_accents is True; allowed: False"),
        ("max_word_bytes", 7, r"max_word_bytes is 7; allowed: 600"),
    ],
)
def test_settings_that_contradict_the_record_are_refused(
    name, value, message, tmp_path
):
    path = str(tmp_path / "v.txt")
    rules.write(path, Rules(True, False))
    config = VocabularyConfig(file=path, **{name: value})
    with pytest.raises(UserError, match=message):
        config.adopt_file({f"vocabulary.{name}"})
    # A default of the recipe gives way.
    config.adopt_file()
    assert config.rules() == Rules(True, False)


@pytest.mark.parametrize(
    "settings, want",
    [
        ({"do_lower_case": False}, (False, False)),
        ({"do_lower_case": True, "strip_accents": False}, (True, False)),
        ({"do_lower_case": True, "strip_accents": None}, (True, True)),
        ({}, (True, True)),
    ],
)
def test_a_downloaded_vocabulary_has_the_case_of_its_folder(settings, want, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    config = VocabularyConfig(file=str(tmp_path / "vocab.txt"), lower_case=False)
    config.adopt_file()
    assert config.rules() == Rules(*want, style="hugging-face")


@pytest.mark.parametrize("token, lower_case", [("the", True), ("The", False)])
def test_a_bare_vocabulary_shows_its_case(token, lower_case, tmp_path):
    path = str(tmp_path / "vocab.txt")
    vocabulary_file.write([*vocabulary_file.SPECIAL_TOKENS, token], path)
    config = VocabularyConfig(file=path, lower_case=not lower_case)
    config.adopt_file({"vocabulary.lower_case"})
    assert config.lower_case is not lower_case
    config.adopt_file()
    assert config.lower_case is lower_case


@pytest.mark.parametrize(
    "content, message",
    [
        ("[", "is not JSON"),
        ("[]", "does not hold a JSON dict of objects"),
        ('{"case": 1}', "has 'case'; allowed: lower_case, strip_accents"),
        ('{"lower_case": "yes"}', "lower_case='yes'; allowed: bool"),
        ('{"normalization": "nfd"}', "normalization='nfd'; allowed: '', 'nfc', 'nfkc'"),
    ],
)
def test_a_damaged_record_is_named(content, message, tmp_path):
    (tmp_path / "v.txt.json").write_text(content)
    with pytest.raises(UserError, match=message):
        rules.read(str(tmp_path / "v.txt"))


# ------------------------------------------------------------------- in a run


def run_config(text_file, **values):
    return toys.run_config(text_file, **{"trainer.train_steps": 2, **values})


def test_a_vocabulary_left_behind_is_not_taken_for_another_text(text_file, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text("Quite Another text with other Words\nand more of it\n\n" * 20)
    model_dir = str(tmp_path / "run")

    def prepare(path, size=220, has_weights=False, **values):
        config = VocabularyConfig(size=size, **values)
        target = of_run.prepare(
            config, {"": [str(path)]}, model_dir, has_weights=has_weights
        )
        return vocabulary_file.load(target)

    first = prepare(text_file)
    second = prepare(other)
    assert "another" in second and second != first
    assert prepare(other, lower_case=False) != second
    smaller = prepare(other, size=120)
    assert len(smaller) < len(second)
    mark = os.stat(f"{model_dir}/vocab.txt").st_mtime_ns
    assert prepare(other, size=120) == smaller
    assert os.stat(f"{model_dir}/vocab.txt").st_mtime_ns == mark
    # With weights for it, the vocabulary stays.
    assert prepare(text_file, size=120, has_weights=True) == smaller
    assert prepare(text_file) == first


def test_a_run_of_another_case_is_refused_before_its_first_step(
    text_file, tmp_path, caplog
):
    path = str(tmp_path / "v.txt")
    config = VocabularyConfig(size=220, lower_case=False)
    learning.learn({"": [text_file]}, config, path)
    with open(path) as file:
        tokens = [line.strip() for line in file]
    # As a vocabulary of lower case: none of its words, as the text has capitals.
    cased = [t for t in tokens if t.lower() == t or t.startswith("[")]
    vocabulary_file.write(cased, path)
    os.remove(path + ".json")
    values = {"vocabulary.file": path, "vocabulary.lower_case": False}
    with pytest.raises(UserError, match=r"% of the tokens are \[UNK\] with .*cased"):
        building.build(Stage(run_config(text_file, **values), str(tmp_path / "a")))
    values["vocabulary.max_unknown_share"] = 1
    caplog.set_level("INFO", "cmlm")
    building.build(Stage(run_config(text_file, **values), str(tmp_path / "b")))
    assert (
        "are [UNK]: the vocabulary comes from other text, or differs in case"
        in caplog.text
    )


def test_a_run_logs_the_share_of_cut_lines(text_file, tmp_path, caplog):
    caplog.set_level("INFO", "cmlm")

    def logged(name, **values):
        caplog.clear()
        values = {f"task.cmlm.{key}": value for key, value in values.items()}
        config = run_config(text_file, **values)
        building.build(Stage(config, str(tmp_path / name)))
        return [
            (entry.levelname, entry.getMessage().partition(" lines")[0])
            for entry in caplog.records
            if entry.getMessage().startswith("cut at")
        ]

    assert logged("a") == [("INFO", "cut at 16 tokens: 0.0% of the")]
    short = {"train_data.seq_length": 4}
    assert logged("b", **short) == [("WARNING", "cut at 4 tokens: 100.0% of the")]
    assert logged("c", passages=True) == []


def test_a_resumed_run_keeps_the_rules_of_its_vocabulary(text_file, tmp_path):
    path = str(tmp_path / "v.txt")
    learning.learn(
        {"": [text_file]}, VocabularyConfig(size=220, strip_accents=False), path
    )
    config = run_config(text_file, **{"vocabulary.file": path})
    warm_start.adopt_vocabulary(config, (), None, None)
    directory = str(tmp_path / "run")
    building.build(Stage(config, directory)).manager.save(0)
    assert rules.read(f"{directory}/vocab.txt").rules == Rules(True, False).as_dict()
    again = run_config(text_file, **{"vocabulary.lower_case": False})
    begun = model_dir.begun_config(directory)
    warm_start.adopt_vocabulary(again, (), begun, directory)
    assert again.vocabulary.rules() == Rules(True, False)
    with pytest.raises(UserError, match="lower_case is False; allowed: True, as"):
        again.vocabulary.lower_case = False
        warm_start.adopt_vocabulary(again, {"vocabulary.lower_case"}, begun, directory)


TURKISH = Rules(True, False, dotless_i=True, normalization="nfc", style="hugging-face")
FOLDED = ["Der ÄRGER in ŞİŞLİ", "IŞIK cafe\u0301 Straße ΟΔΟΣ", ""]
# Format and control characters inside words.
FORMATTED = ["co\u00adop na\u200cme x\u200dy b\u0007ell \u0600th\u200be\tend"]


def encoder_of(rules_of: Rules, text_file: str, directory: str):
    """An untrained encoder whose run learnt its vocabulary by these rules."""
    values = {f"vocabulary.{name}": value for name, value in rules_of.as_dict().items()}
    run = building.build(Stage(run_config(text_file, **values), directory))
    run.manager.save(0)
    trained = opening.open_weights(directory)
    assert trained.tokenizer.rules == rules_of
    return trained


def test_rules_travel_with_a_saved_model(text_file, tmp_path):
    trained = encoder_of(TURKISH, text_file, str(tmp_path / "run"))
    want = opening.open_encoder(str(tmp_path / "run")).encode(FOLDED)
    saved_models.Export(trained, str(tmp_path / "export"), 16).write()
    got = opening.open_encoder(str(tmp_path / "export")).encode(FOLDED)
    assert abs(got - want).max() < 1e-5
    again = opening.open_weights(str(tmp_path / "export"))
    assert again.tokenizer.rules == TURKISH


@pytest.mark.parametrize(
    "of",
    [
        Rules(),
        Rules(style="hugging-face"),
        Rules(False, True, style="hugging-face"),
        Rules(False, style="hugging-face", max_word_bytes=400, max_word_characters=100),
        Rules(False),
        Rules(True, False, normalization="nfc"),
        TURKISH,
    ],
)
def test_rules_travel_with_a_hugging_face_folder(of, text_file, tmp_path):
    trained = encoder_of(of, text_file, str(tmp_path / "run"))
    folder = tmp_path / "hf"
    folder.mkdir()
    huggingface_folder.write(trained, str(folder), 16, normalize=False)
    back = opening.open_weights(str(folder))
    assert back.tokenizer.rules == of
    # Without our record, the folder's own files say all but the longest word.
    (folder / "vocab.txt.json").unlink()
    longest = of.max_word_characters or 200
    limits = {"max_word_bytes": 4 * longest, "max_word_characters": longest}
    said = of.as_dict() | limits
    assert opening.open_weights(str(folder)).tokenizer.rules.as_dict() == said
    path = str(folder / "tokenizer.json")
    fast = pytest.importorskip("tokenizers").Tokenizer.from_file(path)
    # Another run may name this file alone.
    config = run_config(text_file, **{"vocabulary.file": path})
    warm_start.adopt_vocabulary(config, (), None, None)
    assert config.vocabulary.rules().as_dict() == said
    # BertTokenizer of transformers has these rules and this limit, and no other.
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    is_plain = of.style == "hugging-face" and longest == 100
    assert (stated["tokenizer_class"] == "BertTokenizer") is is_plain
    assert "token_type_ids" in stated["model_input_names"]
    lines = FOLDED + FORMATTED
    ids = trained.tokenizer.encode(tf.constant(lines), 128).to_list()
    assert [fast.encode(line).ids for line in lines] == ids
    ours = config.vocabulary.tokenizer(path)
    assert ours.encode(tf.constant(lines), 128).to_list() == ids
