"""The classifier of documents: learns, keeps to its file format, refuses others."""

import gzip
import pickle
import random

import numpy as np
import pytest
from test_prepare import run

from cmlm.errors import UserError
from cmlm.preparation import quality

GOOD = "the quiet river ran slowly between green hills and old farms".split()
BAD = "buy cheap click here now free bonus casino offer win".split()


def made(words, number, seed):
    generator = random.Random(seed)
    return [" ".join(generator.choices(words, k=12)) + "." for _ in range(number)]


def test_a_model_tells_the_kinds_apart_and_survives_its_file(tmp_path):
    model = quality.fit(made(GOOD, 60, 0), made(BAD, 30, 1), seed=0)
    texts = [*made(GOOD, 20, 2), *made(BAD, 20, 3)]
    scores = model.score(texts)
    assert (scores[:20] > 0.5).all() and (scores[20:] < 0.5).all()
    path = str(tmp_path / "q.npz")
    model.save(path)
    np.testing.assert_allclose(
        quality.QualityModel.load(path).score(texts), scores, rtol=1e-5
    )
    assert not quality.QualityModel.load(path).score(["好的文章"]).max() == 0.5


def test_each_character_of_scripts_without_spaces_is_a_word():
    found = [*quality._vectorizer().build_tokenizer()("ab \uf900\ufaff你好, ไทย")]
    assert found == ["ab", "\uf900", "\ufaff", "你", "好", ",", "ไ", "ท", "ย"]


def test_scores_are_the_logistic_of_hashed_counts():
    """By hand: a text of one known word has its weight and the bias."""
    weights = np.zeros(quality.FEATURES, np.float32)
    column = quality._vectorizer().transform(["river"]).indices[0]
    weights[column] = 2.0
    model = quality.QualityModel(weights, -1.0)
    expected = 1 / (1 + np.exp(-(2.0 - 1.0))), 1 / (1 + np.exp(1.0))
    np.testing.assert_allclose(model.score(["river", ""]), expected)


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize("kind", ["text", "pickle", "npz of pickles", "other npz"])
def test_other_files_are_refused_and_never_executed(tmp_path, kind):
    path = tmp_path / "q.npz"
    if kind == "text":
        path.write_text("weights")
    elif kind == "pickle":
        path.write_bytes(pickle.dumps(Evil()))
    elif kind == "npz of pickles":
        np.savez(path, format=np.array([Evil()], object))
    else:
        np.savez(path, weights=np.zeros(3))
    with pytest.raises(UserError, match="is not a file of python -m cmlm.quality"):
        quality.QualityModel.load(str(path))


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"format": "another"}, "another"),
        ({"weights": np.zeros(3, np.float32)}, r"weights are float32 \[3\]"),
        ({"weights": np.zeros(quality.FEATURES, np.int32)}, "weights are int32"),
        (
            {"weights": np.full(quality.FEATURES, np.nan, np.float32)},
            "weights are not finite",
        ),
        ({"bias": np.float64("inf")}, "weights are not finite"),
    ],
)
def test_a_model_that_would_keep_or_drop_everything_is_refused(tmp_path, changes, said):
    """A comparison with NaN is false: every document would be dropped."""
    path = str(tmp_path / "q.npz")
    quality.QualityModel(np.zeros(quality.FEATURES, np.float32), 0.0).save(path)
    with np.load(path) as found:
        parts = dict(found)
    np.savez(path, **parts | changes)
    with pytest.raises(UserError, match=f"python -m cmlm.quality: {said}"):
        quality.QualityModel.load(path)
    with pytest.raises(UserError, match="--quality_model is .*, which does not exist"):
        quality.QualityModel.load(f"{path}.missing")


def test_the_command_trains_and_prepare_drops_by_it(tmp_path):
    for name, words, seed in (("good", GOOD, 0), ("bad", BAD, 1)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(made(words, 60, seed)))
    model = tmp_path / "q.npz"
    done = run(
        "quality",
        f"--good={tmp_path}/good.txt",
        f"--bad={tmp_path}/bad.txt",
        f"--output={model}",
    )
    assert done.returncode == 0, done.stderr
    assert "area under the ROC curve 1.0000" in done.stdout

    mixed = tmp_path / "mixed.txt"
    mixed.write_text("\n\n".join([*made(GOOD, 5, 8), *made(BAD, 7, 9)]))
    done = run(
        "prepare",
        f"--input={mixed}",
        f"--output={tmp_path}/corpus",
        f"--quality_model={model}",
        "--workers=1",
    )
    assert done.returncode == 0, done.stderr
    assert "dropped by quality: 7 documents: quality under 0.5 7" in done.stdout
    assert "en: 5 documents, 5 sentences" in done.stdout


