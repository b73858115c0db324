"""Evaluation on one's own labels, against scikit-learn and trec_eval's definitions."""

import json
import sys

import numpy as np
import pytest
from encoders import Hashed, WordCounts
from sklearn import metrics

from cmlm.common import arrays
from cmlm.errors import UserError
from cmlm.evaluation import catalogue, classifier, run
from cmlm.evaluation.data_dir import DataDir
from cmlm.evaluation.store import Store
from cmlm.evaluation.tasks import retrieval, user_files
from cmlm.mining import index

DIM = 8


def scores(task, folder) -> dict[str, float]:
    data = task.read(DataDir(str(folder)))
    with Store(Hashed(DIM)) as store:
        store.add(task.sentences(data))
        return task.score(data, store)


@pytest.fixture
def collection(tmp_path):
    """A folder in BEIR's layout, with graded judgements and ids that both sides use."""
    random = np.random.default_rng(0)
    folder = tmp_path / "own"
    (folder / "qrels").mkdir(parents=True)
    documents = [
        {"_id": f"x{n}", "title": f"title {n}" if n % 2 else "", "text": f"text {n}"}
        for n in range(150)
    ]
    queries = [
        {"_id": f"x{n}" if n < 5 else f"q{n}", "text": f"q {n}"} for n in range(30)
    ]
    for name, rows in (("corpus", documents), ("queries", queries)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines)
    grades = {}
    for query in queries[:-1]:
        chosen = random.choice(len(documents), random.integers(1, 15), replace=False)
        grades[query["_id"]] = {
            f"x{n}": int(random.integers(0, 3)) for n in chosen if n >= 5
        }
    # More documents are relevant than 100 places hold. A nearer document has the id of
    # the query.
    grades["x0"] = {f"x{n}": 1 for n in range(5, 150)}
    # A query of which nothing is relevant scores 0.
    grades[queries[-1]["_id"]] = {"x7": 0}
    lines = [
        f"{query}\t{document}\t{grade}\n"
        for query, found in grades.items()
        for document, grade in found.items()
    ]
    (folder / "qrels" / "test.tsv").write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(lines)
    )
    return folder, documents, queries, grades


def test_retrieval_is_scored_as_by_scikit_learn(collection, tmp_path):
    folder, documents, queries, grades = collection
    got = scores(retrieval.RetrievalFiles([str(folder)]), tmp_path)
    # Without the line of names, the first judgement counts, too.
    qrels = (folder / "qrels" / "test.tsv").read_text()
    (folder / "qrels" / "bare.tsv").write_text(qrels.partition("\n")[2])
    assert scores(retrieval.RetrievalFiles([str(folder), "bare"]), tmp_path) == got
    encode = Hashed(DIM).encode
    texts = [" ".join(f"{row['title']} {row['text']}".split()) for row in documents]
    pool = arrays.unit_length(encode(texts))
    want = {"ndcg@10": [], "recall@10": [], "recall@100": [], "mrr@10": []}
    for query in queries:
        relevance = np.array(
            [grades[query["_id"]].get(row["_id"], 0) for row in documents]
        )
        if not relevance.any():
            for values in want.values():
                values.append(0)
            continue
        cosines = pool @ arrays.unit_length(encode([query["text"]]))[0]
        # The document that is the query itself is last.
        cosines[[row["_id"] == query["_id"] for row in documents]] = -2
        ranked = relevance[np.argsort(-cosines)]
        want["ndcg@10"].append(metrics.ndcg_score([relevance], [cosines], k=10))
        for k in (10, 100):
            want[f"recall@{k}"].append((ranked[:k] > 0).sum() / (relevance > 0).sum())
        hits = np.flatnonzero(ranked[:10])
        want["mrr@10"].append(1 / (hits[0] + 1) if len(hits) else 0)
    assert got == pytest.approx({k: 100 * np.mean(v) for k, v in want.items()})
    assert 0 < got["ndcg@10"] < got["recall@100"] < 100


