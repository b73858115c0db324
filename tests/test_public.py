"""The public face: `import cmlm` in Python, `cmlm` in a shell."""

import copy
import doctest
import io
import json
import os
import pickle
import re
import subprocess
import sys
import types
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest
import toys
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import cmlm
from cmlm import __main__ as console
from cmlm.common import flagfiles
from cmlm.config import listing, loading, overrides
from cmlm.encoders import comparing, opening
from cmlm.encoders.encoder import Encoder
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError, naming_arguments, shown
from cmlm.mining import exact
from cmlm.training import from_python

ROOT = Path(__file__).resolve().parent.parent
SMALL = {
    "model.num_layers": 1,
    "model.hidden_size": 16,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 32,
    "vocabulary.size": 200,
    "task.quickthought.train_data.global_batch_size": 8,
    "trainer.train_steps": 2,
    "trainer.validation_interval": 2,
    "trainer.checkpoint_interval": 2,
    "trainer.optimizer.warmup_steps": 1,
}


@pytest.fixture(scope="module")
def encoder():
    """Vectors of two numbers: a text's length, and 1."""

    class Lengths(comparing.Comparing):
        name, dim = "lengths", 2

        def _encode(self, sentences, progress=None):
            return np.array([[len(text), 1.0] for text in sentences])

    return Lengths()


def test_similarity_is_the_cosine(encoder):
    a, b = ["abc", ""], ["abc", "a", "abcdef"]
    x, y = encoder.encode(a), encoder.encode(b)
    norms = np.linalg.norm(x, axis=1)[:, np.newaxis] * np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(encoder.similarity(a, b), x @ y.T / norms, rtol=1e-6)
    np.testing.assert_array_equal(encoder.similarity(x, y), encoder.similarity(a, b))


def test_similarity_ends_at_one(encoder):
    vectors = np.random.default_rng(3).normal(size=[50, 7])
    found = encoder.similarity(vectors, np.concatenate([vectors, -vectors]))
    assert np.abs(found).max() <= 1


@pytest.mark.parametrize("k", [1, 2, 5, 30, 120, 149, 150])
def test_equal_cosines_are_in_the_order_of_their_rows(k):
    random = np.random.default_rng(1)
    queries = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0, 2]]
    # Quarters, so that products are equal exactly.
    corpus = (random.integers(0, 4, [150, 4]) / 4).astype(np.float32)
    corpus[:4] = 0, 0, 0, 0
    want = np.argsort(-(queries @ corpus.T), axis=1, kind="stable")[:, :k]
    for search in (exact.nearest, exact._by_numpy):
        found = search(queries, corpus, k)
        np.testing.assert_array_equal(found.rows, want)
        cosines = np.take_along_axis(queries @ corpus.T, want, 1)
        np.testing.assert_array_equal(found.cosines, cosines)
        few = search(
            queries[:1], np.array([[0], [0], [0], [0.5]], np.float32) * queries[:1], 2
        )
        assert few.rows.tolist() == [[3, 0]]


def test_search_is_exact_with_and_without_faiss():
    random = np.random.default_rng(0)
    queries = comparing.arrays.unit_length(random.normal(size=[7, 5]))
    corpus = comparing.arrays.unit_length(random.normal(size=[50, 5]))
    want = np.argsort(-(queries @ corpus.T), axis=1)[:, :4]
    for found in (
        exact.nearest(queries, corpus, 4),
        exact.nearest(queries.astype(np.float64), np.asfortranarray(corpus), 4),
        exact._by_numpy(queries, corpus, 4),
    ):
        np.testing.assert_array_equal(found.rows, want)
        cosines = np.take_along_axis(queries @ corpus.T, want, 1)
        np.testing.assert_allclose(found.cosines, cosines, atol=1e-6)


