"""Architectures of Hugging Face folders other than BERT: vectors against numpy.

The weights are BERT's under each architecture's names. Where an architecture differs
from BERT, the oracle gets the weights that make BERT compute the same.
"""

import json
import re

import numpy as np
import pytest
import toys
from safetensors.numpy import load_file
from test_foreign_weights import (
    HEADS,
    HIDDEN,
    INNER,
    LAYERS,
    POSITIONS,
    PROJECTION,
    RELATIVE,
    TEXTS,
    VOCAB,
    expected,
    gelu_tanh,
    head_weights,
    run_settings,
    torch_weights,
    vectors,
    write_folder,
)
from test_tokenizers import alberts, byte_pairs, pieces

from cmlm.encoders import opening
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.modeling import foreign, weights
from cmlm.modeling.foreign import huggingface_merges, huggingface_tokenizer
from cmlm.tokenization import tokenizer_file, vocabulary_file
from cmlm.training import building, engine
from cmlm.training.stages import Stage
from export import huggingface_folder, saved_models

TYPES = "embeddings.token_type_embeddings.weight"
TABLE = "embeddings.position_embeddings.weight"
PROJECTIONS = ("query", "key", "value")
NO_SEGMENTS = np.zeros([2, HIDDEN], np.float32)
NARROW = 6
# The steps of ALBERT's tokenizer before SentencePiece.
ALBERT = (
    *(("Replace", quote, '"') for quote in ("``", "''")),
    *(("NFKD",), ("StripAccents",), ("Lowercase",)),
)


def renamed(tensors, table):
    for before, after in table:
        tensors = {name.replace(before, after): v for name, v in tensors.items()}
    return tensors


def distilbert():
    tensors = torch_weights()
    own = {k: v for k, v in tensors.items() if "pooler" not in k and k != TYPES}
    own = {f"distilbert.{name}": value for name, value in own.items()}
    own |= head_weights()
    names = [
        ("encoder.layer", "transformer.layer"),
        ("attention.self.query", "attention.q_lin"),
        ("attention.self.key", "attention.k_lin"),
        ("attention.self.value", "attention.v_lin"),
        ("attention.output.dense", "attention.out_lin"),
        ("attention.output.LayerNorm", "sa_layer_norm"),
        ("intermediate.dense", "ffn.lin1"),
        ("output.dense", "ffn.lin2"),
        ("output.LayerNorm", "output_layer_norm"),
        ("cls.predictions.transform.dense", "vocab_transform"),
        ("cls.predictions.transform.LayerNorm", "vocab_layer_norm"),
        ("cls.predictions.bias", "vocab_projector.bias"),
    ]
    config = {"n_layers": LAYERS, "dim": HIDDEN, "n_heads": HEADS, "hidden_dim": INNER}
    config |= {"activation": "gelu", "max_position_embeddings": POSITIONS}
    return renamed(own, names), tensors | {TYPES: NO_SEGMENTS}, config


def electra():
    tensors = torch_weights()
    own = {f"electra.{k}": v for k, v in tensors.items() if "pooler" not in k}
    own["discriminator_predictions.dense.weight"] = np.ones([HIDDEN, HIDDEN], "f4")
    return own, tensors, {"embedding_size": HIDDEN}


def narrow(tensors):
    """The weights with narrow embeddings and a layer that widens them."""
    random = np.random.default_rng(5)
    cut = {
        name: np.ascontiguousarray(value[..., :NARROW])
        for name, value in tensors.items()
        if name.startswith("embeddings.")
    }
    shapes = {"weight": (HIDDEN, NARROW), "bias": (HIDDEN,)}
    return {
        **tensors,
        **cut,
        **{
            f"{PROJECTION}.{part}": random.normal(0, 0.4, shape).astype(np.float32)
            for part, shape in shapes.items()
        },
    }


