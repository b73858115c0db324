"""Pairs are exactly the neighbours inside documents, whatever the file layout."""

import collections
import gzip
import random

import pytest
import tensorflow as tf

from cmlm.data import corpus
from cmlm.data.corpus import TextDataConfig
from cmlm.errors import UserError


def write(path, text):
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def make_corpus(directory, n_files=7, seed=0, documents_a_file=30):
    """Writes files of documents with unique lines; returns paths and the documents."""
    rng = random.Random(seed)
    paths, documents = [], []
    for f in range(n_files):
        text = rng.choice(["", "\n", " \n\n"])
        for d in range(documents_a_file):
            length = rng.choice([1, 1, 2, 3, 7, 40, 300])
            document = [f"file {f} document {d} line {i}" for i in range(length)]
            documents.append(document)
            text += rng.choice(["\n", "\r\n"]).join(document)
            text += "\n" + rng.choice(["\n", "\n\n", " \t\n"])
        suffix = ".txt.gz" if f % 2 else ".txt"
        paths.append(write(directory / f"part-{f}{suffix}", text.rstrip()))
    return paths, documents


def neighbours(documents):
    return [pair for lines in documents for pair in zip(lines, lines[1:], strict=False)]


def read_pairs(*args, **kwargs):
    dataset = corpus.sentence_pairs(*args, **kwargs).batch(1024)
    return [
        (first.decode(), second.decode())
        for batch in dataset.as_numpy_iterator()
        for first, second in zip(*batch, strict=True)
    ]


@pytest.mark.parametrize("chunk", [1, 2, 7, 4096])
def test_pairs_are_the_neighbours_of_every_document(tmp_path, monkeypatch, chunk):
    # Small chunks put a chunk border at every place where a pair can be.
    monkeypatch.setattr(corpus, "LINES_PER_CHUNK", chunk)
    paths, documents = make_corpus(tmp_path)
    found = collections.Counter(read_pairs(paths))
    assert found == collections.Counter(neighbours(documents))
    sentences = [s.decode() for s in corpus.sentence_dataset(paths).as_numpy_iterator()]
    assert sorted(sentences) == sorted(line for lines in documents for line in lines)


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfOne\nTwo\n")
    assert read_pairs([path]) == [("One", "Two")]


def test_a_long_line_is_cut_before_it_is_carried(tmp_path):
    path = write(tmp_path / "a.txt", "x" * 900_000 + "\nTwo\n")
    ((first, _),) = read_pairs([path])
    assert len(first) == corpus.MAX_SENTENCE_BYTES


