"""The mining command: files in, what training reads out, one line for mistakes."""

import gzip
import shlex
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest

from cmlm.data import bitext as bitext_lib
from cmlm.data import streams
from cmlm.encoders import opening
from cmlm.encoders.reading import Reading
from cmlm.mining import encoded
from cmlm.mining.vectors import Reader

WORDS = "the cat sat on a mat dog ran far away".split()


def run(*arguments):
    """Runs the command in a fork: (exit code, stdout, stderr)."""
    done = commands.run("cmlm.mine", *arguments)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return model_dirs.write(tmp_path_factory.mktemp("model") / "model_dir")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A text and its "translation", which has the same words in another order."""
    directory = tmp_path_factory.mktemp("corpus")
    random = np.random.default_rng(3)
    source = [" ".join(random.choice(WORDS, random.integers(4, 12))) for _ in range(60)]
    target = [" ".join([*line.split()[1:], line.split()[0]]) for line in source[:40]]
    target += [f"{line} !" for line in source[45:]]
    (directory / "source.txt").write_text("\n\n".join([*source, source[0]]) + "\n")
    with gzip.open(directory / "target.txt.gz", "wt") as file:
        file.write("\n".join(target[::-1]))
    with open(directory / "bitext.tsv", "w") as file:
        file.writelines(f"{a}\t{b}\n" for a, b in zip(source, target))
    return directory


def test_pairs_and_hard_negatives(model, corpus, tmp_path):
    mined_path, nearest_path = tmp_path / "mined.tsv", tmp_path / "nearest.tsv"
    hard_path, work = tmp_path / "hard, 2.tsv.gz", tmp_path / "work"
    skipped_path = tmp_path / "skipped.tsv"
    inputs = [f"--model={model}", f"--source={corpus}/source.txt"]
    inputs += [f"--target={corpus}/target.txt.gz", f"--work_dir={work}"]
    cases = [
        [*inputs, f"--output={mined_path}", "--threshold=0.9", "--neighbours=3"],
        # LaBSE's rule.
        [
            *(*inputs, f"--output={nearest_path}", "--margin=absolute"),
            *("--retrieval=forward", "--noone_to_one", "--threshold=-1"),
        ],
        [
            *(f"--model={model}", f"--bitext={corpus}/bitext.tsv"),
            *(f"--pool={corpus}/target.txt.gz", "--hard_negatives=2"),
            f"--output={hard_path}",
        ],
        [
            *(f"--model={model}", f"--bitext={corpus}/bitext.tsv"),
            *(f"--pool={corpus}/target.txt.gz", "--hard_negatives=1"),
            *("--skip_nearest=1", f"--output={skipped_path}"),
        ],
    ]
    answers = [run(*case) for case in cases]
    assert [code for code, _, _ in answers] == [0, 0, 0, 0], answers
    _, said, heard = answers[0]
    assert "--source: 61 sentences, " in heard and "index: flat" in heard
    assert f"--bitext_data=SOURCE-TARGET={mined_path}" in said.splitlines()[-1]
    *_, bitext_use, passages_use = map(shlex.split, answers[2][1].splitlines())
    listed = str(hard_path).replace(",", "?")
    assert f"--bitext_data=SOURCE-TARGET={listed}" in bitext_use
    assert f"--pair_data={listed}" in passages_use

    # -- by margin, the best first
    mined = [line.split("\t") for line in mined_path.read_text().splitlines()]
    rows = (tmp_path / "mined.scores").read_text().splitlines()
    scores = np.array([row.split("\t") for row in rows], float)
    assert len(mined) == len(scores) > 25 and (np.diff(scores[:, 0]) <= 0).all()
    encoder = opening.open_encoder(model)
    sides = [encoder.encode(list(side), normalize=True) for side in zip(*mined)]
    np.testing.assert_allclose(
        scores[:, 1], np.einsum("nd,nd->n", *sides), rtol=0, atol=2e-6
    )
    # What training reads is what was written.
    assert bitext_lib.inspect([str(mined_path)]).pairs == len(mined)
    read = bitext_lib.rows(streams.Portion([str(mined_path)])).as_numpy_iterator()
    assert [[cell.decode() for cell in row] for row in read] == mined

    # -- the same pairs from folders of cmlm.encode, without a model
    folders = [str(tmp_path / side) for side in ("source", "target")]
    for folder, name in zip(folders, ("source.txt", "target.txt.gz")):
        encoded.write(folder, [f"{corpus}/{name}"], name, Reader(encoder), 1 << 20)
    again_path = tmp_path / "again.tsv"
    again = [f"--source={folders[0]}", f"--target={folders[1]}", "--neighbours=3"]
    code, _, heard = run(*again, f"--output={again_path}", "--threshold=0.9")
    assert code == 0, heard
    assert again_path.read_bytes() == mined_path.read_bytes()

    # -- the nearest, from the vectors that are there
    shards = list(work.glob("*-vectors/0*.npy"))
    assert len(shards) == 2
    for shard in shards:
        assert shard.stat().st_mtime_ns < mined_path.stat().st_mtime_ns
    source = [line for line in (corpus / "source.txt").read_text().split("\n") if line]
    source = list(dict.fromkeys(source))
    with gzip.open(corpus / "target.txt.gz", "rt") as file:
        target = list(dict.fromkeys(file.read().splitlines()))
    cosines = encoder.encode(source, True) @ encoder.encode(target, True).T
    nearest = [line.split("\t") for line in nearest_path.read_text().splitlines()]
    assert sorted(a for a, _ in nearest) == sorted(source)
    for a, b in nearest:
        row = cosines[source.index(a)]
        assert row[target.index(b)] == pytest.approx(row.max(), abs=1e-6)

    # -- without the nearest: the second of the two negatives
    with gzip.open(hard_path, "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    got = [line.split("\t") for line in skipped_path.read_text().splitlines()]
    assert got == [[source, target, second] for source, target, _, second in rows]

    # -- hard negatives of translations
    report = bitext_lib.inspect([str(hard_path)])
    assert (report.columns, report.bad, report.pairs) == (4, 0, 55)
    with gzip.open(hard_path, "rt") as file:
        for line, pair in zip(file, (corpus / "bitext.tsv").open()):
            cells = line.rstrip("\n").split("\t")
            assert cells[:2] == pair.rstrip("\n").split("\t")
            assert len(set(cells[1:])) == 3 and cells[0] not in cells[2:]
    assert not Path(f"{hard_path}.work").exists()


@pytest.mark.large
def test_a_bitext_is_filtered_by_cosine(model, corpus, tmp_path):
    rows = (corpus / "bitext.tsv").read_text().splitlines()
    # A third column is kept, and a repeated line is written again.
    lines = [f"{row}\tnegative {n}" for n, row in enumerate(rows)]
    lines += [lines[3], lines[0]]
    (tmp_path / "given.tsv").write_text("\n".join(lines) + "\n")
    work = tmp_path / "work"
    inputs = [f"--model={model}", f"--bitext={tmp_path}/given.tsv", "--score"]
    inputs += [f"--work_dir={work}"]
    encoder = opening.open_encoder(model)
    sides = [
        encoder.encode([line.split("\t")[i] for line in lines], normalize=True)
        for i in range(2)
    ]
    cosines = np.einsum("nd,nd->n", *sides)
    # Between two cosines, so that rounding cannot decide.
    ranked = np.unique(cosines.round(5))
    lowest, middle = "--threshold=-1", float(ranked[len(ranked) // 2 :][:2].mean())
    cases = [
        [*inputs, f"--output={tmp_path}/all.tsv", lowest],
        [*inputs, f"--output={tmp_path}/good.tsv.gz", f"--threshold={middle}"],
        [*inputs, f"--output={tmp_path}/none.tsv", "--threshold=1"],
    ]
    answers = [run(*case) for case in cases]
    assert [code for code, _, _ in answers] == [0, 0, 1], answers
    assert f"of {len(lines)} pairs with a cosine of" in answers[1][1]
    highest = np.floor(cosines.max() * 1e4) / 1e4
    said = f"--threshold is 1; allowed: at most {highest:.4f}, the highest cosine of a"
    assert said in answers[2][2]
    assert (tmp_path / "all.tsv").read_text().splitlines() == lines
    scores = np.array((tmp_path / "all.scores").read_text().split(), float)
    np.testing.assert_allclose(scores, cosines, rtol=0, atol=2e-6)
    with gzip.open(tmp_path / "good.tsv.gz", "rt") as file:
        kept = file.read().splitlines()
    want = [line for line, value in zip(lines, cosines) if value >= middle]
    assert kept == want and 0 < len(want) < len(lines)
    assert not (tmp_path / "none.tsv").exists()
    # The second run has used the cosines of the first.
    (shard,) = work.glob("cosines/0*.npy")
    assert np.load(shard).shape == (len(rows), 1)
    assert shard.stat().st_mtime_ns < (tmp_path / "all.tsv").stat().st_mtime_ns

    # -- another reading of the model needs vectors of its own
    other = [f"--output={tmp_path}/p.tsv", lowest, "--prompt=dog "]
    code, _, heard = run(*inputs, *other)
    assert code == 1 and "work/cosines holds vectors of another run" in heard
    code, _, heard = run(*inputs[:-1], *other)
    assert code == 0, heard
    prompted = opening.open_encoder(model, Reading(prompt="dog "))
    sides = [
        prompted.encode([line.split("\t")[i] for line in lines], normalize=True)
        for i in range(2)
    ]
    scores = np.array((tmp_path / "p.scores").read_text().split(), float)
    np.testing.assert_allclose(scores, np.einsum("nd,nd->n", *sides), rtol=0, atol=2e-6)
    assert np.abs(scores - cosines).max() > 1e-3


@pytest.mark.large
def test_mistakes_are_one_line_and_leave_nothing(model, corpus, tmp_path):
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "there.tsv").write_text("kept")
    (tmp_path / "cut.txt.gz").write_bytes((corpus / "target.txt.gz").read_bytes()[:-20])
    (tmp_path / "bad").mkdir()
    bad_model, model = f"--model={tmp_path}/bad", f"--model={model}"
    source, target = f"--source={corpus}/source.txt", f"--target={corpus}/target.txt.gz"
    output = f"--output={tmp_path}/out.tsv"
    bitext = f"--bitext={corpus}/bitext.tsv"
    cases = [
        ([output, source, target], "--model is not given"),
        (
            [bad_model, "--output=gs://bucket/a.tsv", source, target],
            "--work_dir is gs://bucket/a.tsv.work; allowed: a directory that every",
        ),
        ([model, output], "either --source and --target, or --bitext"),
        ([model, output, source], "--target is not given"),
        ([model, output, source, bitext], "either --source and --target, or"),
        (
            [model, output, source, target, "--pool=x"],
            "--pool=x is given; allowed: with --bit",
        ),
        ([model, output, bitext, "--threshold=0.3"], "with --source and --target, or"),
        (
            [model, output, bitext, "--score", "--hard_negatives=2"],
            "--hard_negatives=2 is given; allowed: with --bitext without --score",
        ),
        (
            [model, output, source, target, "--index=flat", "--probes=3"],
            "--probes=3 is given; allowed: with --index=ivf, pq or auto",
        ),
        (
            [model, output, source, target, "--one_to_one", "--repeat_sentences"],
            "--one_to_one and --repeat_sentences contradict",
        ),
        (
            [model, output, source, f"--target={corpus}/source.txt"],
            "hold the same text; allowed: texts of two languages",
        ),
        (
            [model, output, f"--source={corpus}/bitext.tsv", target],
            "bitext.tsv is a table, ",
        ),
        (
            [model, "--output=a.txt", source, target],
            "allowed: a name in .tsv or .tsv.gz",
        ),
        (
            [model, output, source, "--target=no.txt"],
            "--target: no file matches 'no.txt'",
        ),
        (
            [model, output, source, f"--target={tmp_path}/empty.txt"],
            "--target has no line with text",
        ),
        (
            [model, output, source, f"--target={tmp_path}/cut.txt.gz"],
            "cut.txt.gz is not a whole gzip file",
        ),
        (
            [model, f"--output={tmp_path}/there.tsv", source, target],
            "another path, or --over",
        ),
        (
            [model, output, source, target, "--neighbours=99"],
            "--neighbours is 99; allowed: at most ",
        ),
        (
            [model, output, source, target, "--threshold=9"],
            "--threshold is 9; allowed: at",
        ),
        ([model, output, bitext, "--hard_negatives=99"], "needs at least 100"),
        ([model, output, bitext, "--max_cosine=-1"], "or a larger --pool"),
        # A model is not looked for.
        (
            [bad_model, output, bitext, "--max_cosine=-2"],
            "--max_cosine=-2: -2.0 is not",
        ),
        (
            [bad_model, output, bitext, "--score", "--threshold=2"],
            "--threshold is 2; allowed: at most 1",
        ),
        (
            [bad_model, output, source, target, "--margin=absolute", "--threshold=1.1"],
            "--threshold is 1.1; allowed: at most 1",
        ),
        (
            [bad_model, output, source, target, "--neighbours=1"],
            "--neighbours is 1; allowed: at least 2, --threshold up to 1, or --mar",
        ),
        (
            [
                *(bad_model, output, source, target, "--neighbours=1"),
                *("--margin=distance", "--threshold=0.1"),
            ],
            "--neighbours is 1; allowed: at least 2, --threshold up to 0, or --mar",
        ),
        (
            # A model is looked for.
            [
                *(bad_model, output, source, target, "--neighbours=1"),
                "--threshold=0.9",
            ],
            "holds no weights",
        ),
        (
            [bad_model, output, source, target, "--max_memory_gb=inf"],
            "--max_memory_gb is inf; allowed: a finite number",
        ),
        ([bad_model, output, source, target], "holds no weights"),
        ([model, output, source, target, "--margin=cosine"], "cosine"),
        ([model, output, source, target, "--max_memory_gb=1"], "1.25"),
    ]
    arguments = [flags for flags, _ in cases]
    answers = commands.repeatedly("cmlm.mine", arguments, commands.OPEN_ONCE)
    for (flags, said), (code, _, heard) in zip(cases, answers, strict=True):
        errors = [line for line in heard.splitlines() if line.startswith("error:")]
        assert code == 1 and len(errors) == 1 and said in errors[0], (flags, heard)
        assert "Traceback" not in heard
    assert not (tmp_path / "out.tsv").exists()
    assert not (tmp_path / "out.scores").exists()
    # A run that computed no vectors leaves no folder either.
    assert not (tmp_path / "there.tsv.work").exists()
    assert (tmp_path / "there.tsv").read_text() == "kept"


def test_a_failed_run_keeps_vectors_under_any_name(model, corpus, tmp_path):
    output = tmp_path / "out[1].tsv"
    code, _, heard = run(
        *(f"--model={model}", f"--source={corpus}/source.txt", "--threshold=9"),
        *(f"--target={corpus}/target.txt.gz", f"--output={output}"),
    )
    assert code == 1 and "--threshold is 9; allowed: at most" in heard
    assert (tmp_path / "out[1].tsv.work" / "source-vectors").is_dir()


@pytest.mark.large
def test_a_full_disk_is_one_line_and_the_run_goes_on(model, corpus, tmp_path):
    flags = (
        *(f"--model={model}", f"--source={corpus}/source.txt"),
        *(f"--target={corpus}/target.txt.gz", f"--output={tmp_path}/out.tsv"),
        "--threshold=0.9",
    )

    # Vectors need 60 times 64 bytes.
    limit = "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))"
    ((code, _, heard),) = commands.repeatedly(
        "cmlm.mine", [list(flags)], f"import resource\n{limit}"
    )
    assert code == 1, heard
    assert heard.splitlines()[-1].startswith("error: "), heard
    assert "File too large" in heard and "Traceback" not in heard
    work = tmp_path / "out.tsv.work"
    assert not list(work.rglob("*tmp*")) and not (tmp_path / "out.tsv").exists()
    code, _, heard = run(*flags)
    assert code == 0, heard
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.scores", "out.tsv"]