def test_relevant_documents_may_be_missing(collection, tmp_path):
    """As in BEIR's ArguAna: the ideal order and the recall count them."""
    folder, *_ = collection
    queries = folder / "queries.jsonl"
    queries.write_text(json.dumps({"_id": "q", "text": "title 1 text 1"}))
    judged = ["q\tx1\t1", "q\tnone\t1", "q\tother\t2", "q\tx2\t0"]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["head", *judged]))
    task = retrieval.RetrievalFiles([str(folder)])
    data = task.read(DataDir(str(tmp_path)))
    assert sorted(data.judgements[0].items()) == [(-2, 2), (-1, 1), (1, 1)]
    assert task.remarks(data)[0].endswith("lacks, counted as not found: 2")
    got = scores(task, tmp_path)
    # x1 is the nearest. The best order has the grades 2, 1, 1.
    best = 2 + 1 / np.log2(3) + 1 / 2
    assert got["ndcg@10"] == pytest.approx(100 / best)
    assert got["recall@100"] == pytest.approx(100 / 3) and got["mrr@10"] == 100


def test_a_large_collection_is_searched_exactly(collection, tmp_path, monkeypatch):
    folder, *_ = collection
    want, chosen = scores(retrieval.RetrievalFiles([str(folder)]), tmp_path), []
    monkeypatch.setattr(index, "choose", lambda *_: chosen.append("auto") or "ivf")
    assert scores(retrieval.RetrievalFiles([str(folder)]), tmp_path) == want
    assert not chosen, "the size does not choose the index"


def test_queries_and_passages_score_as_their_collection(tmp_path):
    """Repeated passages are one document, and a repeated query has several answers."""
    pairs = [
        ("q 1", "p 1", "p 9"),
        ("q 2", "p 1", "p 8"),
        ("q 1", "p 2", "p 9"),
        ("p 3", "p 3", "p 1"),
    ]
    lines = ["\t".join(pair) for pair in pairs]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    folder = tmp_path / "own"
    (folder / "qrels").mkdir(parents=True)
    documents = dict.fromkeys(text for _, *found in pairs for text in found)
    # The ids of queries and documents differ: a query finds a document of equal text.
    for name, prefix, texts in (
        ("corpus", "d ", documents),
        ("queries", "", dict.fromkeys(query for query, *_ in pairs)),
    ):
        rows = [json.dumps({"_id": prefix + text, "text": text}) for text in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    judged = [f"{query}\td {passage}\t1" for query, passage, _ in pairs]
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged))
    own = retrieval.RetrievalFiles(["pairs.tsv"])
    got = scores(own, tmp_path)
    assert got == pytest.approx(scores(retrieval.RetrievalFiles(["own"]), tmp_path))
    data = own.read(DataDir(str(tmp_path)))
    assert sorted(data.documents) == ["p 1", "p 2", "p 3", "p 8", "p 9"]
    assert data.queries == ["q 1", "q 2", "p 3"]
    with Store(Hashed(DIM)) as store:
        store.add(own.sentences(data))
        (found,) = own.outcome(data, store).predictions.values()
    assert found.answers[2] == "p 3"


@pytest.mark.parametrize(
    "content, said",
    [
        ("a\tb\nc\t \n", "pairs.tsv, column 2, line 2 is blank; allowed: text"),
        ("a\tb\nc\n", "pairs.tsv, line 2"),
        ("a\tb\nc\tb\n", "pairs.tsv has one passage; allowed: at least 2"),
    ],
)
def test_damaged_queries_and_passages_are_named(tmp_path, content, said):
    (tmp_path / "pairs.tsv").write_text(content)
    with pytest.raises(UserError, match=said):
        retrieval.RetrievalFiles(["pairs.tsv"]).read(DataDir(str(tmp_path)))