@pytest.mark.parametrize("chunk", [5, 4096])
def test_train_and_validation_share_no_line_and_miss_few(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(corpus, "LINES_PER_CHUNK", chunk)
    paths, documents = make_corpus(tmp_path)
    train = read_pairs(paths, "train", 0.2)
    validation = read_pairs(paths, "validation", 0.2)
    pairs = set(neighbours(documents))
    assert set(train) <= pairs and set(validation) <= pairs
    assert len(set(train)) == len(train)
    assert not {s for pair in train for s in pair} & {
        s for pair in validation for s in pair
    }
    # Only at a border between the parts, one in 128 lines at most, is a pair lost.
    assert len(train) + len(validation) > 0.99 * len(pairs)
    assert 0.1 < len(validation) / len(pairs) < 0.3


def test_one_long_document_can_be_held_out_from(tmp_path):
    path = write(tmp_path / "a.txt", "\n".join(f"line {i}" for i in range(20_000)))
    validation = read_pairs([path], "validation", 0.05)
    assert 0.01 < len(validation) / 20_000 < 0.1
    assert corpus.has_pairs([path], "validation", 0.05)
    assert not corpus.has_pairs([path], "validation", 0.0)


def test_held_out_text_depends_on_neither_seed_nor_order_of_files(tmp_path):
    paths, _ = make_corpus(tmp_path)
    straight = read_pairs(paths, "validation", 0.2)
    other = read_pairs(paths[::-1], "validation", 0.2, seed=5)
    assert straight != other
    assert sorted(straight) == sorted(other)


@pytest.mark.parametrize("n_files", [1, 5])
def test_hosts_share_the_data_without_overlap(tmp_path, n_files):
    paths, documents = make_corpus(tmp_path, n_files)
    shares = [
        read_pairs(paths, input_context=tf.distribute.InputContext(2, host, 2), seed=1)
        for host in range(2)
    ]
    assert all(len(share) > 100 for share in shares)
    assert sorted(shares[0] + shares[1]) == sorted(neighbours(documents))


# ------------------------------------------------------------------ inspection


def test_report_counts(tmp_path):
    paths, documents = make_corpus(tmp_path)
    report = corpus.inspect(paths)
    assert report.files == 7
    assert report.documents == len(documents)
    assert report.sentences == sum(map(len, documents))
    assert report.pairs == len(neighbours(documents)) == len(read_pairs(paths))
    assert report.one_sentence_documents == sum(len(d) == 1 for d in documents)
    assert report.whole and report.invalid_lines == 0


def test_report_of_invalid_bytes_and_characters(tmp_path):
    lines = [b"good line"] * 98 + ["ö€ \ufffd".encode(), b"bad \xff\xfe line"]
    path = write(tmp_path / "a.txt", b"\n".join(lines))
    report = corpus.inspect([path])
    assert (report.invalid_lines, report.replaced_characters) == (1, 2)
    assert report.longest_line == 11
    assert "1 lines are not UTF-8: 2 characters replaced" in str(report)


def test_report_ends_at_its_limit_and_says_so(tmp_path):
    paths, _ = make_corpus(tmp_path)
    report = corpus.inspect(paths, max_bytes=1000)
    assert not report.whole and 1000 <= report.bytes < 1100
    assert "more was not counted" in str(report)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "a.txt is empty"),
        (b"\n \n\t\n", "a.txt is empty"),
        (b"One.\n\nTwo.\n", "a.txt has no two sentences in a row"),
        (b"text\n\x00\x01\x02\n", "a.txt is not text: line 2 has a NUL byte"),
        ("One.\nTwo.\n".encode("utf-16"), "a.txt is UTF-16"),
        (b"ok\nok\ncaf\xe9\n\xe4h\n", "a.txt is not UTF-8: 2 of its 4 .* line 3"),
        (
            b"One.\nTwo.\n" + b"x" * 10_000_000 + b"\nThree.\n",
            "a.txt line 3 has 10,000,000 characters, .*python -m cmlm.prepare",
        ),
        ("ä".encode() * 1_000_001, "a.txt line 1 has 1,000,001 characters"),
    ],
    ids=[
        "empty",
        "blank",
        "no pair",
        "binary",
        "utf-16",
        "latin-1",
        "long",
        "two-byte",
    ],
)
def test_what_cannot_be_trained_on_is_refused_in_one_line(tmp_path, content, message):
    path = write(tmp_path / "a.txt", content)
    with pytest.raises(UserError, match=message) as error:
        corpus.inspect([path])
    assert "\n" not in str(error.value)


def test_a_line_may_have_a_million_characters_of_two_bytes(tmp_path):
    path = write(tmp_path / "a.txt", "ä" * 1_000_000 + "\nTwo\n")
    assert corpus.inspect([path]).longest_line == 1_000_000


# ------------------------------------------------------------------ configuration


def test_resolve_takes_files_as_they_are(tmp_path):
    paths, _ = make_corpus(tmp_path, n_files=2)
    config = TextDataConfig(input_path=f"{tmp_path}/*.txt*")
    assert corpus.resolve(config, str(tmp_path / "work")) == paths
    assert not (tmp_path / "work").exists()


def test_resolve_splits_raw_text_once_and_again_when_it_changes(tmp_path):
    raw = write(tmp_path / "raw.txt", "One here. Two\nhere.\n\nThree here.\n")
    config = TextDataConfig(input_path=raw, raw_layout="wrapped")
    work = str(tmp_path / "work")
    (path,) = corpus.resolve(config, work)
    assert gzip.open(path, "rt").read() == "One here.\nTwo here.\nThree here.\n"
    written = (tmp_path / path).stat().st_mtime_ns
    assert corpus.resolve(config, work) == [path]
    assert (tmp_path / path).stat().st_mtime_ns == written
    write(tmp_path / "raw.txt", "Other text.\n")
    (other,) = corpus.resolve(config, work)
    assert gzip.open(other, "rt").read() == "Other text.\n"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"input_path": ""}, "input_path is empty"),
        ({"global_batch_size": 0}, "global_batch_size=0: allowed is 1 or more"),
        ({"seq_length": 2}, "seq_length=2: allowed is 3 or more"),
        ({"raw_layout": "html"}, "raw_layout='html': allowed are .*wikitext"),
        ({"hold_out_fraction": 1.0}, "hold_out_fraction=1.0: allowed is 0 <= x < 1"),
    ],
)
def test_wrong_values_are_named(changes, message):
    good = {"input_path": "a.txt", "global_batch_size": 8}
    TextDataConfig(**good).validate()
    with pytest.raises(UserError, match=message):
        TextDataConfig(**{**good, **changes}).validate()


def test_an_unknown_builtin_is_named(tmp_path):
    with pytest.raises(UserError, match="allowed is builtin:python-docs"):
        corpus.resolve(TextDataConfig(input_path="builtin:wikipedia"), str(tmp_path))