def electra_small():
    tensors = narrow(torch_weights())
    own = {f"electra.{k}": v for k, v in tensors.items() if "pooler" not in k}
    own["discriminator_predictions.dense.weight"] = np.ones([HIDDEN, HIDDEN], "f4")
    return own, tensors, {"model_type": "electra", "embedding_size": NARROW}


def narrow_head():
    """ALBERT's masked-LM head, whose transform ends at the embeddings' width."""
    head = {
        name.replace("cls.predictions.transform", "predictions"): (
            np.ascontiguousarray(value[:NARROW]) if "transform" in name else value
        )
        for name, value in head_weights().items()
    }
    bias = head.pop("cls.predictions.bias")
    return head | {"predictions.bias": bias, "predictions.decoder.bias": bias.copy()}


def albert():
    tensors = narrow(torch_weights())
    first, second = "encoder.layer.0.", "encoder.layer.1."
    own = {k: v for k, v in tensors.items() if not k.startswith(second)}
    shared = {k.replace(first, second): v for k, v in own.items() if first in k}
    names = [
        (first, "encoder.albert_layer_groups.0.albert_layers.0."),
        *((f"attention.self.{n}", f"attention.{n}") for n in PROJECTIONS),
        ("attention.output.dense", "attention.dense"),
        ("attention.output.LayerNorm", "attention.LayerNorm"),
        ("intermediate.dense", "ffn"),
        ("output.dense", "ffn_output"),
        ("output.LayerNorm", "full_layer_layer_norm"),
        ("pooler.dense", "pooler"),
        (PROJECTION, "encoder.embedding_hidden_mapping_in"),
    ]
    own = {f"albert.{k}": v for k, v in renamed(own, names).items()} | narrow_head()
    own["sop_classifier.classifier.weight"] = np.ones([2, HIDDEN], "f4")
    config = {"embedding_size": NARROW, "num_hidden_groups": 1, "inner_group_num": 1}
    return own, tensors | shared, {**config, "hidden_act": "gelu_new"}


def ernie():
    tensors = torch_weights()
    tasks = np.random.default_rng(3).normal(size=[3, HIDDEN]).astype(np.float32)
    own = {**tensors, "embeddings.task_type_embeddings.weight": tasks}
    return own, tensors | {TYPES: tensors[TYPES] + tasks[:1]}, {"use_task_id": True}


def ernie_without_tasks():
    """transformers reads the table of tasks only if the configuration says so."""
    own, _, _ = ernie()
    return own, torch_weights(), {"model_type": "ernie", "use_task_id": False}


def roberta():
    tensors = torch_weights()
    # Two rows that no token ever reads, then the positions; one segment.
    unread = np.full([2, HIDDEN], 1e3, np.float32)
    own = tensors | {
        TABLE: np.concatenate([unread, tensors[TABLE]]),
        TYPES: tensors[TYPES][:1],
    }
    own = {f"roberta.{k}": v for k, v in own.items()}
    names = [
        ("cls.predictions.transform.dense", "lm_head.dense"),
        ("cls.predictions.transform.LayerNorm", "lm_head.layer_norm"),
        ("cls.predictions.bias", "lm_head.bias"),
    ]
    own |= renamed(head_weights(), names)
    config = {"max_position_embeddings": POSITIONS + 2, "pad_token_id": 1}
    return own, tensors, {**config, "type_vocab_size": 1}


def mpnet():
    own, tensors, config = roberta()
    table = np.random.default_rng(4).normal(size=[32, HEADS]).astype(np.float32)
    names = [
        ("roberta.", "mpnet."),
        *((f"attention.self.{n}", f"attention.attn.{n[0]}") for n in PROJECTIONS),
        ("attention.output.dense", "attention.attn.o"),
        ("attention.output.LayerNorm", "attention.LayerNorm"),
    ]
    own = renamed(own, names) | {f"mpnet.{RELATIVE}": table}
    del own[f"mpnet.{TYPES}"], config["type_vocab_size"]
    return own, tensors | {RELATIVE: table, TYPES: NO_SEGMENTS}, config