@pytest.mark.parametrize(
    "line, said",
    [
        ("q9\tx1\thigh", "line 2 is .*; allowed: query, document and a whole number"),
        ("q9\tx1\t--5", "line 2 is .*; allowed: query, document and a whole number"),
        (f"q9\tx1\t{'9' * 5000}", "line 2 is .*; allowed: query, document and a whole"),
        ("nobody\tx1\t1", "line 2: query 'nobody' is not in queries.jsonl"),
        ("q9\tnothing\t1", "grades no document of .*corpus.* above 0"),
        ("q9\tx\r1\t1\nq8\tx1\t1", "line 2"),
        ('q9\t"x1\t1\nq8\tx1\t1', "line 2: .*each quote closed"),
        ("q9\tx1\t0", "grades no document of .* above 0; allowed"),
        ("q9\tx1\t0\nq9\tx1\t1", "line 3 repeats query 'q9' and document 'x1'; allow"),
    ],
)
def test_damaged_judgements_are_named(collection, tmp_path, line, said):
    folder, *_ = collection
    (folder / "qrels" / "dev.tsv").write_text(f"head\n{line}\n")
    (task,) = catalogue.select([f"retrieval:{folder}:dev"])
    with pytest.raises(UserError, match=said):
        task.read(DataDir(str(tmp_path)))


def test_pairs_by_scikit_learn(tmp_path):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 60)
    lines = [
        f"a {n}\t{'a' if n % 3 == 0 else 'b'} {n}\t{label}\n"
        for n, label in enumerate(labels)
    ]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    got = scores(user_files.PairFiles(["pairs.tsv"]), tmp_path)
    encode = Hashed(DIM).encode
    first = arrays.unit_length(encode([f"a {n}" for n in range(60)]))
    second = [f"{'a' if n % 3 == 0 else 'b'} {n}" for n in range(60)]
    cosines = np.sum(first * arrays.unit_length(encode(second)), axis=1)
    # Equal texts have one cosine.
    cosines[::3] = 1
    thresholds = [*np.unique(cosines), 2]
    guesses = [cosines >= threshold for threshold in thresholds]
    want = {
        "ap": metrics.average_precision_score(labels, cosines),
        "auc": metrics.roc_auc_score(labels, cosines),
        "f1": max(metrics.f1_score(labels, guess) for guess in guesses),
        "accuracy": max(np.mean(labels == guess) for guess in guesses),
    }
    assert got == pytest.approx({name: 100 * value for name, value in want.items()})


def test_classes_come_from_the_training_file(tmp_path):
    random = np.random.default_rng(0)
    for name, n in (("train", 80), ("test", 40)):
        rows = [f"{i}\t{name} {i}\t{random.choice(['b', 'a', 'c'])}" for i in range(n)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["id\ttext\tlabel", *rows]))
    task = user_files.ClassificationFiles(["train.tsv", "test.tsv"])
    data = task.read(DataDir(str(tmp_path)))
    assert {part: len(rows.texts) for part, rows in data.items()} == {
        "train": 80,
        "test": 40,
    }
    # In the order of the file: predictions have its numbers.
    assert data["test"].texts == [(f"test {i}",) for i in range(40)]
    got = scores(task, tmp_path)
    assert 10 < got["accuracy"] < 70  # of three classes, by unrelated vectors
    (tmp_path / "test.tsv").write_text("text\tlabel\nx\td\n")
    with pytest.raises(UserError, match="line 2: label 'd'; allowed: a, b, c"):
        task.read(DataDir(str(tmp_path)))
    # Fine-tuning takes other columns too; this task names its own only.
    (tmp_path / "test.tsv").write_text("text\tscore\nx\t1\n")
    with pytest.raises(UserError, match="text1 and text2; and label$"):
        task.read(DataDir(str(tmp_path)))


def write_classes(path, counts):
    rows = [f"{path.stem} {c} {n}\t{c}" for c, count in counts for n in range(count)]
    path.write_text("\n".join(["text\tlabel", *rows]) + "\n")


