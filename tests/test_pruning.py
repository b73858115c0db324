"""A pruned model gives the same vectors for its text, whatever it was trained by."""

import json
import random
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest
import tensorflow as tf
import test_architectures as architectures
import test_foreign_weights as foreign_weights
import test_tokenizers as tokenizers
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from cmlm.config import model_dir
from cmlm.encoders import opening, pruning
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.modeling import foreign, optimization, restoring
from cmlm.modeling import weights as weights_lib
from cmlm.modeling.model import SentenceModel
from cmlm.tokenization import tokenizer_file, vocabulary_file
from cmlm.tokenization.opening import open_tokenizer
from cmlm.tokenization.rules import Rules
from cmlm.tokenization.word_pieces import WordPiece
from cmlm.vocabulary import pieces
from export import huggingface_folder, model_card, saved_models

# The command's test has graphs.
pytestmark = pytest.mark.usefixtures("eager")

ROOT = Path(__file__).resolve().parent.parent
TEXT = ["The cat sat on the mat.", "", "unable? cats sat!", "\u65e5 the cat"]
# The last of these falls out, as it is not in the text; so do 20 others.
OTHER = "A dog ran far away."


def tokens(tokenizer: WordPiece, text: str) -> list[str]:
    ids = tokenizer.tokenize(tf.constant([text]))[0].numpy()
    return [tokenizer.vocab[number] for number in ids]


def pruned_tokenizer(tokenizer: WordPiece, text: list[str], folder: Path) -> WordPiece:
    kept = pieces.needed(tokenizer, [text])
    path = str(folder / "pruned.txt")
    vocabulary_file.write(
        [token for token, stays in zip(tokenizer.vocab, kept) if stays], path
    )
    return WordPiece(path, tokenizer.rules)


def write_vocabulary(path: Path, pieces_: list[str]) -> str:
    path.write_text("\n".join([*vocabulary_file.SPECIAL_TOKENS, *pieces_]) + "\n")
    return str(path)


# -------------------------------------------------------------------- pieces


def test_an_unknown_word_stays_unknown(tmp_path):
    """`unab` leads nowhere; without it, `un ##able` would be found."""
    path = write_vocabulary(tmp_path / "v.txt", ["un", "unab", "##able", "##x", "able"])
    tokenizer = WordPiece(path)
    text = ["unable", "un able"]
    assert tokens(tokenizer, text[0]) == ["[UNK]"]
    smaller = pruned_tokenizer(tokenizer, text, tmp_path)
    assert "unab" in smaller.vocab and "##able" not in smaller.vocab
    for line in text:
        assert tokens(smaller, line) == tokens(tokenizer, line)


def test_an_unknown_word_of_more_than_a_hundred_bytes_stays_unknown(tmp_path):
    """The tokenizer looks at the pieces of words of up to `max_word_bytes`."""
    path = write_vocabulary(
        tmp_path / "v.txt", ["x", "##x", "##un", "##unab", "##able"]
    )
    tokenizer = WordPiece(path)
    text = ["x" * 100 + "unable", "xun xable", "x" * 700]
    assert tokens(tokenizer, text[0]) == ["[UNK]"]
    smaller = pruned_tokenizer(tokenizer, text, tmp_path)
    for line in text:
        assert tokens(smaller, line) == tokens(tokenizer, line)


@pytest.mark.parametrize("seed", range(2))
def test_every_word_of_the_text_reads_the_same(tmp_path, seed):
    draw = random.Random(seed)

    def word(longest):
        return "".join(draw.choices("abcd\u00e9\u4e2d", k=draw.randint(1, longest)))

    some = {draw.choice(["", "##"]) + word(4) for _ in range(150)}
    path = write_vocabulary(tmp_path / "v.txt", sorted(some | {"a", "##a"}))
    tokenizer = WordPiece(path, Rules(lower_case=False))
    text = [" ".join(word(9) for _ in range(5)) for _ in range(30)]
    text += ["", "a" * 200 + " \ufeff x\x00y", "ab-cd,ab"]
    smaller = pruned_tokenizer(tokenizer, text, tmp_path)
    assert len(smaller.vocab) < len(tokenizer.vocab)
    read = [tokens(tokenizer, line) for line in text]
    assert any("[UNK]" in line for line in read)
    assert [tokens(smaller, line) for line in text] == read


