"""A killed evaluation goes on: scores and vectors are on disk task by task."""

import dataclasses
import os
import types

import numpy as np
import pytest
from encoders import WordCounts

from cmlm.common import identity
from cmlm.encoders import by_language, components_removal, external
from cmlm.errors import UserError
from cmlm.evaluation import resuming, run, scoring, store
from cmlm.evaluation.tasks import base

TEXTS = {"one": ["a b", "c"], "two": ["c", "d e"], "three": ["f"]}


class Task(base.Task):
    """Sums the vectors of its sentences; `dies` stands for a kill."""

    main_metric = "sum"
    protocol = "the sum of all entries"

    def __init__(self, name):
        self.name, self.scored, self.dies = name, 0, False

    def read(self, source):
        return TEXTS[self.name]

    def sentences(self, data):
        return data

    def score(self, data, vectors):
        if self.dies:
            raise KeyboardInterrupt
        self.scored += 1
        return {"sum": float(np.pi * vectors(data, self.name).sum())}

    def figures(self, data, vectors):
        return {"kind": "bars", "values": [0.1, 1e-17]} if self.name == "one" else {}


def tasks():
    return [run.TaskData(Task(name), TEXTS[name], {name: "00"}) for name in TEXTS]


def halved(vectors, language):
    return vectors / 2


def score(directory, tasks, encoder, about=None, change=None):
    directory.mkdir(exist_ok=True)
    known = resuming.Kept(str(directory), about or {"model": "m"})
    return run.score(encoder, tasks, kept=known, change=change, with_figures=True)


def without_seconds(scores):
    found = dataclasses.asdict(scores)
    return {k: v for k, v in found.items() if not k.endswith("seconds")}


@pytest.mark.parametrize("change", [None, halved])
def test_a_killed_evaluation_goes_on_with_the_same_results(tmp_path, change):
    straight = run.score(WordCounts(), tasks(), change=change, with_figures=True)
    assert list(straight.figures) == ["one"]
    # Evaluations inside of training show none.
    assert run.score(WordCounts(), tasks(), change=change).figures == {}
    asked = {name for names in straight.languages.values() for name in names}
    assert asked == {*TEXTS}
    killed, encoder = tasks(), WordCounts()
    killed[1].task.dies = True
    with pytest.raises(KeyboardInterrupt):
        score(tmp_path / "work", killed, encoder, change=change)
    again, second = tasks(), WordCounts()
    resumed = score(tmp_path / "work", again, second, change=change)
    assert without_seconds(resumed) == without_seconds(straight)
    assert resumed.encoded == 4 and second.asked == []
    assert [item.task.scored for item in again] == [0, 1, 1]


class Refusing(Task):
    def check(self):
        raise UserError("refused")


def test_a_directory_holds_the_scores_of_all_models(tmp_path, capsys):
    """A task that fails leaves the others; a second run scores none again."""
    for scored in (2, 0):
        items = tasks()
        items[2].task = Refusing("three")
        found = scoring.Scoring(items, str(tmp_path), None, 1, False)
        for name in ("a", "b"):
            encode = WordCounts().encode
            found.add(
                name, types.SimpleNamespace(encode=encode, info={"vectors": name})
            )
        assert found.failed == {f"three of {name}": "refused" for name in "ab"}
        assert [item.task.scored for item in items] == [scored, scored, 0]
        assert [*found.models] == ["a", "b"] and not found.predictions
        said = capsys.readouterr().err
        assert "a: three: refused\n" in said
        rows = (tmp_path / "scores.csv").read_text().splitlines()[1:]
        assert [row.rpartition(",")[0] for row in rows] == [
            f"{name},{task},sum," for name in "ab" for task in ("one", "two")
        ]


class Predicting(Task):
    """Has a prediction, too."""

    def outcome(self, data, vectors):
        predictions = base.Predictions([data], data, np.ones(len(data)))
        return base.Outcome(self.score(data, vectors), {"": predictions})


def test_only_a_task_with_predictions_is_scored_again_for_them(tmp_path):
    first, again = tasks(), tasks()
    for items in (first, again):
        items[1].task = Predicting("two")
    score(tmp_path / "work", first, WordCounts())
    known = resuming.Kept(str(tmp_path / "work"), {"model": "m"})
    found = run.score(WordCounts(), again, kept=known, with_predictions=True)
    assert [item.task.scored for item in again] == [0, 1, 0]
    assert found.predictions["two"][""].gold == TEXTS["two"]
    assert list(found.predictions) == ["two"]


@pytest.mark.parametrize("change", ["model", "data", "seeds", "cut off"])
def test_scores_of_anything_else_are_not_taken(tmp_path, change):
    score(tmp_path / "work", tasks(), WordCounts())
    other = tasks()
    if change == "data":
        other[0].checksums["one"] = "11"
    if change == "seeds":
        other[0].task.seeds = (1, 2)
    if change == "cut off":
        for path in (tmp_path / "work").glob("*/*.json"):
            os.truncate(path, path.stat().st_size - 5)
    about = {"model": "other" if change == "model" else "m"}
    score(tmp_path / "work", other, WordCounts(), about)
    assert other[0].task.scored == 1


def test_a_server_that_rounds_otherwise_is_the_same_model(tmp_path):
    def about(number):
        return {"model": {"server": "http://host", "probe": [[0.25, number]]}}

    score(tmp_path / "work", tasks(), WordCounts(), about(0.5000005))
    for number, scored in ((0.5000015, 0), (0.51, 1)):
        again = tasks()
        score(tmp_path / "work", again, WordCounts(), about(number))
        assert [item.task.scored for item in again] == [scored] * 3


def test_stored_vectors_are_identified_by_every_row(tmp_path):
    (tmp_path / "texts").write_text("".join(f"{n}\n" for n in range(100)))
    rows = np.ones([100, 4], np.float32)

    def stored():
        np.save(tmp_path / "rows.npy", rows)
        return external.StoredVectors(f"{tmp_path}/texts", f"{tmp_path}/rows.npy")

    one = identity.of(stored())
    assert identity.of(stored()) == one
    rows[99, 3] = 2
    assert identity.of(stored()) != one


def test_encoders_by_language_are_described_like_one_encoder():
    english = types.SimpleNamespace(info={"fingerprint": "f", "dim": 2}, seq_length=9)
    several = by_language.ByLanguage(en=english)
    assert several.info == {"languages": {"en": english.info}}
    identities = {"languages": {"en": {"fingerprint": "f", "seq_length": 9}}}
    assert identity.of(several) == identities
    assert store.folder_in("cache", several) is None
    with pytest.raises(UserError, match="not with .*stored vectors or languages:"):
        components_removal.Removal("pcr.npz", several, "several")
