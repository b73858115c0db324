"""Pairs are exactly the neighbours inside documents, whatever the file layout."""

import collections
import gzip
import itertools

import pytest
import tensorflow as tf
from texts import make_corpus, neighbours, write, write_lines

from cmlm import cli
from cmlm.data import line_files, streams
from cmlm.data.passages import Passages
from cmlm.data.streams import Portion

pytestmark = pytest.mark.usefixtures("unconverted")


def read_pairs(*args, **kwargs):
    dataset = streams.sentence_pairs(Portion(*args, **kwargs)).batch(1024)
    return [
        (first.decode(), second.decode())
        for batch in dataset.as_numpy_iterator()
        for first, second in zip(*batch, strict=True)
    ]


@pytest.mark.large
@pytest.mark.parametrize("chunk", [1, 2, 7, 4096])
def test_pairs_are_the_neighbours_of_every_document(tmp_path, monkeypatch, chunk):
    # Small chunks put a chunk border at every place where a pair can be.
    set_chunk(monkeypatch, chunk)
    paths, documents = make_corpus(tmp_path)
    found = collections.Counter(read_pairs(paths))
    assert found == collections.Counter(neighbours(documents))
    dataset = streams.sentences(Portion(paths))
    sentences = [sentence.decode() for sentence in dataset.as_numpy_iterator()]
    assert sorted(sentences) == sorted(line for lines in documents for line in lines)


def set_chunk(monkeypatch, n_lines):
    """Lets readers process so many lines at once: they are traced anew."""
    monkeypatch.setattr(line_files, "LINES_PER_CHUNK", n_lines)
    for name in ("_read_sentences", "_read_pairs"):
        read = getattr(streams, name).__wrapped__
        monkeypatch.setattr(streams, name, streams.traced_once(read))


def expected_passages(documents, n_tokens):
    """The passages of each document, filled sentence by sentence."""
    found = []
    for lines in documents:
        begin, last, passages = 0, None, []
        for line in lines:
            number = begin // n_tokens
            if number == last:
                passages[-1] += f" {line}"
            else:
                passages.append(line)
            begin, last = begin + len(line.split()), number
        found.append(passages)
    return found


@pytest.mark.large
@pytest.mark.parametrize("n_tokens, chunk", [(1, 4096), (9, 5), (1000, 5)])
def test_passages_are_consecutive_sentences(tmp_path, monkeypatch, n_tokens, chunk):
    set_chunk(monkeypatch, chunk)
    paths, documents = make_corpus(tmp_path, n_files=3, documents_a_file=6)
    expected = expected_passages(documents, n_tokens)

    def words(lines):
        return tf.strings.split(lines).row_lengths()

    passages = Passages(words, n_tokens)
    dataset = passages.alone(Portion(paths))
    found = [passage.decode() for passage in dataset.as_numpy_iterator()]
    assert sorted(found) == sorted(itertools.chain.from_iterable(expected))
    pairs = passages.pairs(Portion(paths)).as_numpy_iterator()
    decoded = [(first.decode(), second.decode()) for first, second in pairs]
    assert sorted(decoded) == sorted(neighbours(expected))
    starts = [*passages.starts(Portion(paths))]
    assert sum(map(bool, starts)) == len(documents)
    assert len(starts) == len(found)
    # No passage contains text of both parts.
    text = "\n".join(" ".join(lines) for lines in documents)
    parts = []
    for part in ("train", "validation"):
        dataset = passages.alone(Portion(paths, part, 0.2))
        parts.append([passage.decode() for passage in dataset.as_numpy_iterator()])
    assert all(passage in text for part in parts for passage in part)
    assert sum(len(" ".join(part).split()) for part in parts) == len(text.split())
    assert all(parts)


