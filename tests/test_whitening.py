"""Whitening: the map against scikit-learn and by hand, and in an export."""

import commands
import model_dirs
import numpy as np
import pytest
from sklearn import decomposition

from cmlm.common import whitening
from cmlm.common.moments import Moments
from cmlm.encoders import opening
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError


def fit(vectors):
    moments = Moments(vectors.shape[1])
    for piece in np.array_split(vectors, 3):
        moments.add(piece)
    return whitening.fit(moments)


@pytest.fixture
def vectors():
    random = np.random.default_rng(0)
    # Not centred, and of many scales, as sentence vectors are.
    mixing = random.normal(size=[8, 8]) * np.geomspace(3, 0.1, 8)
    return (random.normal(size=[400, 8]) @ mixing + 2).astype(np.float32)


def test_without_a_ridge_it_equals_scikit_learn(vectors, monkeypatch):
    monkeypatch.setattr(whitening, "_RIDGE", 0)
    found = fit(vectors)(vectors)
    other = decomposition.PCA(whiten=True).fit_transform(vectors.astype(np.float64))
    # It divides by n - 1; signs are arbitrary.
    other *= np.sqrt(400 / 399) * np.sign((found * other).sum(axis=0))
    np.testing.assert_allclose(found, other, atol=1e-4)


def test_the_ridge_bounds_the_variances(vectors):
    fitted = fit(vectors)
    found = fitted(vectors.astype(np.float64))
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-5)
    variances = np.linalg.eigvalsh(np.cov(vectors.T, bias=True))[::-1]
    expected = np.diag(variances / (variances + 0.01 * variances.mean()))
    np.testing.assert_allclose(found.T @ found / 400, expected, atol=1e-5)
    assert fitted.sentences == 400


def test_a_direction_without_variance_stays_finite(vectors):
    vectors[:, 3] = 5
    found = fit(vectors)(vectors)
    assert np.isfinite(found).all() and np.abs(found[:, -1]).max() < 1e-3


def test_too_little_text_is_refused(vectors):
    with pytest.raises(
        UserError, match="text has 7 sentences; allowed: at least 8, the w"
    ):
        fit(vectors[:7])
    with pytest.raises(UserError, match="equal vectors; allowed: different ones"):
        fit(np.repeat(vectors[:1], 20, axis=0))
    with pytest.raises(UserError, match="equal vectors"):
        fit(np.zeros([20, 8]))


# -------------------------------------------------------------------- exports


@pytest.fixture(scope="module")
def texts():
    random = np.random.default_rng(4)
    words = [word for word in model_dirs.VOCAB[5:16] if not word.startswith("##")]
    return [" ".join(random.choice(words, random.integers(1, 9))) for _ in range(60)]


@pytest.fixture(scope="module")
def whitened(toy_export, texts, tmp_path_factory):
    """The export of a run that is whitened by two files, and the command."""
    folder = tmp_path_factory.mktemp("whitened")
    return model_dirs.export_fitted(toy_export.source, texts, folder, "whitening")


@pytest.fixture(scope="module")
def expected(toy_export, texts):
    plain = opening.open_encoder(toy_export.source).encode(texts).astype(np.float64)
    centred = plain - plain.mean(axis=0)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    variances = lengths**2 / len(texts)
    return centred @ directions.T / np.sqrt(variances + 0.01 * variances.mean())


def cosines(vectors):
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return units @ units.T


@pytest.mark.large
def test_every_saved_model_gives_whitened_vectors(whitened, expected, texts):
    path, _ = whitened
    encoder = opening.open_encoder(str(path))
    found = encoder.encode(texts)
    # The signs of directions are arbitrary; cosines do not depend on them.
    np.testing.assert_allclose(cosines(found), cosines(expected), atol=2e-4)
    np.testing.assert_allclose(found.mean(axis=0), 0, atol=1e-4)
    model_dirs.assert_fitted_encoder(path, texts, found, "whitening", 1e-4)


@pytest.mark.large
def test_an_export_describes_its_whitening(whitened, toy_export):
    path, _ = whitened
    said = "whitened by 60 sentences"
    model_dirs.assert_fitted_description(path, toy_export.source, "whitening", 60, said)


@pytest.mark.large
def test_its_weights_come_with_whitening(whitened, toy_export, texts, caplog):
    path, _ = whitened
    model_dirs.assert_reread(path, "whitening", texts)
    # It belongs to whole vectors.
    shorter = Reading(dimensions=12)
    model_dirs.assert_left_out(path, toy_export.source, texts, shorter)
    said = f"{path}/encoder: its whitening is left out; an export adds it with --"
    assert said in caplog.text


@pytest.mark.large
def test_wrong_flags_are_one_line(whitened, tmp_path):
    path, (model, text) = whitened
    out = f"--export_dir={tmp_path}/new"
    (tmp_path / "few.txt").write_text("one\ntwo\n")
    for flags, said in (
        ([text, "--pcr=pcr.npz"], "--whitening and --pcr are both given; allowed: one"),
        ([f"--whitening={tmp_path}/none*"], "--whitening: no file matches"),
        (
            [f"--whitening={tmp_path}/few.txt"],
            "--whitening: the text has 2 sentences; allowed: at least 16",
        ),
        ([f"--whitening={path}/export.json", f"--export_dir={path}"], "--export_dir"),
    ):
        done = commands.run("export.tfhub", model, out, *flags)
        assert done.returncode == 1
        *_, last = done.stderr.strip().splitlines()
        assert said in last, done.stderr
        assert not (tmp_path / "new").exists()