@pytest.mark.filterwarnings("error:The least populated class")
@pytest.mark.parametrize("names", [["train"], ["train", "test"]])
def test_the_smallest_classes_that_suffice_for_folds(tmp_path, names, monkeypatch):
    monkeypatch.setattr(classifier, "GRID", (1.0,))  # One value of C saves time.
    paths = [f"{name}.tsv" for name in names]
    most, least = (12, 3) if names == ["train"] else (10, 2)
    write_classes(tmp_path / "test.tsv", [("a", 2), ("b", 2)])
    task = user_files.ClassificationFiles(paths)
    write_classes(tmp_path / "train.tsv", [("b", most), ("a", least)])
    assert "accuracy" in scores(task, tmp_path)
    for counts in ([("a", 50), ("b", least - 1)], [("a", most - 1), ("b", most - 1)]):
        write_classes(tmp_path / "train.tsv", counts)
        (_, largest), (_, next_one) = counts
        said = (
            f"train.tsv: the largest class has {largest} examples, the next {next_one}"
        )
        with pytest.raises(UserError, match=said):
            task.read(DataDir(str(tmp_path)))


@pytest.mark.parametrize(
    "family, content, said",
    [
        (
            "sts",
            "a\tb\tscore\na\tc\t1\n",
            "pair 1 (a header line is not allowed): score",
        ),
        ("sts", "a\tb\t2\na\tc\t1,5\n", "pair 2: score '1,5'; allowed: a number"),
        ("pairs", "a\tb\tsame\n", "pair 1 (a header line is not allowed): label"),
        ("classification", "text\tlabel\na\tx\nb\ty\n", "the largest class has 1"),
    ],
)
def test_sound_files_that_do_not_fit_a_task_are_not_damaged(
    tmp_path, family, content, said
):
    (tmp_path / "own.tsv").write_text(content)
    name = f"{family}:own.tsv"
    _, failed = run.read(catalogue.select([name]), str(tmp_path))
    assert said in failed[name] and "damaged" not in failed[name]


def test_a_task_without_a_score_leaves_the_others(tmp_path):
    """SentEval's MR with too few reviews for folds."""
    for name in ("rt-polarity.pos", "rt-polarity.neg"):
        (tmp_path / "MR").mkdir(exist_ok=True)
        (tmp_path / "MR" / name).write_text("one\ntwo\n")
    (tmp_path / "pairs.tsv").write_text("a\tb\t1\na\tc\t0\n")
    names = ["mr", "pairs:pairs.tsv"]
    tasks, failed = run.read(catalogue.select(names), str(tmp_path))
    assert not failed
    with pytest.raises(UserError, match="largest class has 2 examples"):
        run.score(Hashed(DIM), tasks)
    found = run.score(Hashed(DIM), tasks, goes_on=True)
    assert list(found.scores) == ["pairs:pairs.tsv"]
    assert found.failed["mr"].startswith(
        "the largest class has 2 examples, the next 2; allowed for 10 folds: at least "
    )


def test_a_text_that_cannot_be_encoded_leaves_the_other_tasks(tmp_path):
    class Refusing(Hashed):
        def encode(self, texts, **_):
            if "bad" in texts:
                raise UserError("bad is refused")
            return super().encode(texts)

    (tmp_path / "good.tsv").write_text("a\tb\t1\na\tc\t0\n")
    (tmp_path / "bad.tsv").write_text("a\tb\t1\na\tbad\t0\n")
    names = ["pairs:bad.tsv", "pairs:good.tsv"]
    tasks, _ = run.read(catalogue.select(names), str(tmp_path))
    with pytest.raises(UserError, match="bad is refused"):
        run.score(Refusing(DIM), tasks)
    found = run.score(Refusing(DIM), tasks, goes_on=True)
    assert list(found.scores) == ["pairs:good.tsv"]
    assert found.failed == {"pairs:bad.tsv": "bad is refused"}
    assert found.encoded == 3