def write_tokenizer_file(folder, padding=1):
    """The words of vocab.txt as a tokenizer.json, instead of that file.

    Args:
        folder: its folder.
        padding: the id of [PAD], 0 or 1; [UNK] has the other. MPNet's is 1.
    """
    ids = {token: number for number, token in enumerate(VOCAB)}
    ids |= {"[PAD]": padding, "[UNK]": 1 - padding}
    values = {
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "RobertaProcessing",
            "cls": ["[CLS]", ids["[CLS]"]],
            "sep": ["[SEP]", ids["[SEP]"]],
        },
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": ids},
    }
    (folder / "vocab.txt").unlink(missing_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(values))


MADE = {"mpnet": mpnet, "distilbert": distilbert, "electra": electra, "ernie": ernie}
MADE |= dict.fromkeys(("roberta", "xlm-roberta", "camembert"), roberta)
MADE |= {"electra-small": electra_small, "albert": albert}
MADE |= {"ernie-without-tasks": ernie_without_tasks}
# What the oracle computes otherwise than BERT.
OPTIONS = {"albert": {"activation": gelu_tanh}}


def write_made(folder, kind):
    """Writes the folder of a row of `MADE`; returns it and the oracle's weights."""
    own, oracle, config = MADE[kind]()
    write_folder(folder, own, **{"model_type": kind, **config})
    if "pad_token_id" in config:
        write_tokenizer_file(folder, config["pad_token_id"])
    return folder, oracle


# On both stacks those that differ most from BERT. Their graphs are tested by
# `test_inference_graph`.
@pytest.mark.parametrize(
    "kind",
    [
        kind
        if kind in ("albert", "mpnet")
        else pytest.param(kind, marks=pytest.mark.large)
        for kind in MADE
    ],
)
@pytest.mark.usefixtures("eager")
def test_vectors_are_numpys(tmp_path, kind):
    folder, oracle = write_made(tmp_path / kind, kind)
    actual, trained = vectors(folder)
    is_unused = any("task_type" in name for name in foreign.find(str(folder)).unused)
    assert is_unused == (kind == "ernie-without-tasks")
    wanted = expected(oracle, **OPTIONS.get(kind, {}))
    np.testing.assert_allclose(actual, wanted, atol=1e-5)
    # Inference computes the same as the network that is trained.
    served = opening.open_encoder(str(folder)).encode(TEXTS)
    np.testing.assert_allclose(served, actual, atol=1e-5)
    # All of the source's positions belong to tokens.
    model = trained.config.model
    assert model.max_position_embeddings - model.num_views == POSITIONS
    # Pairs of texts have two segments, whatever the source has.
    assert model.type_vocab_size == 2


@pytest.mark.parametrize("kind", ["distilbert", "roberta", "albert"])
def test_the_masked_lm_head_comes_along(tmp_path, kind):
    folder, _ = write_made(tmp_path / kind, kind)
    loaded = foreign.find(str(folder)).load()
    head = head_weights()
    if kind == "albert":
        cut = {k: v[:NARROW] for k, v in head.items() if "transform" in k}
        head |= cut
    for here, there in (
        ("transform/dense/bias", "transform.dense.bias"),
        ("transform/LayerNorm/gamma", "transform.LayerNorm.weight"),
        ("output_bias/bias", "bias"),
    ):
        np.testing.assert_array_equal(
            loaded[f"{weights.MASKED_LM}/{here}"], head[f"cls.predictions.{there}"]
        )


DECODERS = {
    "roberta": "lm_head.decoder.weight",
    "albert": "predictions.decoder.weight",
    "distilbert": "vocab_projector.weight",
}


