"""Reports are united if they score their tasks in the same way."""

import csv
import json

import commands
import pytest

from cmlm.errors import UserError
from cmlm.evaluation import catalogue, merging, report, results, run

SEEDS = {"seeds": [1111], "classifier": "logistic"}


def write(path, models, about=None, means=None, **settings):
    """Writes a report of a .json file; gives each model the scores of `models`.

    Args:
        path: the file.
        models: settings of each model and its `scores`, by name.
        about: entries that replace those of each task.
        means: the models of each row that is a mean.
        settings: entries of results.json.
    """
    names = {task for model in models.values() for task in model["scores"]}
    tasks = {
        task.name: results.describe(run.TaskData(task, {}, {f"{task.name}.tsv": "ab"}))
        for task in catalogue.select(sorted(names))
    }
    content = {
        **{"versions": {"numpy": "1"}, **SEEDS, "groups": {}, "not_scored": {}},
        **settings,
        "tasks": {name: {**task, **(about or {})} for name, task in tasks.items()},
        "models": {
            name: {"fingerprint": "f", "figures": {}, "sentences": 9, **model}
            for name, model in models.items()
        },
    }
    path.write_text(json.dumps(results.completed(content, means or {})))
    return str(path)


def model(pooling="mean", **scores):
    metric = {"sts": "spearman"}
    return {
        "pooling": pooling,
        "scores": {
            name: {metric.get(name[:3], "accuracy"): value}
            for name, value in scores.items()
        },
    }


def test_a_model_has_the_scores_of_all_its_reports(tmp_path):
    first = write(
        tmp_path / "a.json",
        {"m1": model(mr=80.0), "m2": model(mr=82.0)},
        means={"both": ["m1", "m2"]},
        not_scored={"cr": "not there"},
    )
    second = write(
        tmp_path / "b.json",
        {"m1": model(cr=90.0, sts12=50.0), "m2": model(cr=86.0, sts12=60.0)},
        means={"both": ["m1", "m2"]},
        seeds=[1111, 1112],
        versions={"numpy": "2"},
    )
    content, means = merging.unite([first, second], {})
    found = results.completed(content, means)
    # In the order of the catalogue.
    assert list(found["tasks"]) == ["sts12", "mr", "cr"]
    assert list(found["models"]) == ["m1", "m2", "both"]
    one, _, both = found["models"].values()
    assert one["pooling"] == "mean" and "sentences" not in one
    assert one["averages"]["senteval"] == 85 and one["scores"]["sts12"]
    # 85 and 84, from both reports.
    assert both["averages"]["senteval"] == 84.5
    assert both["averages_std"]["senteval"] == pytest.approx(0.5**0.5)
    assert found["not_scored"] == {f"cr in {first}": "not there"}
    assert found["versions"] == {"numpy": "1 / 2"}
    assert [each["seeds"] for each in found["merged"]] == [[1111], [1111, 1112]]
    assert found["tasks"]["cr"]["seeds"] == [1111, 1112]
    # What it wrote can be united again.
    again = tmp_path / "c.json"
    again.write_text(json.dumps(found))
    content, means = merging.unite([str(again)], {})
    repeated = results.completed(content, means)
    for key in ("tasks", "models", "averages", "merged"):
        assert repeated[key] == found[key]


@pytest.mark.parametrize(
    ("about", "settings", "said"),
    [
        (
            {"protocol": "by eye"},
            {},
            "protocol .accuracy of .* in A.json and 'by eye' in B.json; allowed: one",
        ),
        (
            {},
            {"seeds": [5]},
            r"seeds \[1111\] in A.json and \[5\] in B.json; allowed: one test set",
        ),
        (
            {},
            {"classifier": "mlp"},
            "classifier 'logistic' in A.json and 'mlp' in B.json; allowed",
        ),
        (
            {"sha256": {"mr.tsv": "cd"}},
            {},
            "sha256 {'mr.tsv': 'ab'} in A.json and {'mr.tsv': ",
        ),
    ],
)
def test_a_task_has_one_protocol(about, settings, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "A.json", {"m": model(mr=80.0)})
    write(tmp_path / "B.json", {"n": model(mr=80.0)}, about, **settings)
    with pytest.raises(UserError, match=f"^mr has {said}"):
        merging.unite(["A.json", "B.json"], {})