@pytest.mark.large
def test_characters_of_the_text_stay_for_other_words(tmp_path):
    characters = [*"catx\u00df\u4e2d7$", *(f"##{c}" for c in "catx\u00df7")]
    path = write_vocabulary(tmp_path / "v.txt", ["cat", "dog", "##dog", *characters])
    smaller = pruned_tokenizer(WordPiece(path), ["cat"], tmp_path)
    assert tokens(smaller, "tac x7$") == ["t", "##a", "##c", "x", "##7", "$"]
    # Neither in the text nor ASCII.
    dropped = {"dog", "##dog", "\u00df", "##\u00df", "\u4e2d"}
    assert set(WordPiece(path).vocab) - set(smaller.vocab) == dropped


def pruned_file(path: str, text: list[str], folder: Path):
    """The tokenizers of a tokenizer.json and of one that is pruned to a text."""
    whole = open_tokenizer(path)
    kept = pieces.needed(whole, [text])
    tokens_left = [token for token, stays in zip(whole.vocab, kept) if stays]
    folder.mkdir()
    values = tokenizer_file.pruned(tokenizer_file.load(path), tokens_left)
    return whole, open_tokenizer(vocabulary_file.write_json(values, str(folder)))


def test_a_text_keeps_its_unigrams(tmp_path):
    _, (_, path) = tokenizers.pieces(tmp_path)
    text = tokenizers.TEXTS[:6]
    whole, smaller = pruned_file(path, text, tmp_path / "new")
    assert len(smaller.vocab) < len(whole.vocab)
    assert smaller.vocab[smaller.mask_id] == "<mask>" and "<mask>" not in TEXT
    for line in text:
        assert tokens(smaller, line) == tokens(whole, line)
    # Hugging Face's library reads the file, too.
    theirs = [Tokenizer.from_file(one.vocab_file) for one in (whole, smaller)]
    for line in text:
        before, after = (one.encode(line).tokens for one in theirs)
        assert before == after and after[0] == "<s>"


def test_an_unknown_character_keeps_its_score(tmp_path):
    """The likeliest split of the first word has no unknown character, if `zz` stays."""
    _, (_, path) = tokenizers.pieces(tmp_path)
    values = tokenizer_file.load(path)
    scores = {"\u2581": -1.0, "ab": -1.0, "a": -20.0, "b\u65e5": -20.0, "zz": -100.0}
    special = [[token, 0.0] for token in tokenizers.SPECIAL]
    values["model"]["vocab"] = [*special[:4], *map(list, scores.items()), special[4]]
    values["added_tokens"][-1]["id"] = len(scores) + 4
    path = vocabulary_file.write_json(values, str(tmp_path))
    text = ["ab\u65e5 ab"]
    whole, smaller = pruned_file(path, text, tmp_path / "new")
    expected = ["\u2581", "a", "b\u65e5", "\u2581", "ab"]
    assert tokens(whole, text[0]) == tokens(smaller, text[0]) == expected


# --------------------------------------------------------------------- model


@pytest.fixture
def source(tmp_path) -> str:
    return model_dirs.write(tmp_path / "model")