@pytest.mark.parametrize("kind", DECODERS)
def test_a_tied_output_layer_stands_for_the_words(tmp_path, kind):
    """As safetensors' save_model stores a masked LM: a shared table has one name."""
    own, oracle, config = MADE[kind]()
    words = f"{kind}.embeddings.word_embeddings.weight"
    own[DECODERS[kind]] = own.pop(words)
    config = {"model_type": kind, **config}
    folder = write_folder(tmp_path / kind, own, **config)
    if kind == "roberta":
        write_tokenizer_file(folder)
    loaded = foreign.find(str(folder)).load()
    wanted = oracle["embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(loaded[weights.WORDS], wanted)
    # A table of its own is not the words.
    write_folder(folder, own, tie_word_embeddings=False, **config)
    with pytest.raises(UserError, match="needs embeddings.word_embeddings.weight; the"):
        foreign.find(str(folder))


@pytest.mark.parametrize("kind", DECODERS)
def test_a_head_with_its_own_table_is_left_out(tmp_path, kind):
    own, _, config = MADE[kind]()
    words = own[f"{kind}.embeddings.word_embeddings.weight"]
    config |= {"model_type": kind, "tie_word_embeddings": False}
    folder = write_folder(tmp_path / kind, own | {DECODERS[kind]: words + 1}, **config)
    if kind == "roberta":
        write_tokenizer_file(folder)
    source = foreign.find(str(folder))
    assert "left out: the masked-LM head, whose output layer" in source.notes[0]
    loaded = source.load()
    np.testing.assert_array_equal(loaded[weights.WORDS], words)
    assert not any(name.startswith(weights.MASKED_LM) for name in loaded)


@pytest.mark.parametrize("table", ["word_embeddings", "position_embeddings"])
def test_a_missing_table_is_named(tmp_path, table):
    own, _, config = roberta()
    del own[f"roberta.embeddings.{table}.weight"]
    folder = write_folder(tmp_path / "folder", own, model_type="roberta", **config)
    with pytest.raises(UserError, match=f"needs embeddings.{table}.weight; the weight"):
        opening.open_weights(str(folder))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"model_type": "deberta"},
            r"'deberta' \(relative positions\); allowed: bert, dis",
        ),
        ({"model_type": "new"}, "model_type='new'; allowed: bert, distilbert, electra"),
        (
            {"embedding_size": 4},
            "embedding_size=4, hidden_size=16; allowed: both equal",
        ),
        ({"model_type": "electra", "embedding_size": 0}, "=0; allowed: int from 1"),
        (
            {"model_type": "albert", "embedding_size": 16},
            "embedding_size=16, hidden_size=16; allowed: different widths",
        ),
        ({"model_type": "albert", "num_hidden_groups": 2}, "num_hidden_groups=2; .*1"),
        ({"model_type": "albert", "inner_group_num": 3}, "inner_group_num=3; allo.*1"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path, config, said):
    folder = write_folder(tmp_path / "folder", **config)
    with pytest.raises(UserError, match=said) as refused:
        opening.open_weights(str(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("stated", "width"),
    # transformers' default is 128.
    [({"embedding_size": 4}, 4), ({}, 128)],
)
def test_embeddings_have_the_stated_width(tmp_path, stated, width):
    own, _, config = electra_small()
    config = {"model_type": config["model_type"], **stated}
    folder = write_folder(tmp_path / "folder", own, **config)
    said = rf"embeddings.weight of shape \[15, {width}\]; it has shape \[15, {NARROW}\]"
    with pytest.raises(UserError, match=said):
        opening.open_weights(str(folder))


def made_with(weights_of, tokenizer, kind):
    """Returns a maker of a folder with a learnt tokenizer.json."""

    def make(tmp_path):
        own, _, config = weights_of()
        folder = tmp_path / "source"
        folder.mkdir()
        rows = tokenizer(folder).get_vocab_size()
        random = np.random.default_rng(8)
        # The table of words and the biases of the masked-LM head.
        for name in [name for name, value in own.items() if len(value) == len(VOCAB)]:
            shape = (rows, *own[name].shape[1:])
            own[name] = random.normal(0, 0.4, shape).astype(np.float32)
        config |= {"vocab_size": rows, "model_type": kind}
        write_folder(folder, own, **config)
        (folder / "vocab.txt").unlink()
        return folder

    return make


byte_level_roberta = made_with(roberta, lambda at: byte_pairs(at)[0], "roberta")
xlm_roberta = made_with(roberta, lambda at: pieces(at)[1][0], "xlm-roberta")
albert_with_pieces = made_with(albert, lambda at: alberts(at)[0], "albert")


def bert_with_pieces(tmp_path):
    """A BERT with the tokenizer of XLM-R, as Multilingual-MiniLM."""
    folder = tmp_path / "source"
    folder.mkdir()
    rows = pieces(folder)[1][0].get_vocab_size()
    words = np.random.default_rng(8).normal(0, 0.4, [rows, HIDDEN])
    table = {"embeddings.word_embeddings.weight": words.astype(np.float32)}
    write_folder(folder, torch_weights() | table, vocab_size=rows)
    (folder / "vocab.txt").unlink()
    return folder


def narrow_electra(tmp_path):
    return write_made(tmp_path / "source", "electra-small")[0]


def narrow_albert(tmp_path):
    return write_made(tmp_path / "source", "albert")[0]


def relative(tmp_path):
    return write_made(tmp_path / "source", "mpnet")[0]


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        pytest.param(byte_level_roberta, "roberta", marks=pytest.mark.large),
        pytest.param(xlm_roberta, "xlm-roberta", marks=pytest.mark.large),
        pytest.param(bert_with_pieces, "xlm-roberta", marks=pytest.mark.large),
        (relative, "mpnet"),
        pytest.param(narrow_electra, "electra", marks=pytest.mark.large),
    ],
)
@pytest.mark.usefixtures("eager")
def test_a_family_is_written_back_as_itself(tmp_path, make, kind):
    folder = make(tmp_path)
    trained = opening.open_weights(str(folder))
    written = tmp_path / "written"
    written.mkdir()
    huggingface_folder.write(trained, str(written), POSITIONS, False)
    config = json.loads((written / "config.json").read_text())
    assert config["model_type"] == kind
    expected, actual = (
        opening.open_encoder(str(path)).encode(TEXTS) for path in (folder, written)
    )
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    prefix = re.compile("^(roberta|mpnet|electra)[.]")
    names = [
        {prefix.sub("", name) for name in load_file(path / "model.safetensors")}
        for path in (folder, written)
    ]
    heads = re.compile("lm_head|discriminator")
    assert names[1] == {name for name in names[0] if not heads.search(name)}