def test_the_folder_of_a_test_set_does_not_matter(tmp_path):
    first = write(tmp_path / "a.json", {"m": model(mr=80.0)})
    moved = {"sha256": {"senteval/mr.tsv": "ab"}}
    second = write(tmp_path / "b.json", {"n": model(mr=81.0)}, moved)
    assert list(merging.unite([first, second], {})[0]["models"]) == ["m", "n"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (model(mr=80.0), "have scores of mr"),
        (model("max", cr=80.0), "have pooling 'mean' and 'max'"),
        ({**model(cr=80.0), "fingerprint": "g"}, "have fingerprint 'f' and 'g'"),
    ],
)
def test_two_models_of_one_name_are_refused_without_a_prefix(other, said, tmp_path):
    first = write(tmp_path / "a.json", {"m": model(mr=80.0)})
    second = write(tmp_path / "b.json", {"m": other})
    with pytest.raises(UserError, match=f"^m is in .*, and both {said}; allowed: NA"):
        merging.unite([first, second], {})
    content, _ = merging.unite([first, f"max={second}"], {})
    assert list(content["models"]) == ["m", "max:m"]
    assert content["models"]["max:m"]["pooling"] == other["pooling"]


def test_a_model_may_lack_components_for_languages_of_some_tasks(tmp_path):
    paths = []
    for name, scores, unchanged in (
        ("a", {"mr": 80.0}, ["fr"]),
        ("b", {"cr": 90.0}, ["", "fr"]),
    ):
        pcr = {"path": f"{name}.npz", "languages": ["de"], "sha256": "e"}
        removed = {task: ["de"] for task in scores}
        entry = {**model(**scores), "pcr": {**pcr, "unchanged": unchanged}}
        entry["pcr"]["removed"] = removed
        paths.append(write(tmp_path / f"{name}.json", {"m": entry}))
    content, _ = merging.unite(paths, {})
    joined = content["models"]["m"]
    assert list(joined["scores"]) == ["mr", "cr"]
    both = {"unchanged": ["", "fr"], "removed": {"mr": ["de"], "cr": ["de"]}}
    assert joined["pcr"] == {**pcr, "path": "a.npz", **both}
    entry["pcr"]["sha256"] = "another"
    with pytest.raises(UserError, match="both have pcr .*'e'.* and .*'another'"):
        other = write(tmp_path / "c.json", {"m": entry})
        merging.unite([paths[0], other], {})


def test_means_and_groups_of_one_name_are_alike(tmp_path):
    models = {name: model(mr=80.0) for name in "abc"}
    means, groups = {"all": ["a", "b"]}, {"mine": ["de", "fr"]}
    first = write(tmp_path / "a.json", models, means=means, groups=groups)
    second = write(tmp_path / "b.json", {"all": model(mr=80.0)})
    with pytest.raises(UserError, match="^all is in .* both differ: a model and a"):
        merging.unite([first, second], {})
    with pytest.raises(UserError, match=r"the group mine is \['de', 'fr'\] in .*, and"):
        merging.unite([first], {"mine": ["de", "es"]})
    content, found = merging.unite([f"x={first}", second], {"own": ["de", "es"]})
    assert found == {"x:all": ["x:a", "x:b"]}
    assert content["groups"] == {**groups, "own": ["de", "es"]}


def test_a_file_without_scores_is_not_a_report(tmp_path):
    (tmp_path / "results.json").write_text('{"seeds": {}}')
    with pytest.raises(UserError, match="results.json has no tasks; allowed: reports"):
        merging.unite([str(tmp_path)], {})


