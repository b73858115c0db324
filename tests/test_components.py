"""Principal components: against numpy's SVD, by hand, and in a file."""

import json
import time
import types
import zipfile

import numpy as np
import pytest

from cmlm.common import arrays, components, outputs
from cmlm.common.components import remove
from cmlm.common.moments import Moments
from cmlm.encoders import components_file, vector_files, vector_moments
from cmlm.encoders.components_file import PrincipalComponents
from cmlm.errors import UserError


def fit(vectors, count=1):
    moments = Moments(vectors.shape[1])
    moments.add(vectors)
    return components.fit(moments, count)


@pytest.fixture
def vectors():
    random = np.random.default_rng(0)
    mixing = random.normal(size=[8, 8])
    # Not centred: the mean is most of the first component, as in real embeddings.
    return (random.normal(size=[300, 8]) @ mixing + 2).astype(np.float32)


@pytest.fixture
def fitted(vectors):
    languages = {"de": fit(vectors, 2), "zh-hant": fit(vectors[:50] ** 2, 2)}
    return PrincipalComponents("0123456789abcdef", languages)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_components_are_the_right_singular_vectors(vectors, count):
    found = fit(vectors, count)
    _, singular, right = np.linalg.svd(vectors.astype(np.float64), full_matrices=False)
    cosines = np.abs(np.sum(found.components * right[:count], axis=1))
    np.testing.assert_allclose(cosines, 1, atol=1e-6)
    shares = singular[:count] ** 2 / np.sum(singular**2)
    np.testing.assert_allclose(found.shares, shares, rtol=1e-9)
    assert found.sentences == 300


def test_removal_by_hand():
    # All vectors lie along (3, 4): c = (0.6, 0.8).
    found = fit(np.array([[3.0, 4.0], [-6.0, -8.0]]))
    np.testing.assert_allclose(found.components, [[0.6, 0.8]], atol=1e-7)
    assert found.shares == pytest.approx([1.0])
    # (5, 0) . c = 3; (5, 0) - 3 c = (3.2, -2.4).
    removed = remove(np.array([[5.0, 0.0]]), found.components)
    np.testing.assert_allclose(removed, [[3.2, -2.4]], atol=1e-6)


def test_nothing_is_left_along_the_components(vectors):
    found = fit(vectors, 2)
    removed = remove(vectors, found.components)
    assert np.abs(vectors @ found.components.T).max() > 1
    np.testing.assert_allclose(removed @ found.components.T, 0, atol=1e-5)
    # What is perpendicular to them stays: the rest lies along the components.
    along = (vectors - removed) @ found.components.T @ found.components
    np.testing.assert_allclose(vectors - removed, along, atol=1e-5)


def test_pieces_add_up(vectors):
    moments = Moments(8)
    for piece in np.array_split(vectors, 7):
        moments.add(piece)
    moments.add(vectors[:0])
    np.testing.assert_allclose(
        components.fit(moments, 3).components, fit(vectors, 3).components, atol=1e-6
    )


@pytest.mark.parametrize(
    "wrong, said",
    [
        (np.zeros([2, 7]), r"\[2, 7\]; allowed: \[n, 8\]"),
        (np.zeros([2, 9]), r"\[2, 9\]; allowed: \[n, 8\]"),
        (np.zeros([8]), "allowed"),
        (np.full([1, 8], np.nan), "not a finite number"),
    ],
)
def test_wrong_vectors_are_refused(wrong, said):
    with pytest.raises(UserError, match=said):
        Moments(8).add(wrong)


def test_there_are_no_more_components_than_vectors(vectors):
    with pytest.raises(UserError, match="is 4; allowed: 1 to 3, the rank of 3 vectors"):
        fit(vectors[:3], 4)
    with pytest.raises(UserError, match="allowed: 1 to 8"):
        fit(vectors, 9)


# --------------------------------------------------------------------- files


def test_a_file_gives_back_what_was_written(fitted, tmp_path):
    path = tmp_path / "pcr.npz"
    components_file.save(str(path), fitted)
    loaded = components_file.load(str(path))
    assert loaded.fingerprint == fitted.fingerprint
    assert list(loaded.languages) == ["de", "zh-hant"]
    np.testing.assert_array_equal(loaded.table, fitted.table)
    for name, found in fitted.languages.items():
        assert loaded.languages[name].shares == pytest.approx(found.shares, abs=0)
        assert loaded.languages[name].sentences == found.sentences
    again = tmp_path / "again.npz"
    components_file.save(str(again), loaded)
    assert again.read_bytes() == path.read_bytes()