def test_mpnet_with_another_padding_is_not_written(tmp_path):
    trained = opening.open_weights(str(relative(tmp_path)))
    trained.tokenizer.pad_id = 0
    with pytest.raises(UserError, match="padding token the id 0; allowed .*: 1, bec"):
        huggingface_folder.write(trained, str(tmp_path), POSITIONS, False)


@pytest.mark.large
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_albert_is_written_as_electra(tmp_path, pooling):
    folder = narrow_albert(tmp_path)
    reading = Reading(pooling=pooling)
    written = tmp_path / "written"
    written.mkdir()
    trained = opening.open_weights(str(folder), reading)
    huggingface_folder.write(trained, str(written), POSITIONS, False)
    config = json.loads((written / "config.json").read_text())
    stated = [
        config[name] for name in ("model_type", "embedding_size", "architectures")
    ]
    assert stated == ["electra", NARROW, ["ElectraModel"]]
    expected = opening.open_encoder(str(folder), reading).encode(TEXTS)
    actual = opening.open_encoder(str(written)).encode(TEXTS)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def masked_lm_only(text):
    """Settings of a run without `cmlm`, which needs embeddings as wide as vectors."""
    return [
        "task.cmlm.weight=0",
        "task.mlm.weight=1",
        f"task.mlm.train_data.input_path={text}",
        "task.mlm.train_data.global_batch_size=8",
        "task.mlm.train_data.seq_length=16",
        "trainer.best_checkpoint_metric=mlm/loss",
    ]