@pytest.mark.parametrize(
    "place, value, said",
    [
        (["tasks", "mr"], [], r"tasks: has mr=\[\]; allowed: dict"),
        (["tasks", "mr", "protocol"], None, "task mr: has no protocol"),
        (["tasks", "mr", "not_ranked"], None, "task mr: has no not_ranked"),
        (["seeds"], None, "task mr: has no seeds"),
        (["classifier"], 5, "task mr: has classifier=5; allowed: str"),
        (
            ["tasks", "mr", "remarks"],
            [5],
            r"task mr: has remarks=\[5\]; allowed: list of str",
        ),
        (["models", "m", "scores"], None, "model m: has no scores"),
        (["models", "m", "scores", "mr"], 5, "model m: has mr=5; allowed: dict"),
        (["models", "m", "scores", "mr", "accuracy"], "x", "mr has accuracy='x'; allo"),
        (["models", "m", "mean_of"], ["n"], r"m: mean_of is \['n'\]; allowed: models"),
        (["models", "m", "pcr"], 5, "model m: has pcr=5; allowed: dict"),
        (
            ["models", "m", "pcr"],
            {"languages": [], "unchanged": [], "removed": {"mr": 5}},
            "model m: pcr, removed: has mr=5; allowed: list",
        ),
        (
            ["models", "m", "pcr"],
            {"languages": [], "unchanged": [], "removed": {"other": ["de"]}},
            "model m: has no other",
        ),
        (["not_scored"], [], r"has not_scored=\[\]; allowed: dict"),
        (["versions", "numpy"], [], r"versions: has numpy=\[\]; allowed: str"),
        (["groups", "own"], "de", "groups: has own='de'; allowed: list"),
    ],
)
def test_a_report_of_another_shape_is_one_line(tmp_path, place, value, said):
    path = tmp_path / "a.json"
    write(path, {"m": model(mr=80.0)})
    content = inner = json.loads(path.read_text())
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"a.json.* {said}.*; allowed: reports of"):
        merging.unite([str(path)], {})


def test_a_setting_of_another_shape_is_shown_as_it_is(tmp_path):
    path = write(tmp_path / "a.json", {"m": model(pooling={"mean": 1}, mr=80.0)})
    found = results.completed(*merging.unite([path], {}))
    assert "| m |  |  | mean |" in report.markdown(found)


def test_the_command_writes_one_report(tmp_path):
    first = write(tmp_path / "a.json", {"m": model(mr=80.0, cr=90.0)})
    second = write(
        tmp_path / "b.json", {"m": model("max", mr=82.0, cr=94.0)}, seeds=[1111]
    )
    given = f"--merge=MEAN={first},MAX={second}", f"--output={tmp_path / 'both'}"
    refused = commands.run("cmlm.evaluate", *given, "--repeats=2")
    said = "--repeats=2 is given; allowed: without --merge, which scores nothing"
    assert refused.stderr == f"error: {said}\n"
    done = commands.run("cmlm.evaluate", *given, "--mean=all=MEAN:m,MAX:m")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"results  {tmp_path}/both/report.html\n")
    text = (tmp_path / "both" / "report.md").read_text()
    assert "| MAX:m |  |  | max |" in text and "all: mean of MEAN:m, MAX:m." in text
    with open(tmp_path / "both" / "scores.csv", newline="") as file:
        rows = [row for row in csv.reader(file) if row[:2] == ["all", "average"]]
    assert ["all", "average", "mean", "senteval", "86.5"] in rows


def test_models_without_a_fingerprint_and_other_means_are_not_one(tmp_path):
    one, two = (
        write(
            tmp_path / f"{task}.json",
            {"m": {**model(**{task: 80.0}), "fingerprint": None}},
        )
        for task in ("mr", "cr")
    )
    with pytest.raises(UserError, match="^m is in .*, and both have no fingerprint"):
        merging.unite([one, two], {})
    one, two = (
        write(
            tmp_path / f"{task}.json",
            {name: model(**{task: 80.0}) for name in "abc"},
            means={"all": ["a", other]},
        )
        for task, other in (("mr", "b"), ("cr", "c"))
    )
    with pytest.raises(UserError, match="^all is in .*, and both are means"):
        merging.unite([one, two], {})
