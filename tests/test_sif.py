"""SIF: the weights of tokens, and the weighted mean in an export."""

import collections

import commands
import model_dirs
import numpy as np
import pytest
import tensorflow as tf

from cmlm.common import sif
from cmlm.encoders import opening, pruning, run_weights
from cmlm.encoders.reading import Reading


def test_the_weight_of_a_token_falls_with_its_frequency():
    found = sif.weights(np.array([0, 1, 249, 750]))
    expected = [1, 0.001 / 0.002, 0.001 / 0.25, 0.001 / 0.751]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


# -------------------------------------------------------------------- exports


@pytest.fixture(scope="module")
def texts():
    random = np.random.default_rng(5)
    words = [word for word in model_dirs.VOCAB[5:16] if not word.startswith("##")]
    # Some words are much more frequent than others.
    shares = 1 / np.arange(1, len(words) + 1) ** 2
    shares /= shares.sum()
    lengths = random.integers(2, 9, 50)
    return [" ".join(random.choice(words, length, p=shares)) for length in lengths]


@pytest.fixture(scope="module")
def weighted(toy_export, texts, tmp_path_factory):
    """The export of a run that is weighted by two files, and the command's flags."""
    folder = tmp_path_factory.mktemp("weighted")
    return model_dirs.export_fitted(toy_export.source, texts, folder, "sif")


@pytest.fixture(scope="module")
def expected(toy_export, texts):
    """The weighted means by hand, float64 [n, dim]."""
    opened = run_weights.load(toy_export.source)
    ids = [opened.tokenizer.encode([text], 32)[0].numpy() for text in texts]
    counts = collections.Counter(token for row in ids for token in row.tolist())
    # [CLS] and [SEP] are no words.
    for token in (opened.tokenizer.cls_id, opened.tokenizer.sep_id):
        del counts[token]
    total = counts.total()
    vectors = []
    for row in ids:
        inputs = {"input_word_ids": row[None], "input_mask": np.ones_like(row[None])}
        inputs = {name: tf.constant(values) for name, values in inputs.items()}
        tokens = opened.encoder(inputs)["sequence_output"][0].numpy().astype(float)
        weights = [0.001 / (0.001 + counts[token] / total) for token in row.tolist()]
        vectors.append(np.average(tokens, axis=0, weights=weights))
    return np.array(vectors)


@pytest.mark.large
def test_every_saved_model_gives_weighted_means(weighted, expected, texts, toy_export):
    path, _ = weighted
    found = opening.open_encoder(str(path)).encode(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    plain = opening.open_encoder(toy_export.source).encode(texts)
    assert np.abs(found - plain).max() > 0.05
    model_dirs.assert_fitted_encoder(path, texts, found, "sif", 1e-5)


@pytest.mark.large
def test_an_export_describes_its_sif(weighted, toy_export):
    path, _ = weighted
    said = "weighted by SIF of 50 sentences"
    model_dirs.assert_fitted_description(path, toy_export.source, "sif", 50, said)


@pytest.mark.large
def test_its_weights_come_with_sif(weighted, toy_export, texts, caplog):
    path, _ = weighted
    model_dirs.assert_reread(path, "sif", texts)
    # It belongs to the pooling mean.
    by_maximum = Reading(pooling="max")
    model_dirs.assert_left_out(path, toy_export.source, texts, by_maximum)
    said = f"{path}/encoder: its word weights are left out; an export adds them"
    assert said in caplog.text


@pytest.mark.large
def test_a_pruned_model_comes_without_sif(
    weighted, toy_export, texts, tmp_path, caplog
):
    path, _ = weighted
    pruned = str(tmp_path / "pruned")
    pruning.prune(str(path / "encoder"), lambda: iter([texts]), pruned)
    assert f"{path}/encoder: its word weights are left out" in caplog.text
    plain = opening.open_encoder(toy_export.source)
    found = opening.open_encoder(pruned).encode(texts)
    np.testing.assert_allclose(found, plain.encode(texts), atol=1e-5)


@pytest.mark.large
def test_with_whitening_and_with_principal_components(weighted, expected, tmp_path):
    path, flags = weighted
    text = flags[1].partition("=")[2]
    both = f"--whitening={text}", f"--export_dir={tmp_path}/both"
    done = commands.run("export.tfhub", *flags, *both)
    assert done.returncode == 0, done.stderr
    # The whitening was fitted on weighted means.
    files = [path.parent / "first.txt", path.parent / "second.txt"]
    lines = [line for file in files for line in file.read_text().split("\n") if line]
    found = opening.open_encoder(f"{tmp_path}/both").encode(lines)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-4)
    # A file of cmlm.pcr belongs to the encoder with or without the weights.
    pcr = f"{tmp_path}/pcr.npz"
    fit = f"--text=en={path.parent}/first.txt", f"--output={pcr}"
    for model, returncode in ((path, 0), (flags[0].partition("=")[2], 1)):
        done = commands.run("cmlm.pcr", f"--model={model}", *fit, "--overwrite")
        assert done.returncode == 0, done.stderr
        out = f"--export_dir={tmp_path}/removed", "--overwrite"
        done = commands.run("export.tfhub", *flags, *out, f"--pcr={pcr}")
        assert done.returncode == returncode, done.stderr
    assert "--sif and prompt" in done.stderr


@pytest.mark.large
def test_a_hugging_face_folder_takes_the_flag(weighted, tmp_path):
    path, flags = weighted
    folder = tmp_path / "folder"
    # As `cmlm.prepare` names its output for --train_data.
    named = f"--sif=en={path.parent}/first.t*,de={path.parent}/second.txt"
    done = commands.run("export.huggingface", flags[0], named, f"--output={folder}")
    assert done.returncode == 0, done.stderr
    assert "sif: 50 sentences of 2 files" in done.stderr
    assert (folder / "1_WordWeights" / "model.safetensors").is_file()
    assert "weighted by SIF of 50 sentences" in (folder / "README.md").read_text()
    files = f"{tmp_path}/none*"
    done = commands.run("export.huggingface", *flags, f"--sif={files}", "--output=new")
    assert done.returncode == 1 and "--sif: no file matches" in done.stderr


@pytest.mark.large
def test_wrong_flags_are_one_line(weighted, tmp_path):
    _, (model, text) = weighted
    out = f"--export_dir={tmp_path}/new"
    (tmp_path / "blank.txt").write_text("\n \n")
    for flags, said in (
        ([text, "--pooling=cls"], "--sif: the pooling is cls; allowed: mean"),
        ([f"--sif={tmp_path}/none*"], "--sif: no file matches"),
        ([f"--sif={tmp_path}/blank.txt"], "--sif: the text has no words; allowed"),
    ):
        done = commands.run("export.tfhub", model, out, *flags)
        assert done.returncode == 1
        *_, last = done.stderr.strip().splitlines()
        assert said in last, done.stderr
        assert not (tmp_path / "new").exists()