def truncated(packed):
    return packed[: len(packed) // 2]


@pytest.mark.parametrize(
    ("content", "whole"),
    [
        (lambda text: gzip.compress(text), True),
        (lambda text: gzip.compress(text[:-1]), True),
        (lambda text: gzip.compress(text) + gzip.compress(text), True),
        (lambda text: gzip.compress(text.replace(b"\n", b"\r\n")), True),
        (lambda text: gzip.compress(b""), True),
        (lambda text: truncated(gzip.compress(text)), False),
        (lambda text: gzip.compress(text)[:-3], False),
        (lambda text: gzip.compress(text) + truncated(gzip.compress(text)), False),
    ],
)
def test_a_packed_file_that_ends_early_is_an_error(tmp_path, capsys, content, whole):
    text = "".join(f"line {i}\n" for i in range(9000)).encode()
    path = f"{tmp_path}/a.txt.gz"
    with open(path, "wb") as file:
        file.write(content(text))
    if whole:
        with gzip.open(path) as file:
            lines = file.read().split()[1::2]
        found = streams.sentences(Portion([path])).as_numpy_iterator()
        assert [line.split()[1] for line in found] == lines
        return
    with pytest.raises(SystemExit):
        cli.guard(lambda: read_pairs([path]))
    said = capsys.readouterr().err
    assert said == f"error: {path} is not a whole gzip file: it ends inside its data\n"


@pytest.mark.parametrize("helper", ["_stated_length", "_estimated_size"])
def test_a_file_is_asked_for_its_size_once_and_may_change(tmp_path, helper):
    helper = getattr(line_files, helper)

    def text(lines):
        return gzip.compress("".join(f"line {i}\n" for i in range(lines)).encode())

    file = tmp_path / "a.txt.gz"
    file.write_bytes(text(50))
    assert len(read_pairs([str(file)])) == 49
    asked = helper.cache_info()
    file.write_bytes(truncated(text(9000)))
    with pytest.raises(tf.errors.OpError, match="not a whole gzip file"):
        read_pairs([str(file)])
    file.write_bytes(text(90))
    assert len(read_pairs([str(file)])) == 89
    again = helper.cache_info()
    assert again.misses == asked.misses and again.hits > asked.hits


def test_a_byte_order_mark_is_no_text(tmp_path):
    path = write(tmp_path / "a.txt", b"\xef\xbb\xbfOne\nTwo\n")
    assert read_pairs([path]) == [("One", "Two")]


def test_a_long_line_is_cut_before_it_is_carried(tmp_path):
    path = write(tmp_path / "a.txt", "x" * 900_000 + "\nTwo\n")
    ((first, _),) = read_pairs([path])
    assert len(first) == streams.MAX_SENTENCE_BYTES


@pytest.mark.parametrize("chunk", [5, 4096])
def test_train_and_validation_share_no_line_and_miss_few(tmp_path, monkeypatch, chunk):
    set_chunk(monkeypatch, chunk)
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
    assert not read_pairs([path], "validation", 0.0)


def test_held_out_text_depends_on_neither_seed_nor_order_of_files(tmp_path):
    # More files than are open at the same time.
    paths, _ = make_corpus(tmp_path, n_files=12)
    straight = read_pairs(paths, "validation", 0.2)
    other = read_pairs(paths[::-1], "validation", 0.2, seed=5)
    assert straight != other
    assert sorted(straight) == sorted(other)


def test_a_marked_text_holds_out_what_its_plain_text_does(tmp_path):
    # The tab of a plain text is a space of the marked one.
    plain = [line for i in range(90) for line in (f"{i}\tone", f"two {i}", "")]
    marked = [line and line.replace("\t", " ") + f"\tone {line}" for line in plain]

    def held_out(read, lines):
        portion = Portion([write_lines(tmp_path / "a.txt", lines)], "validation", 0.2)
        return [text.decode() for text in read(portion).as_numpy_iterator()]

    want = held_out(streams.sentences, plain)
    got = held_out(streams.marked_sentences, marked)
    assert got == [marked[plain.index(text)] for text in want]
    assert 0 < len(want) < 180


@pytest.mark.parametrize("n_files", [1, 5])
def test_hosts_share_the_data_without_overlap(tmp_path, n_files):
    paths, documents = make_corpus(tmp_path, n_files)
    shares = [
        read_pairs(paths, input_context=tf.distribute.InputContext(2, host, 2), seed=1)
        for host in range(2)
    ]
    assert all(len(share) > 100 for share in shares)
    assert sorted(shares[0] + shares[1]) == sorted(neighbours(documents))


@pytest.mark.parametrize(
    "lengths, expected",
    [
        # By file: the hosts read different ones.
        ((3000, 1000, 1000, 1000), [{0}, {1, 2, 3}]),
        ((1000, 1000, 1000, 1000), [{0, 2}, {1, 3}]),
        # By example: no division by file is even.
        ((6000, 60, 60, 60), [{0, 1, 2, 3}] * 2),
        ((1000, 1000, 1000), [{0, 1, 2}] * 2),
    ],
)
def test_hosts_have_shares_of_nearly_one_size(tmp_path, lengths, expected):
    texts = [
        [f"file {number} line {i:06}" for i in range(length)]
        for number, length in enumerate(lengths)
    ]
    paths = [
        write_lines(tmp_path / f"{number}.txt", lines)
        for number, lines in enumerate(texts)
    ]
    shares = [
        read_pairs(paths, input_context=tf.distribute.InputContext(2, host, 2))
        for host in range(2)
    ]
    assert sorted(shares[0] + shares[1]) == sorted(neighbours(texts))
    assert len(shares[0]) == pytest.approx(len(shares[1]), rel=0.1)
    for share, files in zip(shares, expected, strict=True):
        assert {int(first.split()[1]) for first, _ in share} == files