def test_vectors_of_length_1_are_compared_as_they_are(encoder):
    random = np.random.default_rng(0)
    corpus = random.normal(size=[2000, 200]).astype(np.float32)
    units = comparing.arrays.unit_length(corpus)
    assert encoder._units("a", units) is units
    found, want = (encoder.search(units[:3], each, 5) for each in (units, corpus))
    np.testing.assert_array_equal(found.rows, want.rows)
    np.testing.assert_allclose(found.cosines, want.cosines, atol=1e-6)
    # One other vector, type or number, and the lengths count.
    units[7] *= 1.001
    for other in (units, units.astype(np.float64), corpus * 1e30, corpus * 1e-30):
        lengths = np.linalg.norm(encoder._units("a", other), axis=1)
        np.testing.assert_allclose(lengths, 1, atol=1e-6)
    for number in (np.nan, np.inf):
        units[7, 3] = number
        with pytest.raises(ValueError, match="has NaN or infinity"):
            encoder.search(["b"], units)


def test_search_in_few_texts_and_equal_ones(encoder):
    cosines, rows = encoder.search(["ab"], ["abcd", "ab", "cd"], k=5)
    assert rows.tolist() == [[1, 2, 0]] and cosines.shape == (1, 3)
    for empty in ([], np.array([])):
        assert encoder.search(empty, ["ab"]).rows.shape == (0, 1)
        assert encoder.similarity(empty, ["ab"]).shape == (0, 1)
        assert encoder.similarity(["ab"], empty).shape == (1, 0)
    with pytest.raises(ValueError, match="k is 0; allowed: at least 1"):
        encoder.search(["ab"], ["ab"], k=0)
    with pytest.raises(TypeError, match="k is 1.5; allowed: an integer"):
        encoder.search(["ab"], ["ab"], k=1.5)


@pytest.mark.parametrize(
    ("vectors", "said"),
    [
        (np.ones(2), r"has the shape \[2\]; allowed: \[n, dim\]"),
        (np.ones([1, 2, 2]), r"has the shape \[1, 2, 2\]; allowed"),
        (np.array([[1.0, np.nan]]), "has NaN or infinity; allowed: finite numbers"),
        (np.ones([1, 3]), "have the width 3, those of .* 2; allowed: one width"),
    ],
)
def test_vectors_that_cannot_be_compared_are_named(encoder, vectors, said):
    with pytest.raises(ValueError, match=f"a {said}"):
        encoder.similarity(vectors, ["b"])
    with pytest.raises(ValueError, match=f"queries {said}"):
        encoder.search(vectors, ["b"])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("a cat", "is a single string"),
        ("", "is a single string"),
        (np.ones([2, 2], int), "is a ndarray"),
        ([[1.0, 2.0]], "item 0 of .* is list"),
    ],
)
def test_what_is_neither_texts_nor_vectors_is_named(encoder, wrong, said):
    right = ["a"]
    for name, compare in (
        ("a", lambda: encoder.similarity(wrong, right)),
        ("b", lambda: encoder.similarity(right, wrong)),
        ("queries", lambda: encoder.search(wrong, right)),
        ("corpus", lambda: encoder.search(right, wrong)),
    ):
        with pytest.raises(TypeError, match="allowed: a list of str, or .*float") as at:
            compare()
        assert re.search(f"{name} {said}|{said.replace('.*', name)}", str(at.value))


def test_an_encoder_is_its_own_copy(encoder):
    assert copy.copy(encoder) is encoder
    assert copy.deepcopy([encoder.encode])[0].__self__ is encoder


def test_scikit_learn_copies_a_pipeline_with_an_encoder(encoder):
    pipeline = make_pipeline(FunctionTransformer(encoder.encode), LogisticRegression())
    texts, labels = ["a", "ab", "abc", "abcd"] * 3, [0, 0, 1, 1] * 3
    assert len(cross_val_score(pipeline, texts, labels, cv=3)) == 3


def test_an_encoder_says_why_it_cannot_be_pickled():
    graph = types.SimpleNamespace(seq_length=16)
    made = Encoder(graph, {"dim": 2}, "runs/one")
    with pytest.raises(TypeError, match="runs/one cannot be pickled, .* cmlm.load"):
        pickle.dumps(made.encode)