def test_another_model_is_refused(fitted):
    fitted.check_model("0123456789abcdef", 8, "pcr.npz")
    with pytest.raises(UserError, match="fingerprint 0123456789ab, this encoder has f"):
        fitted.check_model("fedcba9876543210", 8, "pcr.npz")
    with pytest.raises(UserError, match="width 8, the model's vectors 16"):
        fitted.check_model("0123456789abcdef", 16, "pcr.npz")


def test_vectors_that_another_model_made_are_refused(vectors, tmp_path):
    def encoder(fingerprint, precision="float32"):
        return types.SimpleNamespace(
            dim=8,
            seq_length=128,
            info={"fingerprint": fingerprint, "precision": precision},
            encode=lambda sentences: vectors[: len(sentences)],
        )

    npy, right = str(tmp_path / "a.npy"), encoder("a" * 64)
    np.save(npy, vectors)
    # Other programs write no description.
    vector_moments.check(right, "vectors", [npy])
    vector_files.describe(vector_files.path_of(npy), right, False, vectors.shape)
    vector_moments.check(right, "vectors", [npy])
    with pytest.raises(UserError, match=rf"aaaa, made the vectors \({npy}.json\)"):
        vector_moments.check(encoder("b" * 64), "vectors", [npy])
    # The vector of a blank line would not be found.
    said = rf"in float32 \({npy}.json\), and the model computes in bfloat16; allowed"
    with pytest.raises(UserError, match=said):
        vector_moments.check(encoder("a" * 64, "bfloat16"), "vectors", [npy])
    np.save(npy, vectors[:3])
    with pytest.raises(UserError, match=r"a.npy holds \[3, 8\], and .* \[300, 8\]"):
        vector_moments.check(right, "vectors", [npy])
    with outputs.named_together(npy) as begin:
        begin()
        # After a kill here, the description may be that of the next array.
        said = f"killed before it finished {npy}, .*; repeat .* that writes {npy}"
        with pytest.raises(UserError, match=said):
            vector_moments.check(right, "vectors", [npy])


def test_vectors_in_float16_have_the_same_components(vectors, tmp_path):
    long = 300 * vectors
    encoder = types.SimpleNamespace(dim=8, info={}, encode=lambda _: long[:1])
    fitted = {}
    for dtype in ("float32", "float16"):
        npy = str(tmp_path / f"{dtype}.npy")
        np.save(npy, long.astype(dtype))
        # In float16, the squares would overflow.
        with np.errstate(over="raise"):
            vector_moments.check(encoder, "vectors", [npy])
        moments = vector_moments.read(encoder, "vectors", [npy])
        fitted[dtype] = components.fit(moments, 2)
    np.testing.assert_allclose(
        np.abs(fitted["float16"].components @ fitted["float32"].components.T),
        np.eye(2),
        atol=1e-3,
    )


def test_normalized_vectors_with_blank_lines_are_refused(vectors, tmp_path):
    npy = str(tmp_path / "a.npy")
    encoder = types.SimpleNamespace(dim=8, info={}, encode=lambda _: vectors[:1])
    # The vector of a blank line of a bag of words has no direction.
    rows = np.concatenate([np.zeros([1, 8], np.float32), arrays.unit_length(vectors)])
    np.save(npy, rows)
    vector_files.describe(vector_files.path_of(npy), encoder, True, rows.shape)
    with pytest.raises(UserError, match="have length 1; .* without --normalize"):
        vector_moments.check(encoder, "vectors", [npy])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_stored_vectors_that_are_not_finite_are_refused(vectors, tmp_path, value):
    npy = str(tmp_path / "a.npy")
    encoder = types.SimpleNamespace(dim=8, info={}, encode=lambda _: vectors[:1])
    np.save(npy, np.concatenate([vectors, np.full([1, 8], value, np.float32)]))
    with pytest.raises(UserError, match="an entry that is not a finite number"):
        components.fit(vector_moments.read(encoder, "vectors", [npy]), 2)


def damaged(path, fitted, **changes):
    """Writes a file of which some parts are changed."""
    components_file.save(str(path), fitted)
    with np.load(path) as found:
        header = json.loads(str(found["header"]))
        table = found["components"]
    table = changes.pop("components", table)
    header.update(changes)
    np.savez(path, header=np.array(json.dumps(header)), components=table)
    return str(path)