def test_sentences_that_are_no_lines_are_refused(collection, tmp_path):
    folder, documents, *_ = collection
    half = {**documents[0], "text": "half \ud83d"}
    rows = [json.dumps(row) for row in (half, *documents[1:])]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    (tmp_path / "pairs.tsv").write_text("a\tb\t1\na\tc\t0\n")
    names = ["pairs:pairs.tsv", f"retrieval:{folder}"]
    tasks, _ = run.read(catalogue.select(names), str(tmp_path))
    path = tmp_path / "sentences.txt"
    with pytest.raises(UserError, match=r"^retrieval:.*cannot hold .half \\ud83d.:"):
        run.write_sentences(str(path), tasks)
    assert not path.exists()


@pytest.mark.parametrize("text", ["a\0b", "\ufeffmarked"])
def test_texts_that_readers_of_lines_change_are_refused(collection, tmp_path, text):
    folder, documents, *_ = collection
    rows = [json.dumps(row) for row in ({**documents[0], "text": text}, *documents[1:])]
    (folder / "corpus.jsonl").write_text("\n".join(rows))
    tasks, _ = run.read(catalogue.select([f"retrieval:{folder}"]), str(tmp_path))
    with pytest.raises(UserError, match="a NUL, half of a surrogate pair or a byte "):
        run.write_sentences(str(tmp_path / "sentences.txt"), tasks)


def test_a_missing_faiss_is_named_before_the_encoding(
    collection, tmp_path, monkeypatch
):
    folder, *_ = collection
    (tmp_path / "pairs.tsv").write_text("a\tb\t1\na\tc\t0\n")
    names = ["pairs:pairs.tsv", f"retrieval:{folder}"]
    tasks, _ = run.read(catalogue.select(names), str(tmp_path))
    monkeypatch.setitem(sys.modules, "faiss", None)
    encoder = WordCounts()
    with pytest.raises(UserError, match="faiss is not installed"):
        run.score(encoder, tasks)
    assert not encoder.asked
    found = run.score(encoder, tasks, goes_on=True)
    assert list(found.scores) == ["pairs:pairs.tsv"]
    assert list(found.failed) == [f"retrieval:{folder}"]
    assert sorted(encoder.asked) == ["a", "b", "c"]


def test_names_of_models(tmp_path):
    odd = tmp_path / "lr=1"
    odd.mkdir()
    values = ["new=runs/a", "languages:en=a,de=b", "best:runs/lr=2", str(odd)]
    assert run.named(values) == {
        "new": "runs/a",
        "languages:en=a,de=b": "languages:en=a,de=b",
        "best:runs/lr=2": "best:runs/lr=2",
        str(odd): str(odd),
    }
    with pytest.raises(UserError, match="two models named 'a'"):
        run.named(["a=x", "a=y"])


@pytest.mark.parametrize(
    "name, meant",
    [("tatoba", "tatoeba"), ("stsb", "stsb-test"), ("retreival:x", "retrieval:FILE")],
)
def test_an_unknown_task_is_answered_with_its_like(name, meant):
    with pytest.raises(UserError, match=f"did you mean .*{meant}"):
        catalogue.select([name])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"_id": "x0", "text": "x"}', "line 151: the id 'x0' occurs twice"),
        ('{"_id": 5, "text": "x"}', "line 151 lacks a text; allowed: texts '_id' and"),
        ('{"_id": "y"}', "line 151 lacks a text; allowed: texts '_id' and 'text'"),
    ],
)
def test_damaged_documents_are_named(collection, tmp_path, line, said):
    folder, *_ = collection
    with open(folder / "corpus.jsonl", "a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=f"corpus.jsonl, {said}"):
        retrieval.RetrievalFiles([str(folder)]).read(DataDir(str(tmp_path)))