def test_names_of_sentence_transformers():
    import tensorflow as tf

    def vectors(text):
        return tf.cast(tf.strings.length(text), tf.float32)[:, None] + [0.0, 1.0]

    graph = types.SimpleNamespace(
        vectors=vectors, lengths=tf.strings.length, seq_length=16
    )
    made = Encoder(graph, {"dim": 2}, "lengths")
    text = ["abc", "a", "abcdefgh"]
    plain = made.encode(text, normalize=True, progress=False)
    named = made.encode(
        text,
        normalize_embeddings=True,
        show_progress_bar=False,
        batch_size=2,
        convert_to_numpy=True,
        convert_to_tensor=False,
    )
    np.testing.assert_array_equal(named, plain)
    with pytest.raises(UserError, match="convert_to_numpy is False; allowed: True"):
        made.encode(text, convert_to_numpy=False)
    with pytest.raises(UserError, match="convert_to_tensor is True; allowed: False"):
        made.encode(text, convert_to_tensor=True)


def test_help_is_short():
    import pydoc

    lines = pydoc.plain(pydoc.render_doc(cmlm)).splitlines()
    # 25 of them are the rooms and files.
    assert len([line for line in lines if line.strip()]) <= 96


@pytest.mark.large
def test_the_examples_of_the_docstrings_run(tmp_path, monkeypatch):
    python = commands.eager_python(tmp_path / "python")
    monkeypatch.setattr(sys, "executable", python)
    values = {
        "MODEL_DIR": str(tmp_path / "run"),
        "TEXT": toys.write_corpus(tmp_path / "text.txt"),
        "FLAGFILE": str(tmp_path / "small.flags"),
    }
    lines = [f"--params_override={from_python.nested(*item)}" for item in SMALL.items()]
    Path(values["FLAGFILE"]).write_text("\n".join(["--flagfile=quickstart", *lines]))
    tests = [test for test in doctest.DocTestFinder().find(cmlm) if test.examples]
    assert tests
    for test in tests:
        test.globs.update(values)
        assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.large
def test_what_training_refuses_is_an_error_in_python(tmp_path, capfd):
    with pytest.raises(UserError, match="trainer has no 'train_stepz'"):
        cmlm.fit(str(tmp_path), {"trainer.train_stepz": 2}, flagfile="quickstart")
    # The caller may catch the error, so the log does not show it.
    assert "train_stepz" not in capfd.readouterr().err


RUN = """#!{}
import os, signal, sys, time

def saves(*_):
    print("saved", file=sys.stderr)
    sys.exit(143)

signal.signal(signal.SIGTERM, saves)
print("step 1 of", os.getpid(), file=sys.stderr, flush=True)
time.sleep(20)
"""


def stand_in(tmp_path, monkeypatch, program: str) -> None:
    """Puts a program in the place of Python."""
    run = tmp_path / "python"
    run.write_text(program)
    run.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(run))


@pytest.mark.parametrize(
    ("name", "said"), [("KILL", "9, perhaps because memory ran out"), ("ABRT", "6")]
)
def test_a_training_that_a_signal_ends_is_named(name, said, tmp_path, monkeypatch):
    program = f"#!/bin/sh\necho step 1 >&2\nkill -{name} $$\n"
    stand_in(tmp_path, monkeypatch, program)
    with pytest.raises(UserError, match=f"^the training was killed by signal {said}$"):
        from_python.train("run", {}, {})


@pytest.mark.parametrize("error", [KeyboardInterrupt, BrokenPipeError])
def test_an_interrupted_fit_waits_until_its_run_has_saved(error, tmp_path, monkeypatch):
    class Shown(io.StringIO):
        def write(self, line):
            super().write(line)
            if line.startswith("step 1"):
                raise error

    # The run saves at SIGTERM.
    stand_in(tmp_path, monkeypatch, RUN.format(sys.executable))
    monkeypatch.setattr(sys, "stderr", Shown())
    with pytest.raises(error):
        from_python.train("run", {}, {})
    step, saved = sys.stderr.getvalue().splitlines()
    assert saved == "saved"
    with pytest.raises(ProcessLookupError):
        os.kill(int(step.split()[-1]), 0)