@pytest.mark.parametrize(
    "form, said",
    [
        ({"embedding_size": 6}, "model.embedding_size is 6; allowed: 0 with task.cmlm"),
        ({"relative_positions": True}, "task.cmlm is on, and the encoder has relative"),
    ],
)
def test_an_encoder_that_cmlm_cannot_train_is_refused_before_its_text(form, said):
    settings = {f"model.{name}": value for name, value in form.items()}
    with pytest.raises(UserError, match=said):
        toys.run_config("text that is not there", **settings)


def test_embeddings_as_wide_as_vectors_change_nothing():
    config = toys.encoder_config(embedding_size=16)
    assert config.embedding_size == 0
    names = [weight.name for weight in toys.model().encoder.weights]
    assert not any("embedding_projection" in name for name in names)


@pytest.mark.large
@pytest.mark.parametrize("make", [byte_level_roberta, albert_with_pieces])
def test_a_run_from_a_family_trains_and_is_exported(tmp_path, make):
    folder = make(tmp_path)
    more = ["trainer.train_steps=1"]
    if make == albert_with_pieces:
        more += masked_lm_only(tmp_path / "text.txt")
    config = run_settings(tmp_path, folder, more)
    directory = tmp_path / "run"
    run = building.build(Stage(config, str(directory)))
    with toys.eagerly():
        engine.train(run, validate=False)
    assert run.trainer.step == 1
    ours, theirs = (vocabulary_file.find(str(path)) for path in (directory, folder))
    assert vocabulary_file.same(ours, theirs)
    assert (directory / "vocab.txt").exists() == (folder / "vocab.txt").exists()

    trained = opening.open_weights(str(directory))
    (tmp_path / "export").mkdir()
    saved_models.Export(trained, str(tmp_path / "export"), seq_length=16).write()
    expected, actual = (
        opening.open_encoder(str(path)).encode(TEXTS)
        for path in (directory, tmp_path / "export")
    )
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(actual, expected, atol=1e-5)


