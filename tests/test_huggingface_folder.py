"""A folder for Hugging Face's libraries says the same encoder, and comes back the same.

What `sentence_transformers` and `transformers` make of it is not run here, as nothing
else needs PyTorch: docs/log/exports.md has the comparison.
"""

import json
import re
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest
import safetensors.numpy
import tensorflow as tf
import tokenizers as hugging_face
import yaml

from cmlm.config import model_dir, run_records
from cmlm.encoders import fingerprints, opening, run_weights
from cmlm.encoders.graph import SentenceGraph
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.modeling import foreign, restoring, weights
from cmlm.tokenization import bert_normalizer
from export import huggingface_folder, model_card, text_fitting

ROOT = Path(__file__).resolve().parent.parent


def export(tmp_path, normalize=False, **settings):
    source = model_dirs.write(tmp_path / "run", **settings)
    trained = run_weights.load(source)
    folder = tmp_path / "folder"
    folder.mkdir()
    huggingface_folder.write(trained, str(folder), model_dirs.SEQ_LENGTH, normalize)
    return trained, folder


def vectors(trained):
    graph = SentenceGraph(trained.tokenizer, trained.encoder, model_dirs.SEQ_LENGTH)
    return graph.vectors(tf.constant(model_dirs.SENTENCES)).numpy()


@pytest.mark.parametrize(
    "settings",
    [
        {
            "model.num_layers": 2,
            "model.pooling": "pooler",
            "model.hidden_activation": "gelu_tanh",
        },
        pytest.param(
            {"model.pooling": "max", "model.layer_norm_epsilon": 1e-3},
            marks=pytest.mark.large,
        ),
        pytest.param(
            {"vocabulary.lower_case": False, "model.hidden_activation": "relu"},
            marks=pytest.mark.large,
        ),
    ],
)
def test_export_and_import_give_the_same_bytes(tmp_path, settings):
    trained, folder = export(tmp_path, **settings)
    again = opening.open_weights(str(folder))
    before = weights.read(trained.encoder, trained.config.model)
    after = weights.read(again.encoder, again.config.model)
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    model = trained.config.model.as_dict()
    own = {name: model[name] for name in ("preset", "seq_length")}
    assert {**again.config.model.as_dict(), **own} == model
    assert again.tokenizer.vocab == trained.tokenizer.vocab
    assert again.seq_length == model_dirs.SEQ_LENGTH
    np.testing.assert_array_equal(vectors(again), vectors(trained))


def test_names_and_layout_are_those_of_a_bert_model(tmp_path):
    trained, folder = export(tmp_path, **{"model.num_layers": 2})
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "bert" and config["architectures"] == ["BertModel"]
    per_layer, outside = 16, 7
    assert len(tensors) == per_layer * config["num_hidden_layers"] + outside
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    # A torch.nn.Linear holds [out, in].
    assert tensors["encoder.layer.1.intermediate.dense.weight"].shape == (inner, hidden)
    by_name = {
        v.name.partition("/bert/")[2]: v.numpy() for v in trained.encoder.bert.weights
    }
    query = by_name["transformer/layer_1/self_attention/query/kernel:0"]
    np.testing.assert_array_equal(
        tensors["encoder.layer.1.attention.self.query.weight"],
        query.reshape(hidden, hidden).T,
    )


@pytest.mark.large
def test_whoever_may_read_one_file_may_read_all(tmp_path):
    """safetensors 0.8 lets the owner alone read a file that it writes."""
    _, folder = export(tmp_path)
    modes = {p.name: p.stat().st_mode for p in folder.rglob("*.*") if p.is_file()}
    assert len(set(modes.values())) == 1, modes