def row(**changes):
    """A header whose second language has other values."""
    good = {"language": "de", "sentences": 9, "shares": [0.5, 0.1]}
    return {"languages": [good, {**good, "language": "fr", **changes}]}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"version": 2}, "has version 2; allowed: 1"),
        ({"format": "other"}, "not a file that cmlm.pcr wrote"),
        ({"languages": [{"language": "de"}]}, "2 matrices of 1 languages"),
        ({"components": np.ones([2, 1, 8], np.float32)}, "not orthonormal"),
        ({"components": np.eye(2)}, "float64"),
        ({"fingerprint": None, "languages": None}, "is damaged"),
        # Their products would take 335 GB.
        (
            {"components": np.zeros([2, 300_000, 1], np.float32)},
            "300000 components of width 1",
        ),
        (row(shares=[float("inf"), 0]), r"shares \[inf, 0\]; allowed: 2 from 0 to 1"),
        (row(shares=[0.5, float("nan")]), "shares"),
        (row(shares=[-0.1, 0.5]), "shares"),
        (row(shares=[0.5]), "shares"),
        (row(sentences=0), "sentences 0; allowed: at least 1"),
        (row(sentences=float("inf")), "sentences inf"),
    ],
)
def test_damaged_files_are_refused(fitted, tmp_path, change, said):
    path = damaged(tmp_path / "pcr.npz", fitted, **change)
    with pytest.raises(UserError, match=said) as refused:
        components_file.load(path)
    assert path in str(refused.value)


def test_files_of_another_kind_are_refused(fitted, tmp_path):
    whole = tmp_path / "whole.npz"
    components_file.save(str(whole), fitted)
    cases = {
        "truncated.npz": whole.read_bytes()[:-300],
        "text.npz": b"hello",
        "empty.npz": b"",
    }
    for name, content in cases.items():
        (tmp_path / name).write_bytes(content)
    # Reading this would unpickle.
    np.savez(tmp_path / "pickled.npz", header=np.array([{}], object), components=0)
    np.save(tmp_path / "array", np.zeros(3))
    for name in [*cases, "pickled.npz", "array.npy"]:
        with pytest.raises(UserError, match=f"{name} is not a file that cmlm.pcr"):
            components_file.load(str(tmp_path / name))
    with pytest.raises(UserError, match="^cannot read [^;:]*: No such file"):
        components_file.load(str(tmp_path / "missing.npz"))


@pytest.mark.large
def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path):
    path = str(tmp_path / "bomb.npz")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("components.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array_header_1_0(
                member,
                {"descr": "<f4", "fortran_order": False, "shape": (1, 1, 300 << 20)},
            )
            for _ in range(75):
                member.write(bytes(16 << 20))
    start = time.process_time()
    with pytest.raises(UserError, match=r"unpacks to 1,258,\d+,\d+ bytes; allowed"):
        components_file.load(path)
    assert time.process_time() - start < 1


def test_the_count_of_components_is_at_least_one(vectors):
    with pytest.raises(UserError, match="--components is 0; allowed: 1 to"):
        fit(vectors, 0)
    # Vectors of length 0 have no direction.
    with pytest.raises(UserError, match="all vectors are zero; allowed: at least one"):
        fit(np.zeros([3, 8]), 1)
    with pytest.raises(UserError, match="no sentences; allowed: at least one"):
        fit(np.zeros([0, 8]), 1)


@pytest.mark.parametrize("scale", [1, 1e-6, 1e6])
def test_directions_without_length_are_no_components(vectors, scale):
    # Rounding alone gives them eigenvalues other than 0.
    equal = np.repeat(vectors[:1], 100_000, axis=0) * scale
    assert fit(equal, 1).shares == pytest.approx([1])
    with pytest.raises(UserError, match="is 2; allowed: 1 to 1, the rank of"):
        fit(equal, 2)
    flat = vectors[:, :3] @ np.random.default_rng(1).normal(size=[3, 8]) * scale
    assert all(share > 0 for share in fit(flat, 3).shares)
    with pytest.raises(UserError, match="is 4; allowed: 1 to 3, the rank of"):
        fit(flat, 4)


def test_languages_are_compared_in_lower_case():
    assert components_file.check_language("zh-Hant") == "zh-hant"
    for name in ("", "d e", "-de", "de="):
        with pytest.raises(UserError, match="allowed"):
            components_file.check_language(name)
