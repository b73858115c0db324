"""The command that fits principal components: from text, and from saved vectors."""

from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest

from cmlm.encoders import components_file, identity, opening

ROOT = Path(__file__).resolve().parent.parent


def command(*flags):
    return commands.run("cmlm.pcr", *flags)


@pytest.fixture
def sentences(tmp_path):
    random = np.random.default_rng(4)
    words = [word for word in model_dirs.VOCAB[5:16] if not word.startswith("##")]
    lines = [" ".join(random.choice(words, random.integers(1, 9))) for _ in range(60)]
    # Empty lines are not sentences of a language.
    (tmp_path / "de.txt").write_text("\n\n".join(lines) + "\n")
    return lines


@pytest.mark.large
def test_text_and_vectors(toy_export, sentences, tmp_path):
    encoder = opening.open_encoder(toy_export.path)
    vectors = encoder.encode(sentences)
    np.save(tmp_path / "fr.npy", vectors[:30])
    output = tmp_path / "pcr.npz"
    done = command(
        *(f"--model={toy_export.path}", f"--output={output}", "--components=2"),
        *(f"--text=DE={tmp_path / 'de.txt'}", "--max_sentences=50"),
        f"--vectors=fr={tmp_path / 'fr.npy'}",
    )
    assert done.returncode == 0, done.stderr
    assert "de: 50 sentences" in done.stderr and "fr: 30 sentences" in done.stderr
    fitted = components_file.load(str(output))
    # The fingerprint of the checkpoint that was exported.
    assert fitted.fingerprint == identity.fingerprint(toy_export.trained)
    assert list(fitted.languages) == ["de", "fr"]
    for language, rows in (("de", vectors[:50]), ("fr", vectors[:30])):
        right = np.linalg.svd(rows.astype(np.float64))[2][:2]
        found = fitted.languages[language].components
        np.testing.assert_allclose(np.abs(np.sum(found * right, axis=1)), 1, atol=1e-5)


@pytest.mark.large
def test_mistakes_are_one_line(toy_export, sentences, tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}] * 3, object), allow_pickle=True)
    text = f"--text=de={tmp_path / 'de.txt'}"
    output = f"--output={tmp_path / 'pcr.npz'}"
    for flags, said in (
        ([text, "--output=pcr.txt"], "allowed: a path that ends in .npz"),
        ([output], "no sentences; allowed"),
        ([output, text, text], "de is given twice"),
        (
            [output, f"--vectors=de={tmp_path}/objects.npy"],
            f"de, {tmp_path}/objects.npy: cannot read {tmp_path}/objects.npy as .npy",
        ),
    ):
        refused = command(f"--model={toy_export.path}", *flags)
        assert refused.returncode == 1, flags
        errors = refused.stderr.splitlines()
        assert len(errors) == 1 and said in errors[0], refused.stderr
    assert not (tmp_path / "pcr.npz").exists()