def test_examples_are_drawn_from_all_files(tmp_path, monkeypatch):
    paths = [str(tmp_path / name) for name in ("books.txt", "docs.txt")]
    for path, words in zip(paths, (GOOD, BAD), strict=True):
        with open(path, "w") as file:
            file.write("\n\n".join(made(words, 400, 0)))
    texts, n_read, share = quality.read_examples(paths, 100, seed=0)
    assert (len(set(texts)), n_read, share) == (100, 800, 1.0)
    assert 35 <= sum(text.split()[0] in GOOD for text in texts) <= 65
    assert quality.read_examples(paths, 100, seed=0).texts == texts
    assert quality.read_examples(paths, 100, seed=1).texts != texts
    # A large text: the beginning of each file.
    monkeypatch.setattr(quality, "_READ_BYTES", 6000)
    part = quality.read_examples(paths, 1000, seed=0)
    assert part.texts[0] == made(GOOD, 1, 0)[0] and len(part.texts) == part.n_read
    good = sum(text.split()[0] in GOOD for text in part.texts)
    assert good / 400 == pytest.approx(part.share, abs=0.02)
    assert (part.n_read - good) / 400 == pytest.approx(part.share, abs=0.02)


@pytest.mark.parametrize("n_bytes", [100, 1 << 30])
def test_examples_are_utf8_text(tmp_path, caplog, monkeypatch, n_bytes):
    monkeypatch.setattr(quality, "_READ_BYTES", n_bytes)
    path = tmp_path / "good.txt"
    documents = ["café au lait\nund Öl", *made(GOOD, 29, 0)]
    path.write_text("\n\n".join(documents))

    def read():
        return quality.read_examples([str(path)], 100, 0).texts

    assert read() == (documents if n_bytes > 100 else documents[:3])
    # A few lines in another encoding, and most of them.
    few = ["café", *documents, *made(GOOD, 60, 1)]
    path.write_bytes("\n\n".join(few).encode("latin1"))
    examples = read()
    assert examples[:2] == ["caf\ufffd", "caf\ufffd au lait\nund \ufffdl"]
    assert "good.txt is UTF-8 in part: 3 of its " in caplog.text
    path.write_bytes("\n\n".join(["café"] * 30).encode("latin1"))
    with pytest.raises(UserError, match=r"good\.txt is not UTF-8: .* line 1 first"):
        read()


def test_a_damaged_file_has_no_examples(tmp_path):
    path = tmp_path / "good.txt.gz"
    packed = gzip.compress("\n\n".join(made(GOOD, 500, 0)).encode())
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(UserError, match="good.txt.gz"):
        quality.read_examples([str(path)], 500, 0)


def test_too_few_examples_are_one_line(tmp_path):
    good, bad = tmp_path / "good.txt", tmp_path / "bad.txt"
    for file in (good, bad):
        file.write_text("One.\n\nTwo.\n")
    files = [f"--good={good}", f"--bad={bad}"]
    for name, said in (("q.npz", "has 2 documents"), ("q", "ends in .npz")):
        done = run("quality", *files, f"--output={tmp_path}/{name}")
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1 and said in done.stderr
    for seed in (-1, 2**32):
        done = run("quality", *files, f"--seed={seed}")
        assert done.returncode == 1 and f"flag --seed={seed}: " in done.stderr


def test_a_file_on_both_sides_is_refused_and_equal_kinds_are_warned_of(tmp_path):
    for name, seed in (("good", 0), ("bad", 1)):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(made(GOOD, 200, seed)))
    (tmp_path / "link.txt").symlink_to("good.txt")
    good, output = f"--good={tmp_path}/good.txt", f"--output={tmp_path}/q.npz"
    done = run("quality", good, f"--bad={tmp_path}/bad.txt,{tmp_path}/link.txt", output)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "good.txt; allowed: each file on one side" in done.stderr
    assert not (tmp_path / "q.npz").exists()
    few = "--max_examples=100", "--seed=1"
    done = run("quality", good, f"--bad={tmp_path}/bad.txt", output, *few)
    assert done.returncode == 0, done.stderr
    assert (
        "area under the ROC curve is below 0.6, hardly better than chance"
        in done.stderr
    )
    assert "--good: 100 of 200 documents of 1 file\n" in done.stdout
    # A fifth is held out.
    assert "of 20 good documents" in done.stdout