def test_tokenizer_files_agree(tmp_path):
    trained, folder = export(tmp_path)
    fast = json.loads((folder / "tokenizer.json").read_text())
    slow = json.loads((folder / "tokenizer_config.json").read_text())
    vocab = (folder / "vocab.txt").read_text().split("\n")[:-1]
    assert vocab == list(trained.tokenizer.vocab)
    assert fast["model"]["vocab"] == {token: i for i, token in enumerate(vocab)}
    # tf-text folds letters and ends words before BERT's own step.
    *folding, dropping, splitting, bert = fast["normalizer"]["normalizers"]
    assert folding == bert_normalizer.FOLDING and bert["type"] == "BertNormalizer"
    assert dropping == bert_normalizer.DROPPING
    assert splitting == bert_normalizer.SPLITTING and not bert["clean_text"]
    assert bert["lowercase"] is slow["do_lower_case"] is True
    assert slow["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert slow["model_max_length"] == model_dirs.SEQ_LENGTH
    special = {token["content"]: token["id"] for token in fast["added_tokens"]}
    assert special == {vocab[i]: i for i in range(5)}


@pytest.mark.parametrize("settings", [{}, {"vocabulary.lower_case": False}])
def test_tokens_of_unusual_characters_are_those_of_the_run(tmp_path, settings):
    trained, folder = export(tmp_path, **settings)
    theirs = hugging_face.Tokenizer.from_file(str(folder / "tokenizer.json"))
    odd = "\ufffd \ue000 \u3164 \u115f \u00ad \u200d \u0007 \u0085 \t".split(" ")
    for text in [f"the mat{char}s cat {char} {char}dog" for char in odd]:
        (row,) = trained.tokenizer.tokenize(tf.constant([text])).to_list()
        assert theirs.encode(text, add_special_tokens=False).ids == row, repr(text)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    # transformers then reads "[SEP]" in a text as three words, as this project does.
    assert settings["split_special_tokens"] is True


def test_modules_follow_pooling_and_normalisation(tmp_path):
    _, folder = export(tmp_path, normalize=True, **{"model.pooling": "pooler"})
    modules = json.loads((folder / "modules.json").read_text())
    kinds = [entry["type"].rpartition(".")[2] for entry in modules]
    assert kinds == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert all((folder / entry["path"]).is_dir() for entry in modules)
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert [key for key, value in pooling.items() if value is True] == [
        "pooling_mode_cls_token"
    ]


@pytest.mark.large
def test_modules_hold_what_text_determines(tmp_path, caplog):
    source = model_dirs.write(tmp_path / "run", **{"model.hidden_size": 16})
    trained = run_weights.load(source, reading=Reading(dimensions=12))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(model_dirs.SENTENCES * 5))
    text_fitting.weigh_words(trained, 32, [str(text)])
    text_fitting.whiten(trained, 32, [str(text)])
    folder = tmp_path / "folder"
    folder.mkdir()
    huggingface_folder.write(trained, str(folder), 32, normalize=False)
    modules = json.loads((folder / "modules.json").read_text())
    paths = ["", "1_WordWeights", "2_Pooling", "3_Whitening"]
    assert [entry["path"] for entry in modules] == paths
    kinds = [entry["type"].rpartition(".")[2] for entry in modules]
    assert kinds == ["Transformer", "WordWeights", "Pooling", "Dense"]

    # As the modules of sentence-transformers compute.
    config = json.loads((folder / paths[1] / "config.json").read_text())
    assert config["vocab"] == list(trained.tokenizer.vocab)
    by_word, dense = (
        safetensors.numpy.load_file(folder / path / "model.safetensors")
        for path in (paths[1], paths[3])
    )
    ids = trained.tokenizer.encode(model_dirs.SENTENCES, 32).to_tensor()
    inputs = {"input_word_ids": ids, "input_mask": tf.cast(ids > 0, tf.int32)}
    outputs = trained.encoder(inputs)
    weight = by_word["emb_layer.weight"][ids][:, :, 0] * (ids.numpy() > 0)
    words = [config["word_weights"][word] for word in config["vocab"]]
    np.testing.assert_allclose(by_word["emb_layer.weight"][:, 0], words, rtol=1e-6)
    total = np.einsum("bs,bsd->bd", weight, outputs["sequence_output"])
    pooled = total / weight.sum(axis=1, keepdims=True)
    found = pooled @ dense["linear.weight"].T + dense["linear.bias"]
    np.testing.assert_allclose(found, outputs["default"], atol=1e-4)

    # The folder gives the same encoder again.
    opened = opening.open_weights(str(folder))
    assert list(opened.encoder.fitted) == ["sif", "whitening"]
    assert fingerprints.fingerprint(opened) == fingerprints.fingerprint(trained)
    again = opened.encoder(inputs)["default"]
    np.testing.assert_array_equal(again, outputs["default"])
    # A run trains without these layers.
    model = weights.model_for(opened.config.model, 0)
    restoring.initialize(model, str(folder))
    assert not model.encoder.fitted
    for said in ("its word weights are left out", "its whitening is left out"):
        assert f"{folder}: {said}; an export adds " in caplog.text
    # Another folder's modules may hold anything.
    config = json.loads((folder / "config.json").read_text())
    del config["cmlm"]["sif"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="WordWeights' at position 1; allowed, in"):
        foreign.find(str(folder))


@pytest.mark.large
def test_projected_vectors_have_no_place_there(tmp_path):
    with pytest.raises(UserError, match="sentence_vector is 'projected'"):
        export(tmp_path, **{"model.sentence_vector": "projected"})


