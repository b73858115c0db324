"""cmlm.evaluate: what it scores, writes and says; means of models."""

import dataclasses
import hashlib
import json
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest
from texts import write

from cmlm.encoders import components_file, opening
from cmlm.evaluation import averages, classifier, means
from export import saved_models

ROOT = Path(__file__).resolve().parent.parent


def test_a_family_is_no_path_and_a_cache_is_local(tmp_path):
    (tmp_path / "sts").mkdir()
    (tmp_path / "sts" / "results.json").touch()
    arguments = ("--model=missing", "--data_dir=data", "--tasks=sts", "--output=sts")
    found = commands.run("cmlm.evaluate", *arguments, "--overwrite", cwd=tmp_path)
    assert found.returncode == 1 and "missing does not exist" in found.stderr
    refused = evaluate("--cache_dir=gs://mine/cache", *arguments).stderr
    assert refused == "error: --cache_dir is gs://mine/cache; allowed: a local folder\n"


def test_command_scores_what_is_there_and_names_what_is_not(tmp_path):
    source = model_dirs.write(tmp_path / "model_dir")
    data, output = tmp_path / "data", tmp_path / "report"
    texts = ["the cat", "a dog ran", "far away", "the mat . " * 20, "sat on the mat"]
    rows = [
        f"a\tb\tc\td\t{score}\t{text}\tthe dog ran"
        for score, text in zip([0, 1, 2, 3, 4], texts, strict=True)
    ]
    write(data / "stsbenchmark" / "sts-test.csv", "\n".join(rows) + "\n")
    train = data / "stsbenchmark" / "sts-train.csv"
    write(train, "\n".join(rows) + "\n")
    write(data / "stsb-de-test.csv", "the cat,a dog\n")
    arguments = [
        f"--model={source}",
        *(f"--model=bow:{source}", f"--data_dir={data}", f"--output={output}"),
        f"--cache_dir={tmp_path / 'cache'}",
        *("--tasks=stsb-test,mr,stsb-multilingual,geometry", "--repeats=2"),
    ]
    # The older name.
    assert "--repeats=0: 0 is not an integer in the" in evaluate("--seeds=0").stderr
    # A list, as cmlm.finetune takes it.
    refused = evaluate("--seeds=0,1,2").stderr
    assert "--repeats=0,1,2: allowed: a number N; each classifier trains N" in refused

    # Sentences alone have no scores.
    refused = evaluate(f"--sentences={tmp_path / 'a.txt'}", *arguments[2:4])
    assert refused.stderr == f"error: --output is {output}; allowed: with --model\n"

    missing = evaluate(*arguments, f"--data_dir={tmp_path}/sets")
    assert missing.returncode == 1
    said = f"error: --data_dir is {tmp_path}/sets, which does not exist or is a file"
    assert missing.stderr.startswith(said)
    assert missing.stderr.count("\n") == 1

    # The second model is refused before the first is scored.
    for typo, said in (("nothing", "does not exist"), ("best:", "no params.yaml")):
        models = [f"--model={source}", f"--model={typo}"]
        refused = evaluate(*models, f"--data_dir={data}", "--tasks=stsb-test")
        assert refused.returncode == 1 and said in refused.stderr
        assert refused.stderr.count("\n") == 1, refused.stderr

    result = evaluate(*arguments)
    assert result.returncode == 1
    assert str(data / "MR" / "rt-polarity.pos") in result.stderr
    assert "stsb-de-test.csv, line 1: 2 columns; allowed: 3" in result.stderr
    assert result.stderr.endswith("\nerror: not scored: stsb-multilingual, mr\n")
    found = json.loads((output / "results.json").read_text())
    assert list(found["not_scored"]) == ["stsb-multilingual", "mr"]
    assert list(found["models"]) == [source, f"bow:{source}"]
    model = found["models"][source]
    assert model["truncated_sentences"] == 1 and model["sentences"] == 6
    assert (model["pooling"], model["seq_length"], model["step"]) == ("mean", 37, 3)
    assert found["seeds"] == [1111, 1112] and found["versions"]["scipy"]
    content = (data / "stsbenchmark" / "sts-test.csv").read_bytes()
    checksum = hashlib.sha256(content).hexdigest()
    assert found["tasks"]["stsb-test"]["sha256"] == {
        "stsbenchmark/sts-test.csv": checksum
    }
    shown = f"{model['scores']['stsb-test']['spearman']:.2f}"
    heads = [f"\u2026{source[-33:]}", f"bow:\u2026{source[-29:]}"]
    rows = [line for line in result.stdout.splitlines() if "\u2026" in line]
    assert [row.startswith(head) for row, head in zip(rows, heads * 2)] == [True] * 4
    assert rows[0].split()[-1] == shown
    page = (output / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 3, (
        "cosines of two models, scores"
    )
    assert 'src="http' not in page and "<link" not in page
    assert f"**{source}** | {shown} |" in (output / "report.md").read_text()
    # Again, out of the cache: the same numbers, nothing encoded. But not over it.
    # Killed runs left scores, for a run with --overwrite, and what they were deleting.
    kept, deleted = (output.with_name(output.name + end) for end in WORK_OF_KILLED_RUNS)
    kept.mkdir()
    deleted.mkdir()
    assert "exists; allowed: another" in evaluate(*arguments).stderr
    assert kept.exists() and not deleted.exists()
    arguments.append("--overwrite")
    assert evaluate(*arguments).returncode == 1
    again = json.loads((output / "results.json").read_text())
    for name, model in again["models"].items():
        assert model["encoded"] == 0
        assert model["scores"] == found["models"][name]["scores"]
    # Without any score, the work directory keeps the vectors.
    for end in ("pos", "neg"):
        write(data / "MR" / f"rt-polarity.{end}", "one\ntwo\n")
    given = (f"--model=bow:{source}", f"--data_dir={data}", "--tasks=mr")
    failed = evaluate(*given, f"--output={tmp_path / 'none'}")
    assert failed.stderr.endswith("\nerror: not scored: mr of bow:" + source + "\n")
    assert (tmp_path / "none.work").is_dir() and not (tmp_path / "none").exists()


def test_sentences_that_are_not_written_are_named(tmp_path):
    write(tmp_path / "data" / "MR" / "rt-polarity.pos", "one\n")
    output = tmp_path / "sentences.txt"
    given = (f"--sentences={output}", f"--data_dir={tmp_path / 'data'}", "--tasks=mr")
    refused = evaluate(*given)
    assert refused.stderr.endswith(f"={output} is not written; not read: mr\n")
    assert not output.exists()


WORK_OF_KILLED_RUNS = (".work", ".work.tmp-0a1b2c3d")
SIDES = {
    "deu": ["the cat", "a dog ran", "far away", "on the mat", "sat"],
    "eng": ["a cat", "the dog ran away", "far", "the mat", "ran on"],
}


def accuracy(x, y):
    """How often row i of y is the nearest to row i of x, times 100."""
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    return 100 * np.mean((x @ y.T).argmax(axis=1) == np.arange(len(x)))


def evaluate(*arguments):
    return commands.run("cmlm.evaluate", *arguments)


@pytest.fixture
def tatoeba(tmp_path):
    for side, texts in SIDES.items():
        path = tmp_path / "data" / "tatoeba" / f"tatoeba.deu-eng.{side}"
        write(path, "\n".join(texts) + "\n")
    return f"--data_dir={tmp_path / 'data'}", "--tasks=tatoeba"


@pytest.mark.large
def test_averages_are_in_every_file_of_a_report(tmp_path, tatoeba):
    """Two of XTREME's languages; a published row's average is over the same two."""
    for side, texts in (("fra", SIDES["deu"][::-1]), ("eng", SIDES["eng"])):
        path = tmp_path / "data" / "tatoeba" / f"tatoeba.fra-eng.{side}"
        write(path, "\n".join(texts) + "\n")
    source, output = (
        model_dirs.write(tmp_path / "model_dir"),
        tmp_path / "report",
    )
    result = evaluate(
        *(*tatoeba, f"--model=bow:{source}", f"--output={output}"),
        "--group=mine=de,fr",
    )
    assert result.returncode == 0, result.stderr
    found = json.loads((output / "results.json").read_text())
    (model,) = found["models"].values()
    parts = [model["scores"]["tatoeba"][f"accuracy/{name}"] for name in ("de", "fr")]
    assert model["averages"]["tatoeba/mine"] == pytest.approx(np.mean(parts))
    assert found["groups"] == {"mine": ["de", "fr"]}
    scores = [
        model["scores"]["tatoeba"][f"accuracy_forward/{name}"] for name in ("de", "fr")
    ]
    assert scores[0] != scores[1]
    group = "tatoeba/xtreme36"
    assert model["averages"][group] == pytest.approx(np.mean(scores))
    assert found["averages"][group]["scored"] == ["de", "fr"]
    for name in ("report.md", "report.html"):
        page = (output / name).read_text()
        assert f"{group} (2 of 36)" in page
        # CMLM+BR has 97.7 and 96.1.
        assert f"{np.mean(scores):.2f}" in page and "96.90" in page


def test_command_scores_an_export(tmp_path):
    """An export states its components, here none."""
    trained = opening.open_weights(model_dirs.write(tmp_path / "model_dir"))
    export = tmp_path / "export"
    export.mkdir()
    saved_models.Export(trained, str(export), model_dirs.SEQ_LENGTH).write()
    texts = ["the cat", "a dog ran", "far away", "the mat"]
    rows = [f"{text}\tthe dog ran\t{score}" for score, text in enumerate(texts)]
    write(tmp_path / "sts.tsv", "\n".join(rows) + "\n")
    output = tmp_path / "report"
    model = f"--model=export={export}"
    result = evaluate(model, f"--tasks=sts:{tmp_path}/sts.tsv", f"--output={output}")
    assert result.returncode == 0, result.stderr
    (found,) = json.loads((output / "results.json").read_text())["models"].items()
    assert found[0] == "export" and found[1]["components"] is None
    # Nothing was removed, so the report has no languages of a removal.
    assert "pcr" not in found[1]
    merged = evaluate(f"--merge={output}", f"--output={tmp_path / 'merged'}")
    assert merged.returncode == 0, merged.stderr
    # Its description alone refuses a flag, before a graph is loaded.
    (graph,) = export.glob("serving/*/saved_model.pb")
    graph.unlink()
    refused = evaluate(model, f"--model={export}", "--seq_length=9", "--data_dir=.")
    said = f"error: --seq_length is 9; allowed with {export}: {model_dirs.SEQ_LENGTH}, "
    assert refused.stderr.startswith(said) and refused.stderr.count("\n") == 1
    # The first model opens only to be scored, so an unknown task ends the run before.
    unknown = evaluate(
        *(model, f"--model={tmp_path / 'model_dir'}", "--seq_length=9"),
        *("--data_dir=.", "--tasks=unknown"),
    )
    assert unknown.stderr.startswith("error: --tasks has 'unknown'; ")
    # A damaged export is refused before the first model encodes.
    size = f"--seq_length={model_dirs.SEQ_LENGTH}"
    damaged = evaluate(
        *(f"--model={tmp_path / 'model_dir'}", f"--model={export}", size),
        f"--tasks=sts:{tmp_path}/sts.tsv",
    )
    assert "saved_model.pb" in damaged.stderr and damaged.returncode == 1
    assert damaged.stdout == ""


@pytest.mark.large
def test_command_removes_components_of_a_file(tmp_path, tatoeba):
    source = model_dirs.write(tmp_path / "model_dir")
    trained = opening.open_weights(source)
    fitted = model_dirs.fit(trained)
    components_file.save(str(tmp_path / "pcr.npz"), fitted)
    output = tmp_path / "out.json"
    result = evaluate(
        *(*tatoeba, f"--model={source}", f"--pcr={tmp_path / 'pcr.npz'}"),
        f"--output={output}",
    )
    assert result.returncode == 0, result.stderr
    model = json.loads(output.read_text())["models"][f"{source} + PCR"]
    assert model["pcr"]["languages"] == list(fitted.languages)
    assert model["pcr"]["unchanged"] == ["en"]
    note = "note: --pcr has no components for en: their vectors are unchanged"
    assert note in result.stderr.splitlines()
    said = "+ PCR: --pcr removed components of de in tatoeba; accuracy_backward_pcr"
    assert said in result.stderr
    x, y = (model_dirs.oracle_vectors(trained, texts) for texts in SIDES.values())
    # Of the two languages the file has components of German, and of English or not.
    sides = []
    for language, vectors in (("de", x), ("en", y)):
        known = fitted.languages.get(language)
        if known is not None:
            for c in known.components.astype(float):
                vectors = vectors - np.outer(vectors @ c, c)
        sides.append(vectors)
    assert model["scores"]["tatoeba"]["accuracy_forward"] == pytest.approx(
        accuracy(*sides)
    )
    # Where no side has components, nothing is removed and the label does not say so.
    rest = dataclasses.replace(
        fitted, languages={"zh-hant": fitted.languages["zh-hant"]}
    )
    components_file.save(str(tmp_path / "rest.npz"), rest)
    result = evaluate(
        *(*tatoeba, f"--model={source}", f"--pcr={tmp_path / 'rest.npz'}"),
        *(f"--output={output}", "--overwrite"),
    )
    assert result.returncode == 0, result.stderr
    (name,) = json.loads(output.read_text())["models"]
    assert name == source and "no components for de, en:" in result.stderr
    # Components of another model are refused, before any model is scored.
    other = evaluate(
        *(*tatoeba, f"--model={source}", f"--model=bow:{source}"),
        f"--pcr={tmp_path / 'pcr.npz'}",
    )
    assert other.returncode == 1
    (line,) = other.stderr.splitlines()
    assert "was fitted for the fingerprint" in line
    # So are stored vectors with a precision or a pooling, before a set is read.
    write(tmp_path / "t.txt", "x\n")
    np.save(tmp_path / "v.npy", np.ones([1, 16], np.float32))
    stored = f"vectors:{tmp_path}/t.txt:{tmp_path}/v.npy"
    for flag in ("--precision=bfloat16", "--pooling=max"):
        other = evaluate(
            *(f"--data_dir={tmp_path}", "--tasks=mr", f"--model={source}", flag),
            f"--model={stored}",
        )
        assert other.returncode == 1
        # A processor without bfloat16 gets a warning before.
        *_, line = other.stderr.splitlines()
        name, value = flag.split("=")
        assert f"{name} is {value!r}; allowed with {stored}: no {name}, " in line
    # So is a model without a prompt of the name.
    stated = {"model.prompts": ["query=the cat "]}
    prompted = model_dirs.write(tmp_path / "prompted", **stated)
    other = evaluate(
        *(*tatoeba, f"--model={prompted}", f"--model={source}", "--prompt_name=query")
    )
    assert other.returncode == 1
    (line,) = other.stderr.splitlines()
    assert "--prompt_name is 'query'; allowed: no --prompt_name, because" in line


def test_a_deviation_over_runs_replaces_those_over_seeds():
    """CMLM's table 11: five encoders, each scored with five seeds."""
    runs = [
        {"scores": {"mr": {"accuracy": value, "accuracy_std": 0.1}}, "averages": {}}
        for value in (80.0, 82.0, 87.0)
    ]
    found = means.mean_of(runs, ())["scores"]["mr"]
    # Mean 83; (9 + 1 + 16) / 2 = 13.
    assert found == {"accuracy": 83, "accuracy_std": pytest.approx(13**0.5)}


def test_the_mean_of_models_is_over_tasks_that_all_have():
    def run_of(**accuracies):
        scores = {name: {"accuracy": value} for name, value in accuracies.items()}
        return {"scores": scores, "averages": averages.of(scores)}

    runs = [run_of(mr=10.0, cr=20.0, subj=90.0), run_of(mr=20.0, cr=40.0)]
    # "subj", which the second run could not be scored on, is in no average of both.
    assert [run["averages"]["senteval"] for run in runs] == [40, 30]
    for order in (runs, runs[::-1]):
        found = means.mean_of(order, ())
        assert list(found["scores"]) == ["mr", "cr"]
        assert found["scores"]["cr"]["accuracy"] == 30
        assert found["averages"]["senteval"] == (15 + 30) / 2


def test_the_mean_of_models_is_over_metrics_that_all_have():
    more = {"mr": {"accuracy": 80.0, "macro_f1": 70.0}, "cr": {"accuracy": 90.0}}
    fewer = {"mr": {"accuracy": 82.0}, "cr": {"macro_f1": 60.0}}
    runs = [{"scores": more}, {"scores": fewer}]
    for order in (runs, runs[::-1]):
        found = means.mean_of(order, ())
        assert {task: list(of) for task, of in found["scores"].items()} == {
            "mr": ["accuracy", "accuracy_std"]
        }
        assert found["scores"]["mr"]["accuracy"] == 81


def test_an_average_deviates_over_the_runs_by_its_own_values():
    """The parts vary, and their average does not."""
    runs = [
        {"scores": {"mr": {"accuracy": mr}, "cr": {"accuracy": cr}}}
        for mr, cr in ((80.0, 90.0), (84.0, 86.0), (82.0, 91.0))
    ]
    found = means.mean_of(runs, ())
    assert found["averages"]["senteval"] == 85.5
    # The averages 85, 85 and 86.5: (0.25 + 0.25 + 1) / 2 = 0.75.
    assert found["averages_std"]["senteval"] == pytest.approx(0.75**0.5)


def test_averages_name_the_parts_of_each_model():
    def scores(*tasks):
        return {name: {"accuracy": 50.0} for name in tasks}

    models = {
        "first": scores("mr", "cr"),
        "same": scores("cr", "mr"),
        "more": scores("mr", "cr", "sst2"),
        "alone": scores("mr"),
    }
    found = averages.describe(models)["senteval/labse"]
    assert (found["parts"], found["scored"]) == (7, ["mr", "cr"])
    assert found["missing"] == ["subj", "mpqa", "trec", "sst2", "mrpc"]
    other = {
        "scored": ["mr", "cr", "sst2"],
        "missing": ["subj", "mpqa", "trec", "mrpc"],
    }
    assert found["models"] == {"more": other}
    # Also if the first model has no average.
    last = averages.describe({name: models[name] for name in ("alone", "more")})
    assert last["senteval/labse"].items() >= other.items()
    assert "models" not in last["senteval/labse"]


@pytest.mark.large
def test_means_of_models_are_those_of_runs_with_different_seeds(tmp_path, tatoeba):
    first = model_dirs.write(tmp_path / "first")
    both = f"languages:de={first},en=bow:{first}"
    output = tmp_path / "report"
    given = {"run": first, "words": f"bow:{first}", "both": both}
    arguments = [*tatoeba, *(f"--model={name}={of}" for name, of in given.items())]
    for wrong, said in (
        ("all=run", "--mean has 'all=run'; allowed: NAME=MODEL,MODEL,...; each name"),
        ("all=run,bow", "--mean=all has 'bow'; allowed: names of models: run, words"),
        ("run=run,both", "--mean has 'run'; allowed: another name than a model's"),
    ):
        refused = evaluate(*arguments, f"--mean={wrong}")
        assert refused.stderr.startswith(f"error: {said}"), refused.stderr
        assert refused.stderr.count("\n") == 1
    result = evaluate(
        *(*arguments, "--mean_of_models", "--mean=all=run,words,both"),
        *("--mean=some=words,run", f"--output={output}"),
    )
    assert result.returncode == 0, result.stderr
    models = json.loads((output / "results.json").read_text())["models"]
    # The bag of words is a baseline.
    means = {
        "all": ["run", "words", "both"],
        "some": ["words", "run"],
        "mean of 2 models": ["run", "both"],
    }
    assert list(models) == [*given, *means]
    for row, members in means.items():
        assert models[row]["mean_of"] == members
        mean = models[row]["scores"]["tatoeba"]
        for metric in ("accuracy", "accuracy_forward/de"):
            name, slash, part = metric.partition("/")
            values = [models[model]["scores"]["tatoeba"][metric] for model in members]
            assert mean[metric] == pytest.approx(np.mean(values))
            std = np.std(values, ddof=1)
            assert mean[f"{name}_std{slash}{part}"] == pytest.approx(std)
    for name in ("report.md", "report.html"):
        page = (output / name).read_text()
        assert "all: mean of run, words, both. some: mean" in page
    # German by the model, English by its bag of words.
    german, english = (
        opening.open_encoder(name).encode(SIDES[side])
        for name, side in ((first, "deu"), (f"bow:{first}", "eng"))
    )
    expected = accuracy(german, english)
    assert models["both"]["scores"]["tatoeba"]["accuracy_forward"] == expected


def test_the_classifier_of_the_flag_is_trained(tmp_path):
    texts = []
    for part, number in (("train", 20), ("dev", 10), ("test", 10)):
        own = [f"{part} {n}" for n in range(number)]
        rows = [f"{text}\t{'ab'[n % 2]}" for n, text in enumerate(own)]
        write(tmp_path / f"{part}.tsv", "\n".join(["text\tlabel", *rows]) + "\n")
        texts += own
    write(tmp_path / "t.txt", "\n".join(texts) + "\n")
    vectors = np.random.default_rng(0).normal(size=(len(texts), 8)).astype(np.float32)
    np.save(tmp_path / "v.npy", vectors)
    files = ":".join(f"{tmp_path}/{part}.tsv" for part in ("train", "dev", "test"))
    task = f"classification:{files}"
    done = evaluate(
        *(f"--model=vectors:{tmp_path}/t.txt:{tmp_path}/v.npy", f"--tasks={task}"),
        *("--classifier=mlp", "--jobs=1", f"--output={tmp_path}/out.json"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["classifier"] == "mlp"
    assert classifier.ABOUT["mlp"] in found["tasks"][task]["protocol"]