@pytest.mark.parametrize("value", [1e-3, 7, True, None, "a, b", [1, 2], ["x"], ""])
def test_settings_reach_the_command_as_they_are(value):
    text = from_python.nested("trainer.evals_data_dir", value)
    ((values, _),) = overrides._read((), [text])
    assert values == {"trainer": {"evals_data_dir": value}}


@pytest.mark.parametrize(
    "value, plain",
    [
        (np.float32(0.25), 0.25),
        (np.int64(3), 3),
        (np.array([1, 2]), [1, 2]),
        (Path("a") / "b", "a/b"),
        ((Path("a"), np.bool_(True)), ["a", True]),
    ],
)
def test_settings_may_be_of_numpy_or_paths(value, plain):
    text = from_python.nested("trainer.evals_data_dir", value)
    ((values, _),) = overrides._read((), [text])
    assert values == {"trainer": {"evals_data_dir": plain}}


@pytest.mark.parametrize("texts", [(text for text in "ab"), b"a.txt", {"a.txt"}])
def test_texts_in_place_of_files_are_refused_before_the_run(texts):
    said = r"^train_data is .*; allowed: .* \(texts are files, not sentences\)$"
    with pytest.raises(UserError, match=said):
        from_python.train("run", {}, {"train_data": texts})


def test_more_arguments_than_a_command_takes_are_named():
    with pytest.raises(UserError, match="^the arguments are longer than a command may"):
        from_python.train("run", {}, {"train_data": ["a sentence"] * 400_000})


def test_a_setting_that_is_no_data_is_named():
    with pytest.raises(UserError, match=r"a.b is \[<object .*; allowed: numbers, str"):
        from_python.nested("a.b", [object()])


def test_lists_of_files_reach_the_command_with_commas():
    assert from_python.joined([Path("a/b.txt"), "c.txt"]) == "a/b.txt,c.txt"
    assert [from_python.joined(value) for value in (Path("a"), True, 3, "x,y")] == [
        *("a", "True", "3", "x,y")
    ]
    assert from_python.joined({"en": [Path("a"), "b"], "de": "c"}) == "en=a,b,de=c"
    assert from_python.joined(np.array(["a", "b"])) == "a,b"


def test_flags_that_the_command_repeats(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, '#!/bin/sh\nprintf "%s " "$@" >&2\nexit 1\n')
    flags = {"config_file": ("a.yaml", Path("b.yaml")), "flagfile": ["c", "d"]}
    wanted = (
        "-m cmlm.train --flagfile=c --flagfile=d --config_file=a.yaml "
        "--config_file=b.yaml --model_dir=run"
    )
    with pytest.raises(UserError, match=f"^{re.escape(wanted)}$"):
        from_python.train("run", {}, flags)


def test_an_error_names_the_setting_as_the_caller_wrote_it(tmp_path, monkeypatch):
    program = '#!/bin/sh\necho "error: $3: trainer has no such" >&2\nexit 1\n'
    stand_in(tmp_path, monkeypatch, program)
    said = "^settings has 'trainer.train_step': trainer has no such$"
    with pytest.raises(UserError, match=said):
        from_python.train("run", {"trainer.train_step": 5}, {})


def test_a_package_that_sys_path_finds_trains(tmp_path, monkeypatch):
    stand_in(tmp_path, monkeypatch, '#!/bin/sh\necho "$PYTHONPATH" >&2\nexit 1\n')
    monkeypatch.setattr(sys, "path", ["", "/checkout", *sys.path])
    with pytest.raises(UserError, match=f"^/checkout{os.pathsep}{sys.path[2]}"):
        from_python.train("run", {}, {})