@pytest.mark.large
@pytest.mark.parametrize("make", [relative, narrow_electra, narrow_albert])
def test_an_export_of_a_family_gives_its_weights(tmp_path, make):
    opened = opening.open_weights(str(make(tmp_path)))
    (tmp_path / "export").mkdir()
    saved_models.Export(opened, str(tmp_path / "export"), seq_length=16).write()
    again = opening.open_weights(str(tmp_path / "export"))
    for name in ("hidden_size", "embedding_size", "relative_positions", "pooling"):
        assert getattr(again.config.model, name) == getattr(opened.config.model, name)
    before = weights.read(opened.encoder, opened.config.model)
    after = weights.read(again.encoder, again.config.model)
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(array, after[name])


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_vocab_json_and_merges_are_a_tokenizer(tmp_path):
    folder = byte_level_roberta(tmp_path)
    values = json.loads((folder / "tokenizer.json").read_text())
    expected = opening.open_encoder(str(folder)).encode(TEXTS)
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(values["model"]["vocab"]))
    merges = [" ".join(pair) for pair in values["model"]["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    actual = opening.open_encoder(str(folder)).encode(TEXTS)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_merges_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    merges = tmp_path / "merges.txt"
    merges.write_bytes(b"a \xff\n")
    with pytest.raises(UserError, match=f"{merges} is not UTF-8: .*0xff"):
        huggingface_merges.read(str(tmp_path))
    merges.unlink()
    merges.mkdir()
    with pytest.raises(UserError, match=f"cannot read {merges}: "):
        huggingface_merges.read(str(tmp_path))


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_a_tokenizer_that_needs_its_file_is_refused_without_it(tmp_path, kind):
    folder, _ = write_made(tmp_path / "folder", kind)
    (folder / "tokenizer.json").unlink()
    if kind == "roberta":
        (folder / "sentencepiece.bpe.model").write_text("")
    said = "has no tokenizer.json, which its tokenizer .* without TensorFlow"
    with pytest.raises(UserError, match=said):
        opening.open_weights(str(folder))


@pytest.mark.parametrize("kind", ["roberta", "mpnet"])
def test_positions_follow_the_padding_of_the_tokenizer(tmp_path, kind):
    folder, _ = write_made(tmp_path / "folder", kind)
    write_tokenizer_file(folder, padding=0)
    with pytest.raises(UserError, match="after the padding id 1, .* id 0; allowed: th"):
        foreign.find(str(folder))
    if kind == "mpnet":
        # Its code has the padding id, whatever the configuration says.
        write_tokenizer_file(folder)
        config = folder / "config.json"
        values = json.loads(config.read_text())
        config.write_text(json.dumps(values | {"pad_token_id": 0}))
        model = foreign.find(str(folder)).model
        assert model["max_position_embeddings"] == POSITIONS


def test_a_class_takes_its_rules_from_its_settings(tmp_path):
    """transformers' RobertaTokenizer and MPNetTokenizer do."""
    mpnet_folder, _ = write_made(tmp_path / "mpnet", "mpnet")
    (tmp_path / "bpe").mkdir()
    byte_pairs(tmp_path / "bpe", prefix_space=True)
    for folder, changes, said in (
        (tmp_path / "bpe", {}, "has add_prefix_space=True, .*config.json has False"),
        (mpnet_folder, {"do_lower_case": False}, "case and accents=lower case, .*cas"),
    ):
        path = str(folder / "tokenizer.json")
        found = tokenizer_file.read(path)
        settings = folder / "tokenizer_config.json"
        settings.write_text(json.dumps(changes))
        with pytest.raises(UserError, match=said):
            huggingface_tokenizer._check_class(found, str(folder), path)
        for same in (
            {"add_prefix_space": True},
            {**changes, "tokenizer_class": "PreTrainedTokenizerFast"},
        ):
            settings.write_text(json.dumps(same))
            huggingface_tokenizer._check_class(found, str(folder), path)


@pytest.mark.parametrize(
    "steps, model_type, settings, said",
    [
        ((("Lowercase",),), "xlm-roberta", {}, "(Lowercase); XLMRobertaTokenizer of"),
        ((), "xlm-roberta", {}, ""),
        ((("NFC",),), "bert", {"tokenizer_class": "CamembertTokenizerFast"}, "(none)"),
        ((("NFC",),), "camembert", {"tokenizer_class": "TokenizersBackend"}, ""),
        ((("NFC",),), "bert", {}, ""),
        (ALBERT[:2], "albert", {}, ", NFKD, StripAccents, Lowercase)"),
        (ALBERT[:2], "albert", {"do_lower_case": False, "keep_accents": True}, ""),
        (ALBERT, "albert", {}, ""),
        (ALBERT, "albert", {"do_lower_case": False}, "StripAccents)"),
    ],
)
def test_steps_that_transformers_does_not_take_are_named(
    steps, model_type, settings, said, tmp_path
):
    """Its classes for SentencePiece make them from their settings."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = tokenizer_file.TokenizerFile("Unigram", [], {}, steps=steps)
    warnings = huggingface_tokenizer._warnings_of_steps(found, str(tmp_path))
    assert len(warnings) == bool(said)
    assert said in "".join(warnings)


def test_vocabularies_are_the_folders(tmp_path):
    folder, _ = write_made(tmp_path / "folder", "distilbert")
    assert foreign.find(str(folder)).vocab == VOCAB
