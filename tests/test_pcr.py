"""The command that fits principal components: from text, and from saved vectors."""

import shutil
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest

from cmlm.encoders import components_file, fingerprints, opening

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
    # As cmlm.encode writes the vectors of documents with blank lines between them.
    lines = "\n\n".join(sentences[:30]).split("\n")
    np.save(tmp_path / "fr.npy", encoder.encode(lines))
    output = tmp_path / "pcr.npz"
    done = command(
        *(f"--model={toy_export.path}", f"--output={output}", "--components=2"),
        *(f"--text=DE={tmp_path / 'de.txt'}", "--max_sentences=50"),
        f"--vectors=fr={tmp_path / 'fr.npy'}",
    )
    assert done.returncode == 0, done.stderr
    assert "de: 50 sentences" in done.stderr and "fr: 30 sentences" in done.stderr
    # As many as a vector has numbers.
    assert "note: " not in done.stderr
    said = f"export  python -m export.tfhub --pcr={output} --model_dir=... --export"
    assert said in done.stdout
    fitted = components_file.load(str(output))
    # The fingerprint of the checkpoint that was exported.
    assert fitted.fingerprint == fingerprints.fingerprint(toy_export.trained)
    assert list(fitted.languages) == ["de", "fr"]
    for language, rows in (("de", vectors[:50]), ("fr", vectors[:30])):
        right = np.linalg.svd(rows.astype(np.float64))[2][:2]
        found = fitted.languages[language].components
        np.testing.assert_allclose(np.abs(np.sum(found * right, axis=1)), 1, atol=1e-5)


@pytest.mark.large
def test_mistakes_are_one_line(toy_export, sentences, tmp_path):
    (tmp_path / "blank.txt").write_text("\n\n \n")
    np.save(tmp_path / "equal.npy", np.ones([10, 16], np.float32))
    np.save(tmp_path / "unit.npy", np.eye(16, dtype=np.float32))
    np.save(tmp_path / "wide.npy", np.ones([9, 20], np.float32))
    np.save(tmp_path / "empty.npy", np.zeros([0, 16], np.float32))
    np.save(tmp_path / "zero.npy", np.zeros([20, 16], np.float32))
    zeros = [tmp_path / "zeros" / f"{number}.npy" for number in range(100)]
    (tmp_path / "zeros").mkdir()
    for path in zeros:
        shutil.copy(tmp_path / "zero.npy", path)
    np.save(tmp_path / "objects.npy", np.array([{}] * 3, object), allow_pickle=True)
    text = f"--text=de={tmp_path / 'de.txt'}"
    output = f"--output={tmp_path / 'pcr.npz'}"
    cases = [
        ([text, "--output=pcr.txt"], "allowed: a path that ends in .npz"),
        ([output], "--text and --vectors are not given; allowed"),
        ([output, text, text], "de is given twice"),
        (
            [output, f"{text},fr={tmp_path / 'fr.txt'}"],
            "allowed: LANGUAGE=FILES, and one --text for each language",
        ),
        ([output, text, "--vectors=fr=no.npy"], "error: --vectors: no file matches 'n"),
        (
            [output, f"--vectors=de={tmp_path}/objects.npy"],
            f"de, {tmp_path}/objects.npy: cannot read {tmp_path}/objects.npy as .npy",
        ),
        (
            [output, f"--text=de={tmp_path}/blank.txt"],
            f"de, {tmp_path}/blank.txt: no sentences; allowed: at least one",
        ),
        (
            [output, f"--vectors=de={tmp_path}/equal.npy", "--components=3"],
            "--components is 3; allowed: 1 to 1, the rank of 10 vectors of width 16",
        ),
        (
            [output, f"--vectors=de={tmp_path}/unit.npy"],
            f"de, {tmp_path}/unit.npy: the vectors have length 1; allowed: vec",
        ),
        (
            # Before the text of the other language is encoded.
            [output, text, f"--vectors=fr={tmp_path}/wide.npy"],
            f"fr, {tmp_path}/wide.npy: vectors of width 20; allowed: 16, the width of",
        ),
        ([output, f"--vectors=de={tmp_path}/empty.npy"], "empty.npy: no sentences; al"),
        ([output, f"--vectors=de={tmp_path}/zero.npy"], "all vectors are zero"),
        # The reason stays within the message, however many files there are.
        (
            [output, "--vectors=de=" + ",".join(map(str, zeros))],
            f"{zeros[0]}, {zeros[1]}, {zeros[2]} and 97 more: all vectors are zero",
        ),
        ([output, text, "--components=17"], "--components is 17; allowed: at most 16"),
        (
            [output, text, "--model=http://localhost:1/v1/models/cmlm"],
            "--model is http://localhost:1/v1/models/cmlm; allowed: an export",
        ),
    ]
    arguments = [[f"--model={toy_export.path}", *flags] for flags, _ in cases]
    answers = commands.repeatedly("cmlm.pcr", arguments, commands.OPEN_ONCE)
    for (flags, said), (code, _, heard) in zip(cases, answers, strict=True):
        errors = heard.splitlines()
        assert code == 1 and len(errors) == 1 and said in errors[0], (flags, heard)
    assert not (tmp_path / "pcr.npz").exists()


@pytest.mark.large
def test_an_output_that_cannot_be_written_is_refused_before_fitting(
    toy_export, sentences, tmp_path
):
    (tmp_path / "file").write_text("")
    refused = command(
        *(f"--model={toy_export.path}", f"--text=de={tmp_path / 'de.txt'}"),
        f"--output={tmp_path / 'file' / 'pcr.npz'}",
    )
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1, refused.stderr


@pytest.mark.large
def test_the_command_after_it_is_one_that_takes_the_model(
    toy_export, sentences, tmp_path
):
    output = tmp_path / "two words.npz"
    evaluate = f"evaluate  python -m cmlm.evaluate --pcr='{output}'"
    export = f"export  python -m export.tfhub --pcr='{output}'"
    run, checkpoint = toy_export.source, toy_export.trained.checkpoint
    cases = [
        ([f"--model=bow:{run}"], f"{evaluate} --model=bow:{run} --data_dir=..."),
        (
            [f"--model={run}", "--pooling=max"],
            f"{export} --pooling=max --model_dir={run} --export_dir=...",
        ),
        (
            [f"--model={run}", "--prompt=a b"],
            f"{export} --prompt='a b' --model_dir={run} --export_dir=...",
        ),
        (
            [f"--model={run}", "--prompt_name=q", "--prompts=q=a b"],
            f"{export} --prompt_name=q --prompts='q=a b' --model_dir={run} "
            "--export_dir=...",
        ),
        ([f"--model={checkpoint}"], f"{export} --from={checkpoint} --export_dir=..."),
    ]
    rest = [f"--output={output}", "--overwrite", f"--text=de={tmp_path / 'de.txt'}"]
    arguments = [[*flags, *rest, "--max_sentences=9"] for flags, _ in cases]
    answers = commands.repeatedly("cmlm.pcr", arguments)
    for (_, said), (code, told, heard) in zip(cases, answers, strict=True):
        assert code == 0, heard
        assert "note: de has 9 sentences, fewer than the 16 dimensions" in heard
        assert told.splitlines()[-1] == said