def test_settings_are_a_dict(tmp_path):
    with pytest.raises(UserError, match="settings has the name 3; allowed: dotted na"):
        cmlm.fit(tmp_path, {3: 4}, flagfile="quickstart")
    with pytest.raises(UserError, match="settings is 'trainer.*'; allowed: a dict"):
        cmlm.fit(tmp_path, "trainer.train_steps=2", flagfile="quickstart")


def test_messages_name_arguments_as_python_writes_them(toy_export, tmp_path):
    with pytest.raises(UserError, match="^precision is 'float16'; allowed with .*: 'f"):
        cmlm.load(toy_export.path, precision="float16")
    with pytest.raises(UserError, match="^tasks has 'trek'; did you mean trec"):
        cmlm.score(toy_export.path, tmp_path, "trek")
    said = "--train_data=a--b is --train_data; use --train_data_b, `gzip --test`"
    with pytest.raises(UserError) as caught, naming_arguments("train_data", "b", "a"):
        raise UserError(said)
    wanted = "train_data=a--b is train_data; use --train_data_b, `gzip --test`"
    assert str(caught.value) == wanted


def test_python_reads_an_encoder_as_the_flags_do(tmp_path):
    run, texts = model_dirs.write(tmp_path / "run"), ["the cat sat on the mat ."]
    plain = cmlm.load(run).encode(texts)
    for given in ({"pooling": "max"}, {"seq_length": 4}):
        found = cmlm.load(run, **given).encode(texts)
        flags_read = opening.open_encoder(run, Reading(**given)).encode(texts)
        np.testing.assert_array_equal(found, flags_read)
        assert np.abs(found - plain).max() > 1e-3
    for given, said in (
        ({"pooling": "maximum"}, "^pooling is 'maximum'; allowed: "),
        ({"seq_length": "4"}, "^seq_length is '4'; allowed: an int"),
        ({"seq_length": 99}, "^seq_length is 99; allowed: "),
        ({"sentence_vector": "projected"}, "^sentence_vector=projected: .* no proj"),
    ):
        with pytest.raises(UserError, match=said):
            cmlm.load(run, **given)


def test_a_path_is_loaded_like_its_name(toy_export):
    found = cmlm.load(Path(toy_export.path))
    assert found.dim == cmlm.load(toy_export.path).dim


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: cmlm.load(None), "model is None; allowed: a path or an address"),
        (lambda: cmlm.load(b"x"), "model is b'x'; allowed: a path or an address"),
        (lambda: cmlm.fit(None), "model_dir is None; allowed: a path, as a str"),
        (
            lambda: cmlm.score("x", None, "sts"),
            "data_dir is None; allowed: a path, as a str",
        ),
        (
            lambda: cmlm.score("x", tasks="sts", output=3),
            "output is 3; allowed: a path, as a str",
        ),
        (lambda: cmlm.score("x", tasks=3), "tasks is 3; allowed: a str or a list"),
        (
            lambda: cmlm.score("x", tasks=["sts", None]),
            r"tasks is \['sts', None\]; allowed: a str or a list of str",
        ),
        (lambda: cmlm.averages([1]), r"scores is \[1\]; allowed: the scores of"),
        (lambda: cmlm.averages({"mr": 1}), "scores is {'mr': 1}; allowed: the scores"),
    ],
)
def test_what_is_no_path_or_no_name_of_a_task_is_named(call, said):
    with pytest.raises(UserError, match=f"^{said}"):
        call()


def test_tasks_may_be_an_array(encoder, tmp_path):
    (tmp_path / "own.tsv").write_text("a cat\tthe cat\t5\na\tfar\t1\nmat\ta mat\t4\n")
    task = f"sts:{tmp_path}/own.tsv"
    assert list(cmlm.score(encoder, tasks=np.array([task]))) == [task]


def test_a_value_of_several_lines_is_shown_on_one():
    assert shown(np.zeros([2, 1])) == "array([[0.],        [0.]])"