@pytest.mark.large
def test_a_name_relative_to_the_working_directory(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pruning.prune("model", lambda: [TEXT], "new").difference == 0
    monkeypatch.chdir("/")
    opening.open_encoder(f"{tmp_path}/new")


def test_vectors_are_the_same_and_the_rest_is_gone(source, tmp_path):
    records = (
        model_dir.METRICS,
        model_dir.STARTS,
        f"{model_dir.BASES}/0123456789abcdef",
    )
    Path(source, model_dir.BASES).mkdir()
    for name in records:
        Path(source, name).write_text('{"step": 3}\n')
    output = str(tmp_path / "new")
    pruned = pruning.prune(source, lambda: [TEXT], output)
    before, after = opening.open_encoder(source), opening.open_encoder(output)
    np.testing.assert_array_equal(after.encode(TEXT), before.encode(TEXT))
    assert np.abs(after.encode([OTHER]) - before.encode([OTHER])).max() > 1e-3
    vocab = vocabulary_file.load(f"{output}/vocab.txt")
    assert [token for token in model_dirs.VOCAB if token in vocab] == vocab
    assert "dog" not in vocab and "cat" in vocab
    rows = len(model_dirs.VOCAB) - len(vocab)
    assert pruned.tokens == (len(model_dirs.VOCAB), len(vocab))
    assert pruned.weights[0] - pruned.weights[1] == rows * 16
    assert pruned.bytes[1] < pruned.bytes[0]
    assert pruned.difference == 0.0
    assert after.info["step"] == 3
    config = model_dir.read_config(output)
    assert config.model.vocab_size == len(vocab)
    for name in records:
        assert Path(output, name).read_text() == '{"step": 3}\n'


def test_sizes_are_known_if_the_model_vanishes_at_the_end(
    source, tmp_path, monkeypatch
):
    compare = pruning._compare

    def compare_and_remove(*args):
        difference = compare(*args)
        Path(source).rename(tmp_path / "moved")
        return difference

    monkeypatch.setattr(pruning, "_compare", compare_and_remove)
    pruned = pruning.prune(source, lambda: [TEXT], str(tmp_path / "new"))
    assert pruned.bytes[0] > pruned.bytes[1] > 0


def write_trained(directory: Path, **settings) -> SentenceModel:
    """A model_dir with heads of every kind and an optimizer that has been used."""
    source = model_dirs.write(directory, **settings)
    config = model_dir.read_config(source)
    model = SentenceModel(config.model)
    model.projection()
    model.masked_lm()
    model.masked_lm(width_factor=2)
    model.classifier("classifier", 2)
    model.pair_classifier("nli", 3)
    draw = np.random.default_rng(1)
    for variable in model.trainable_variables:
        variable.assign(draw.normal(0, 0.3, variable.shape).astype(np.float32))
    optimizer = optimization.build_optimizer(
        optimization.OptimizerConfig(warmup_steps=0), 10
    )
    optimizer.apply_gradients(
        (tf.ones_like(variable), variable) for variable in model.trainable_variables
    )
    checkpoint = tf.train.Checkpoint(
        model=model, optimizer=optimizer, batches_seen=[tf.Variable(7)]
    )
    tf.train.CheckpointManager(checkpoint, source, 1).save(checkpoint_number=9)
    return model


@pytest.mark.large
@pytest.mark.parametrize(
    "settings", [{"model.sentence_vector": "projected"}, {"model.pooling": "pooler"}]
)
def test_heads_come_along_and_the_optimizer_does_not(tmp_path, settings):
    model = write_trained(tmp_path / "model", **settings)
    source, output = str(tmp_path / "model"), str(tmp_path / "new")
    pruned = pruning.prune(source, lambda: [TEXT], output)
    assert pruned.difference == 0.0
    # LAMB keeps two more of everything.
    assert pruned.bytes[1] < pruned.bytes[0] / 2

    def keys(path):
        return set(tf.train.load_checkpoint(path).get_variable_to_shape_map())

    before, after = keys(source), keys(output)
    assert after == {
        key
        for key in before
        if key.startswith(("model/", "save_counter", "_CHECKPOINTABLE"))
        and ".OPTIMIZER_SLOT" not in key
    }
    # Into a model that is built as training builds it, head by head.
    smaller = SentenceModel(model_dir.read_config(output).model)
    for build in (smaller.projection, smaller.masked_lm):
        build()
    smaller.masked_lm(width_factor=2)
    smaller.classifier("classifier", 2)
    smaller.pair_classifier("nli", 3)
    parts = ["classifier", "encoder", "masked_lm", "masked_lm_x2", "nli", "projection"]
    # As `--init_checkpoint` does.
    assert restoring.initialize(smaller, output) == parts
    vocab = vocabulary_file.load(f"{output}/vocab.txt")
    rows = [model_dirs.VOCAB.index(token) for token in vocab]
    assert len(rows) < len(model_dirs.VOCAB)
    inputs = tf.constant(np.random.default_rng(2).normal(size=[4, 16]), tf.float32)
    np.testing.assert_allclose(
        smaller.masked_lm()(inputs),
        tf.gather(model.masked_lm()(inputs), rows, axis=-1),
        rtol=1e-5,
    )
    for part in ("masked_lm_x2", "classifier", "nli", "projection"):
        for got, want in zip(smaller.parts[part].weights, model.parts[part].weights):
            want = want.numpy()
            if len(want) == len(model_dirs.VOCAB):
                want = want[rows]
            np.testing.assert_array_equal(got, want)


@pytest.mark.large
def test_the_best_checkpoint_is_pruned_by_its_prefix(source, tmp_path):
    best = Path(source, model_dir.BEST)
    best.mkdir()
    for path in Path(source).glob("ckpt-3*"):
        path.rename(best / path.name)
    Path(source, "checkpoint").rename(best / "checkpoint")
    with pytest.raises(UserError, match="holds no checkpoint"):
        pruning.prune(source, lambda: [TEXT], str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    pruned = pruning.prune(f"best:{source}", lambda: [TEXT], str(tmp_path / "new"))
    assert pruned.checkpoint == str(best / "ckpt-3")
    expected = opening.open_encoder(f"best:{source}").encode(TEXT)
    by_path = pruning.prune(str(best / "ckpt-3"), lambda: [TEXT], str(tmp_path / "too"))
    assert by_path == pruned
    for name in ("new", "too"):
        vectors = opening.open_encoder(str(tmp_path / name)).encode(TEXT)
        np.testing.assert_array_equal(vectors, expected)


# ------------------------------------------------- weights of another program


def write_sentence_transformers(folder: Path) -> str:
    """A folder with a masked-LM head, a Dense module, Normalize and prompts."""
    tensors = foreign_weights.torch_weights(prefix="bert.")
    foreign_weights.write_folder(folder, tensors | foreign_weights.head_weights())
    width = foreign_weights.HIDDEN
    dense = {"in_features": width, "out_features": width, "activation_function": "Tanh"}
    foreign_weights.write_modules(
        folder,
        ("Pooling", "1", {"pooling_mode": "cls"}),
        ("Dense", "2", dense),
        ("Normalize", "3", {}),
    )
    names = {"linear.weight": "weight", "linear.bias": "bias"}
    pooler = foreign_weights.torch_weights(seed=1)
    module = {there: pooler[f"pooler.dense.{part}"] for there, part in names.items()}
    save_file(module, folder / "2" / "model.safetensors")
    prompts = json.dumps({"prompts": {"query": "query: "}})
    (folder / "config_sentence_transformers.json").write_text(prompts)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    return str(folder)


def test_a_folder_of_another_program_is_pruned_with_its_settings(tmp_path):
    folder, output = str(tmp_path / "st"), str(tmp_path / "new")
    write_sentence_transformers(tmp_path / "st")
    pruned = pruning.prune(folder, lambda: [foreign_weights.TEXTS[:1]], output)
    vocab = vocabulary_file.load(f"{output}/vocab.txt")
    assert set(foreign_weights.VOCAB) - set(vocab) == {"dog"}
    assert pruned.tokens == (len(foreign_weights.VOCAB), len(vocab))
    assert pruned.weights[0] - pruned.weights[1] == foreign_weights.HIDDEN + 1
    assert pruned.bytes[0] > 0 and pruned.difference == 0.0
    before, after = opening.open_weights(folder), opening.open_weights(output)
    shape = {"vocab_size": len(vocab)}
    assert after.config.model.as_dict() == before.config.model.as_dict() | shape
    assert after.config.model.pooling == "pooler" and after.config.model.normalized
    assert after.config.model.prompts == ("query=query: ",)
    assert (after.seq_length, after.run) == (9, None)
    card = model_card.render(after, 9, False, False)
    assert "from st, not trained further" in card and "Not trained with cmlm" in card
    # The masked-LM head comes along.
    model = SentenceModel(after.config.model)
    model.masked_lm()
    assert restoring.initialize(model, output) == ["encoder", "masked_lm"]
    rows = [foreign_weights.VOCAB.index(token) for token in vocab]
    head = foreign.find(folder).load()[weights_lib.OUTPUT_BIAS][rows]
    np.testing.assert_array_equal(model.masked_lm().bias, head)

    (tmp_path / "written").mkdir()
    huggingface_folder.write(after, str(tmp_path / "written"), 9, True)
    again = opening.open_encoder(str(tmp_path / "written"))
    text = foreign_weights.TEXTS[:1]
    np.testing.assert_array_equal(
        again.encode(text), opening.open_encoder(folder).encode(text)
    )
    # A run starts from it as from the folder.
    starts = [
        foreign_weights.run_settings(tmp_path, path, ["model.num_views=15"])
        for path in (folder, output)
    ]
    before, after = (start.model.as_dict() for start in starts)
    filled = {name: after[name] for name in ("preset", "vocab_size")}
    assert after == before | filled


@pytest.mark.parametrize(
    "kind", ["original", pytest.param("export", marks=pytest.mark.large)]
)
def test_other_weights_are_pruned_and_no_graph_runs(
    kind, source, tmp_path, monkeypatch
):
    folder, output = tmp_path / "folder", str(tmp_path / "new")
    folder.mkdir()
    if kind == "original":
        foreign_weights.write_original(folder)
    else:
        saved_models.Export(opening.open_weights(source), str(folder), 30).write()
    monkeypatch.setattr(tf.saved_model, "load", None)
    assert pruning.prune(str(folder), lambda: [TEXT], output).difference == 0.0
    before, after = opening.open_weights(str(folder)), opening.open_weights(output)
    assert after.tokenizer.vocab_size < before.tokenizer.vocab_size
    assert after.tokenizer.rules == before.tokenizer.rules
    # The original checkpoints state no length.
    stated = {"original": 0, "export": 30}[kind]
    assert (after.seq_length, after.config.longest_sentence) == (
        before.seq_length,
        stated,
    )
    np.testing.assert_array_equal(
        opening.from_weights(after).encode(TEXT),
        opening.from_weights(before).encode(TEXT),
    )


@pytest.mark.parametrize(
    "make",
    [
        architectures.xlm_roberta,
        pytest.param(architectures.relative, marks=pytest.mark.large),
    ],
)
def test_a_tokenizer_json_is_pruned(make, tmp_path):
    folder, output = str(make(tmp_path)), str(tmp_path / "new")
    text = ["The cat sat on the mat."]
    pruned = pruning.prune(folder, lambda: [text], output)
    assert pruned.tokens[0] > pruned.tokens[1] and pruned.difference == 0.0
    assert not Path(output, vocabulary_file.FILE_NAME).exists()
    # A pruned model is pruned as a run is.
    again = pruning.prune(output, lambda: [text], str(tmp_path / "again"))
    assert again.tokens[0] == pruned.tokens[1] and again.difference == 0.0
    opened = opening.open_weights(output)
    (tmp_path / "written").mkdir()
    written = (opened, str(tmp_path / "written"), opened.seq_length, False)
    huggingface_folder.write(*written)
    np.testing.assert_allclose(
        opening.open_encoder(str(tmp_path / "written")).encode(text),
        opening.from_weights(opened).encode(text),
        atol=1e-6,
    )


@pytest.mark.parametrize("default", ["", "far "])
def test_prompts_keep_their_tokens(default, tmp_path):
    # Without a space, the prompt and the first word are one word.
    stated = {"model.prompts": ["query=dogs ran: ", "passage=un"]}
    model = model_dirs.write(tmp_path / "run", **stated, **{"model.prompt": default})
    output = str(tmp_path / "new")
    text = ["able cats", "the cat sat on a mat"]
    assert pruning.prune(model, lambda: [text], output).difference == 0.0
    before, after = opening.open_encoder(model), opening.open_encoder(output)
    dropped = set(model_dirs.VOCAB) - set(vocabulary_file.load(f"{output}/vocab.txt"))
    assert "away" in dropped and ("far" in dropped) == (not default)
    assert after.prompts == before.prompts
    for name in (None, "query", "passage"):
        one, two = (
            opening.open_encoder(path, Reading(prompt_name=name))
            for path in (model, output)
        )
        assert one.tokens(text) == two.tokens(text)
        np.testing.assert_array_equal(one.encode(text), two.encode(text))


# ----------------------------------------------------------------- bad input


def test_byte_pairs_are_not_pruned(tmp_path):
    folder = architectures.byte_level_roberta(tmp_path)
    said = "is byte-level BPE; allowed to prune: WordPiece, SentencePiece"
    with pytest.raises(UserError, match=said):
        pruning.prune(str(folder), lambda: [TEXT], str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_pruned_leaves_nothing(source, tmp_path):
    output = tmp_path / "new"
    for model, text, message in (
        (str(tmp_path), TEXT, "holds no weights; allowed: an export, a model_dir"),
        (f"bow:{source}", TEXT, "allowed: an export, .*, or best:MODEL_DIR"),
        (source, ["", " "], "has no line with a word"),
    ):
        with pytest.raises(UserError, match=message):
            pruning.prune(model, lambda text=text: [text], str(output))
    with pytest.raises(UserError, match="is the model itself"):
        pruning.prune(source, lambda: [TEXT], f"{source}/", overwrite=True)
    data = next(Path(source).glob("ckpt-3.data*"))
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(UserError, match="ckpt-3 is damaged"):
        pruning.prune(source, lambda: [TEXT], str(output))
    Path(source, "vocab.txt").write_text("\n".join(model_dirs.VOCAB[:-2]) + "\n")
    with pytest.raises(UserError, match="rows|damaged"):
        pruning.prune(source, lambda: [TEXT], str(output))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


@pytest.mark.large
def test_the_command_keeps_languages(source, tmp_path):
    (tmp_path / "de.txt").write_text("\n".join(TEXT))
    (tmp_path / "fr.txt").write_text(OTHER)
    command = [
        *("cmlm.vocab", f"--prune_model={source}"),
        f"--input=de={tmp_path}/de.txt,fr={tmp_path}/fr.txt",
        f"--output={tmp_path}/new",
    ]

    def run(*arguments):
        return commands.run(*command, *arguments)

    result = run("--keep_languages=de")
    assert result.returncode == 0, result.stderr
    vocab = vocabulary_file.load(f"{tmp_path}/new/vocab.txt")
    assert f"tokens: {len(model_dirs.VOCAB)} -> {len(vocab)} (" in result.stdout
    assert "dog" not in vocab and "cat" in vocab
    refused = run("--keep_languages=it", "--overwrite")
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: --keep_languages=it is not in --input")