def test_card_says_what_the_run_says(tmp_path, caplog):
    rows = [
        {"step": 2, "validation/cmlm/loss": 5.5},
        {"step": 3, "validation/cmlm/loss": 4.25, "time": 1.0},
        {"step": 3, "train/cmlm/loss": 9.0},
        {"step": 9, "validation/cmlm/loss": 1.0},
    ]
    (tmp_path / "run").mkdir()
    text = "\n".join(json.dumps(row) for row in rows) + '\n{"step": 3, "valid'
    (tmp_path / "run" / "metrics.jsonl").write_text(text)
    trained, folder = export(tmp_path)
    card = (folder / "README.md").read_text()
    for said in (
        "library_name: sentence-transformers",
        "| vector | float32 [16], not normalised |",
        "| pooling | mean of the token vectors",
        "| longest sentence | 37 tokens",
        "lower case, accents stripped |",
        "| languages | not stated |",
        "3 of 20 steps",
        "`corpus.txt`",
        "Validation at step 3:",
        "| cmlm/loss | 4.2500 |",
        f"| tensorflow | not stated | {tf.__version__} |",
    ):
        assert said in card
    task = trained.config.task
    task.cmlm.train_data.input_path = "no=a.txt,pt-br=b.txt,zh-Hant=c.txt"
    task.bitext.weight = 1.0
    task.bitext.train_data.input_path = "en-de=a.tsv,zh-Hant-fr=b.tsv"
    assert "teacher" not in card
    task.distill.weight, task.distill.teacher = 1.0, "pretrained/minilm"
    card = model_card.render(trained, 37, True, False)
    assert "\nThe teacher of distill is `pretrained/minilm`.\n" in card
    header = yaml.safe_load(card.split("---\n")[1])
    assert set(header["language"]) == {*("no", "pt", "zh"), *("en", "de", "fr")}
    (row,) = re.findall(r"\| languages \| (.*) \|", card)
    assert set(row.split(", ")) == {*("no", "pt-br", "zh-Hant"), *("en", "de", "fr")}
    # A start that counts no more, and one behind this step.
    rate, goal = "trainer.optimizer.learning_rate", "trainer.train_steps"
    input_path = "task.cmlm.train_data.input_path"
    for step, batch, size, changed in (
        (0, 4, 7, {}),
        (1, 8, 9, {rate: [0.004, 0.003], goal: [20, 30]}),
        (1, 16, 1000, {goal: [30, 20], input_path: ["a|b", "c"]}),
        (3, 32, 1000, {rate: [0.003, 0.0005], goal: [20, 40], input_path: ["d", "e"]}),
        # The model of the export, and settings of another version.
        (3, 32, 1000, {"model.pooling": ["max", "mean"], "trainer.gone": [1, 2]}),
    ):
        row = {"step": step, "global_batch_size": {"cmlm": batch}, "changed": changed}
        row["text"] = {"cmlm": {"": [["a", size]]}}
        row["versions"] = {"tensorflow": f"2.{batch}"}
        run_records.add_start(trained.run, row)
    with Path(trained.run, model_dir.STARTS).open("a") as file:
        file.write("damaged\n")
    caplog.clear()
    card = model_card.render(trained, 37, True, False)
    assert caplog.text.count("lines are not rows of starts") == 1
    assert "| 0 | cmlm | 4 | 1 | 7 |\n| 1 | cmlm | 16 | 1 | 1,000 |\n\n" in card
    # The settings of this step, not those of the last start.
    assert "\n3 of 20 steps, lamb 0.003, seed " in card and "| `d` |" in card
    rows = f"| 1 | `{rate}` | 0.004 | 0.003 |\n| 1 | `{input_path}` | a\\|b | c |\n\n"
    assert rows in card and goal not in card
    assert task.cmlm.train_data.input_path != "d"
    assert f"| tensorflow | 2.4, 2.16 | {tf.__version__} |\n" in card
    # For TF Hub: another usage, no header of the other hub.
    plain = model_card.render(trained, 37, False, False)
    assert "hub.load" in plain and "library_name" not in plain


@pytest.mark.large
def test_command_writes_a_folder_or_nothing(tmp_path):
    source = model_dirs.write(tmp_path / "run")

    def command(*flags):
        return commands.run("export.huggingface", *flags)

    out = tmp_path / "out"
    flags = (f"--model_dir={source}", f"--output={out}")
    assert command(*flags, "--seq_length=99").returncode == 1
    assert not out.exists()
    remote = command(f"--model_dir={source}", "--output=gs://bucket/out")
    said = "error: --output is gs://bucket/out; allowed: a local folder\n"
    assert (remote.returncode, remote.stderr) == (1, said)
    done = command(*flags, "--normalize")
    assert done.returncode == 0, done.stderr
    assert str(out) in done.stdout
    assert (out / "2_Normalize").is_dir()
    again = opening.open_weights(str(out))
    assert again.config.model.hidden_size == 16
    # It is a source, too, but no run's folder.
    second = tmp_path / "second"
    wrong = command(f"--model_dir={out}", f"--output={second}")
    assert (
        f"{out}, which no run wrote; allowed: the folder of a run, or " in wrong.stderr
    )
    assert f"--from={out}" in wrong.stderr
    done = command(f"--from={out}", f"--output={second}")
    assert done.returncode == 0, done.stderr
    weights = "model.safetensors"
    assert (second / weights).read_bytes() == (out / weights).read_bytes()