def test_a_model_is_scored_by_its_name_and_a_task_by_its_own(toy_export, tmp_path):
    rows = ["a cat\tthe cat\t5", "a dog\tfar away\t1", "the mat\ta mat\t4"]
    (tmp_path / "own.tsv").write_text("\n".join(rows) + "\n")
    task = f"sts:{tmp_path}/own.tsv"
    want = cmlm.score(cmlm.load(toy_export.path), tmp_path, [task])
    assert list(want) == [task]
    twice = f" {task}, {task},"
    assert cmlm.score(Path(toy_export.path), str(tmp_path), twice) == want
    with pytest.raises(UserError, match="encoder is 3; allowed: a model, or"):
        cmlm.score(3, str(tmp_path), task)
    # Files need no folder of test sets; neither the range of scores nor the case of the
    # suffix matters.
    rows = ["a cat,the cat,100", "a dog,far away,-20", "the mat,a mat,7e1"]
    (tmp_path / "own.CSV").write_text("\n".join(rows) + "\n")
    scores = cmlm.score(toy_export.path, tasks=f"sts:{tmp_path}/own.CSV")
    assert scores[f"{task[:-3]}CSV"] == pytest.approx(want[task])
    for nothing in (None, (), "", " "):
        with pytest.raises(UserError, match="tasks is not given; allowed: names"):
            cmlm.score(toy_export.path, str(tmp_path), nothing)
    (tmp_path / "own.tsv").write_text("a cat\tthe cat\tnan\n")
    with pytest.raises(UserError, match="own.tsv, pair 1 .*: score 'nan'; allowed: a "):
        cmlm.score(toy_export.path, tasks=task)


def test_a_report_of_own_files_may_lie_beside_them(encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["a cat\tthe cat\t5", "a dog\tfar away\t1", "the mat\tmats\t4"]
    Path("own.tsv").write_text("\n".join(rows) + "\n")
    cmlm.score(encoder, tasks="sts:own.tsv", output="report")
    assert Path("report", "report.html").exists()
    with pytest.raises(UserError, match="^output=other lies in . of data_dir"):
        cmlm.score(encoder, tasks="sts:own.tsv,trec", output="other")


def test_a_report_without_matplotlib_is_refused_before_scoring(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "cmlm.evaluation.plots", raising=False)
    monkeypatch.delattr("cmlm.evaluation.plots", raising=False)
    said = r"^matplotlib is not installed: pip install 'cmlm\[evaluate\]'"
    with pytest.raises(UserError, match=said):
        cmlm.score("no model", tasks=f"sts:{tmp_path}/own.tsv", output="report")


def test_scores_come_with_averages_repeats_and_a_report(encoder, tmp_path):
    path, output = tmp_path / "own.tsv", tmp_path / "report"
    rows = [f"{'a' * n}\t{'long' if n > 12 else 'short'}" for n in range(1, 25)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")
    task = f"classification:{path}"
    given = {"tasks": [task], "repeats": np.int64(2), "classifier": "logistic-adam"}
    scores = cmlm.score(encoder, **given, output=output)
    assert scores[task].keys() >= {"accuracy", "accuracy_std"}
    found = json.loads((output / "results.json").read_text())
    assert found["models"]["lengths"]["scores"] == scores
    assert found["seeds"] == [1111, 1112] and found["classifier"] == "logistic-adam"
    assert (output / "report.html").exists()
    for wrong, said in (
        ({"output": output}, "report exists; allowed: another path, or overwrite"),
        (
            {"output": path, "overwrite": True},
            "output=.*own.tsv is the input .* of tasks",
        ),
        ({"repeats": 0}, "^repeats is 0; allowed: a number from 1"),
        ({"repeats": True}, "^repeats is True; allowed: a number from 1"),
        (
            {"classifier": "svm"},
            "^classifier is 'svm'; allowed: logistic, logistic-adam, logistic-cmlm, ",
        ),
    ):
        with pytest.raises(UserError, match=said):
            cmlm.score(encoder, **{**given, **wrong})
    assert cmlm.averages(scores) == {}


# -------------------------------------------------------------------- the shell


def run_console(monkeypatch, capsys, *arguments) -> str:
    monkeypatch.setattr(sys, "argv", ["cmlm", *arguments])
    console._dispatch()
    return capsys.readouterr().out


def test_the_command_lists_all_commands(monkeypatch, capsys):
    told = run_console(monkeypatch, capsys)
    for name, module in console.COMMANDS.items():
        assert f"  {name} " in told
        assert (ROOT / (module.replace(".", "/") + ".py")).exists()
    with pytest.raises(
        UserError, match="is 'trian'; did you mean train\\? allowed: train, "
    ):
        run_console(monkeypatch, capsys, "trian")


def test_settings_are_listed_with_type_default_and_meaning(monkeypatch, capsys):
    told = run_console(monkeypatch, capsys, "settings", "optimizer.warmup")
    assert "trainer.optimizer.warmup_steps = 10000  (int; at least 0)\n    " in told
    told = run_console(monkeypatch, capsys, "settings", "decay_steps")
    assert "trainer.optimizer.decay_steps = null  (int or null; at least 1)\n" in told
    names = [each.name for each in listing.settings("Task.*.loss")]
    assert "task.scored.loss" in names and len(names) < 20
    with pytest.raises(UserError, match="no setting has 'warmth' in its name"):
        run_console(monkeypatch, capsys, "settings", "warmth")
    with pytest.raises(UserError, match="did you mean model.pooling"):
        run_console(monkeypatch, capsys, "settings", "poolling")
    with pytest.raises(UserError, match="allowed: one pattern"):
        run_console(monkeypatch, capsys, "settings", "a", "b")


def test_every_setting_has_a_meaning():
    found = {each.name: each for each in listing.settings()}
    flat = {name for name, _ in overrides.flat(loading.load("cmlm/english").as_dict())}
    assert {name for name in flat if not name.startswith("runtime.")} <= {
        *found,
        "stacked_on",
    }
    assert not [name for name, each in found.items() if not each.meaning]
    assert {f"runtime.{name}" for name in listing._RUNTIME} <= set(found)


def test_one_command_runs_another(tmp_path):
    """From an empty folder, with a flagfile that the package ships."""
    done = subprocess.run(
        [sys.executable, "-m", "cmlm", "train", "--flagfile=papers/ulr/mlm", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Trains a sentence encoder" in done.stdout


# ------------------------------------------------------------------- flagfiles


def test_flagfiles_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    want = str(Path(flagfiles.SHIPPED) / "en_small.flags")
    for name in ("en_small", "en_small.flags", "configs/en_small.flags"):
        assert flagfiles.find(name) == want
    assert flagfiles.find("nowhere") is None
    assert {"en_small", "quickstart", "papers/ulr/mlm"} <= set(flagfiles.names())
    # A file of the user comes first.
    (tmp_path / "en_small").write_text(
        "--a=1\n# said\n\n--flagfile=configs/ulr.flags\n"
    )
    found = flagfiles.expand(["--b=2", "--flagfile=en_small", "--c=3"])
    assert found[:2] == ["--b=2", "--a=1"] and found[-1] == "--c=3"
    assert "--experiment=ulr/misad" in found


def test_flagfiles_that_name_each_other_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("--flagfile=b\n--x=1")
    (tmp_path / "b").write_text("--flagfile=a\n--y=2")
    assert flagfiles.expand(["--flagfile=a"]) == ["--flagfile=a", "--y=2", "--x=1"]


def test_the_package_ships_every_flagfile():
    shipped = {f"{name}.flags" for name in flagfiles.names()}
    there = (ROOT / "configs").rglob("*.flags")
    assert shipped == {str(path.relative_to(ROOT / "configs")) for path in there}
    patterns = re.search(
        r"^cmlm =\n((?: +\S+\n)+)", (ROOT / "setup.cfg").read_text(), re.M
    )
    globbed = {
        str(path.relative_to(ROOT / "cmlm" / "configs"))
        for pattern in patterns[1].split()
        for path in (ROOT / "cmlm").glob(pattern)
    }
    assert shipped <= globbed
