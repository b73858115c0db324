"""Mining: texts and vectors on disk, neighbours, retrieval, negatives."""

import functools
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import commands
import faiss
import mortal
import numpy as np
import pytest
from oracles import unit

from cmlm import common
from cmlm.common import choices, files, numbered_tasks
from cmlm.errors import UserError
from cmlm.mining import (
    cells,
    compressed,
    encoded,
    index,
    jobs,
    negatives,
    neighbours,
    pairs,
    storage,
    texts,
    vectors,
)
from cmlm.mining.negatives import NegativeRule
from cmlm.mining.pairs import PairRule
from cmlm.mining.vectors import Reader

ROOT = Path(__file__).resolve().parent.parent
MEMORY = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    # Threads that wait for each other actively are slow beside other processes.
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    yield
    faiss.omp_set_num_threads(threads)


class Encoder(mortal.Encoder):
    """Vectors drawn by the text; remembers what it was asked."""

    def __init__(self, dim=8, fingerprint="a"):
        self.dim, self.info, self.asked = dim, {"fingerprint": fingerprint}, []
        self._grave = None

    def encode(self, sentences, progress):
        self.asked.append(len(sentences))
        return super().encode(sentences, progress)


def gather(lines, directory, memory=MEMORY):
    return texts.gather(lambda: iter(lines), str(directory), "--source", memory)


def stored(rows, directory, shard_rows=100):
    about = {"shape": list(rows.shape), "shard_rows": shard_rows}
    return vectors.fill(
        str(directory),
        about,
        lambda: lambda a, b: rows[a:b].astype(np.float32),
        "storing",
    )


@pytest.fixture(scope="module")
def sides():
    """Two sides of clusters; half of the rows have a partner on the other side."""
    random = np.random.default_rng(8)
    centres = random.normal(size=[40, 24])
    base = centres[random.integers(40, size=2600)] + random.normal(size=[2600, 24])
    noise = 0.3 * random.normal(size=[2600, 24])
    return unit(base[:2300]), unit((base + noise)[1000:])


@pytest.fixture(scope="module")
def on_disk(sides, tmp_path_factory):
    directory = tmp_path_factory.mktemp("sides")
    return [stored(rows, directory / str(n)) for n, rows in enumerate(sides)]


def brute_force(x, y, k):
    """Cosines float64 [n, k] and rows, the nearest first."""
    cosines = x.astype(np.float64) @ y.T.astype(np.float64)
    rows = np.argsort(-cosines, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(cosines, rows, 1), rows


# ---------------------------------------------------------------------- texts


@pytest.mark.parametrize("memory", [MEMORY, 240])
def test_distinct_lines_in_the_order_of_their_first_appearance(tmp_path, memory):
    random = np.random.default_rng(0)
    lines = [f"größe {number}" for number in random.integers(0, 40, 200)]
    found = gather(lines, tmp_path / "a", memory)
    distinct = list(dict.fromkeys(lines))
    assert found.take(range(len(found))) == distinct
    assert [distinct[row] for row in found.rows] == lines and found.lines == 200
    assert sorted(os.listdir(tmp_path / "a")) == [
        *("about.json", "checksums.json", "offsets.npy", "rows.npy", "text.txt")
    ]
    # The same text again is not written again; another one is refused.
    written = os.stat(tmp_path / "a" / "text.txt").st_mtime_ns
    assert gather(lines, tmp_path / "a").take([3]) == distinct[3:4]
    assert os.stat(tmp_path / "a" / "text.txt").st_mtime_ns == written
    for other in (lines[:-1], [*lines[:-1], "new"]):
        with pytest.raises(UserError, match="holds another text than --source"):
            gather(other, tmp_path / "a")


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path):
    for other in (["a", "b"], ["a", "b", "c", "d"], ["a", "b", "d"]):
        versions = iter([["a", "b", "c"], other])
        with pytest.raises(
            UserError, match="changed while the command read it; run it again"
        ):
            texts.gather(lambda v=versions: next(v), str(tmp_path / "x"), "t", MEMORY)
        assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    "about", ["NaN", "[]", "{}", '{"lines": "3", "digest": ""}', '{"lines": 3}']
)
def test_a_damaged_description_of_a_text_is_named(tmp_path, about):
    gather(["a", "b", "c"], tmp_path / "text")
    (tmp_path / "text" / "about.json").write_text(about)
    with pytest.raises(UserError, match="text/about.json"):
        gather(["a", "b", "c"], tmp_path / "text")


def test_an_empty_text_is_named(tmp_path):
    gather(["a", "b", "c"], tmp_path / "text")
    (tmp_path / "text" / "text.txt").write_text("")
    with pytest.raises(UserError, match="text/text.txt is damaged: it differs from"):
        gather(["a", "b", "c"], tmp_path / "text")
    # Directories of version 0.1.0 have no checksums.
    (tmp_path / "text" / "checksums.json").unlink()
    with pytest.raises(UserError, match="text/text.txt is damaged: cannot mmap an em"):
        gather(["a", "b", "c"], tmp_path / "text")


def test_lines_are_sentences(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b" one\ttwo \r\n\n \t \nthree\xff\xe2\x80\xa8x\n")
    assert list(texts.read_lines([str(path)])) == ["one two", "three\ufffd\u2028x"]
    path.write_text("fine\n" + "x" * (files.MAX_LINE_CHARACTERS + 1))
    with pytest.raises(UserError, match="a.txt line 2 is longer than 1,000,000"):
        list(texts.read_lines([str(path)]))
    with pytest.raises(UserError, match="no line with text"):
        gather([], tmp_path / "empty")


# -------------------------------------------------------------------- vectors


def test_only_missing_shards_are_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "SHARD_ROWS", 10)
    lines = gather([f"line {number}" for number in range(25)], tmp_path / "text")
    encoder, directory = Encoder(), tmp_path / "vectors"
    first = vectors.encode(lines, Reader(encoder), str(directory))
    assert encoder.asked == [10, 10, 5] and first.shape == (25, 8)
    want = unit(Encoder().encode(lines.take(range(25)), False))
    np.testing.assert_allclose(first.read(7, 23), want[7:23], rtol=1e-6)
    rows = np.array([24, 3, 3, 11, 0])
    np.testing.assert_allclose(first.take(rows), want[rows], rtol=1e-6)
    os.remove(directory / "00001.npy")
    again = vectors.encode(lines, Reader(encoder), str(directory))
    assert encoder.asked[3:] == [10]
    np.testing.assert_array_equal(again.read(0, 25), first.read(0, 25))


# Beam in this process: everything is pickled, as for other machines.
BEAM = numbered_tasks.Workers("--direct_num_workers=1")


def test_beam_writes_the_same_folder_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "SHARD_ROWS", 10)
    lines = [f"line {number % 30}" for number in range(40)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    made = {}
    for name, workers in (("here", numbered_tasks.HERE), ("beam", BEAM)):
        reader = Reader(Encoder(), Encoder)
        arguments = ([f"{tmp_path}/a.txt"], "--input", reader, MEMORY, workers)
        encoded.write(str(tmp_path / name), *arguments)
        if workers is BEAM:
            shard = tmp_path / name / "vectors" / "00001.npy"
            kept = (shard.with_name("00002.npy")).stat().st_mtime_ns
            shard.unlink()
            with pytest.raises(UserError, match="lacks 1 shard of vectors"):
                encoded.read(str(tmp_path / name), "--source")
            encoded.write(str(tmp_path / name), *arguments)
            assert shard.with_name("00002.npy").stat().st_mtime_ns == kept
        made[name] = {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("*.*")
        }
    assert made["here"] == made["beam"] and len(made["here"]) == 5 + 1 + 2 * 3
    text, stored = encoded.read(str(tmp_path / "beam"), "--source")
    assert text.take(text.rows) == lines
    want = unit(Encoder().encode(text.take(range(30)), False))
    np.testing.assert_allclose(stored.read(0, 30), want, rtol=1e-6)


@pytest.mark.parametrize("kind", choices.INDEXES)
def test_beam_finds_the_same_neighbours(on_disk, tmp_path, kind):
    settings = index.SearchSettings(kind, cells=40, probes=8, memory=MEMORY // 4)
    made = {}
    for name, workers in (("here", numbered_tasks.HERE), ("beam", BEAM)):
        searcher = neighbours.Searcher(
            *on_disk, f"{tmp_path}/{name}", settings, workers
        )
        searcher.find("source", 3)
        blocks = sorted((tmp_path / name / "source-3").glob("*.npy"))
        made[name] = [path.read_bytes() for path in blocks]
    assert made["here"] == made["beam"] and len(made["here"]) > 1


@pytest.mark.large
def test_any_number_of_workers_writes_the_same_and_one_may_die(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
    monkeypatch.setattr(vectors, "SHARD_ROWS", 300)
    lines = [f"line {number}" for number in range(2400)]
    settings = index.SearchSettings("flat", memory=MEMORY // 8)

    def encode(name, text, number, grave=None):
        reader = Reader(mortal.Encoder(), functools.partial(mortal.Encoder, grave))
        workers = numbered_tasks.Workers("", number)
        return vectors.encode(text, reader, f"{tmp_path}/{name}/vectors", workers)

    def search(name, stored, number):
        workers = numbered_tasks.Workers("", number)
        found = f"{tmp_path}/{name}/found"
        neighbours.Searcher(stored, stored, found, settings, workers).find("source", 3)

    text = gather(lines, tmp_path / "text")
    search("one", encode("one", text, 1), 1)
    with commands.forked_workers():
        with pytest.raises(UserError, match="worker process was killed by signal 9"):
            encode("several", text, 2, f"{tmp_path}/grave")
        assert not (tmp_path / "several" / "vectors" / "00002.npy").exists()
        search("several", encode("several", text, 3), 2)
    one, several = (
        {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("*.npy")
        }
        for name in ("one", "several")
    )
    assert one == several and len(one) == 8 + 3


def test_workers_without_beam_name_its_extra(monkeypatch):
    monkeypatch.delattr(common, "beam_tasks", raising=False)
    monkeypatch.delitem(sys.modules, "cmlm.common.beam_tasks", raising=False)
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError, match=r"^apache_beam is not .*'cmlm\[corpus\]'$"):
        numbered_tasks.Workers("", 2).run(lambda: None, [0], "encoding", 1, 1)


def test_a_run_stopped_before_its_first_shard_does_not_bind_the_next(tmp_path):
    lines = gather(["a", "b", "c"], tmp_path / "text")
    directory = str(tmp_path / "vectors")

    class Stopped(Encoder):
        def encode(self, sentences, progress):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vectors.encode(lines, Reader(Stopped()), directory)
    other = Encoder(dim=9, fingerprint="b")
    found = vectors.encode(lines, Reader(other), directory)
    assert found.about["model"]["fingerprint"] == "b"
    expected = unit(other.encode(["a", "b", "c"], progress=False))
    np.testing.assert_allclose(found.read(0, 3), expected, rtol=1e-6)


def test_vectors_of_something_else_are_not_mixed_in(tmp_path):
    lines = gather(["a", "b", "c"], tmp_path / "text")
    directory = tmp_path / "vectors"
    vectors.encode(lines, Reader(Encoder()), str(directory))
    for encoder, said in (
        (Encoder(fingerprint="b"), "model: fingerprint a, now b"),
        (Encoder(dim=9), r"shape \[3, 8\], now \[3, 9\]"),
    ):
        with pytest.raises(UserError, match=f"another run .*{said}.*another directory"):
            vectors.encode(lines, Reader(encoder), str(directory))
    storage.save(str(directory / "00000.npy"), np.zeros([2, 8], np.float32))
    with pytest.raises(UserError, match=r"00000.npy holds float32 \[2, 8\], expected"):
        vectors.encode(lines, Reader(Encoder()), str(directory))
    # A header whose type is "True" is none of the errors that numpy announces.
    header = b"{'descr': True, 'fortran_order': False, 'shape': (3, 8)}\n"
    for content in (b"", b"\x01\x00" + len(header).to_bytes(2, "little") + header):
        (directory / "00000.npy").write_bytes(b"\x93NUMPY" + content)
        storage.seal(str(directory / "00000.npy"))
        with pytest.raises(UserError, match="cannot read .*00000.npy.*; delete .*npy$"):
            vectors.encode(lines, Reader(Encoder()), str(directory))
    about = directory / "about.json"
    about.write_text(about.read_text().replace("{", '{"more": 1, ', 1))
    with pytest.raises(UserError, match="another run .more 1, now None"):
        vectors.encode(lines, Reader(Encoder()), str(directory))


@pytest.mark.parametrize("kind", ["ivf", "pq"])
def test_a_bit_that_changed_in_a_work_directory_is_noticed(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(vectors, "SHARD_ROWS", 16)

    def run():
        text = gather([f"line {n}" for n in range(40)], tmp_path / "text")
        stored = vectors.encode(text, Reader(Encoder()), f"{tmp_path}/vectors")
        settings = index.SearchSettings(kind, cells=4, probes=2, memory=MEMORY)
        found = neighbours.Searcher(stored, stored, f"{tmp_path}/found", settings)
        return [
            b.tobytes() for block in found.find("source", 2).blocks() for b in block[1:]
        ]

    first = run()
    whole = {p: p.read_bytes() for p in sorted(tmp_path.rglob("*.*"))}
    arrays = [path for path in whole if path.suffix != ".json"]
    assert len(arrays) == 3 + 3 + {"ivf": 4 + 1, "pq": 2 + 1}[kind]
    block = tmp_path / "found" / "source-2" / "00000.npy"
    for path in arrays:
        # Without it, the search reads the index.
        if path != block:
            block.unlink()
        damaged = bytearray(whole[path])
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(
            UserError, match="it differs from its checksum; d"
        ) as caught:
            run()
        # The message names the file, and what to delete: then the run goes on.
        message = str(caught.value)
        assert message.startswith(f"{path} is damaged")
        shown = Path(message.rpartition("; delete ")[2])
        assert path.is_relative_to(shown) and shown != tmp_path
        shutil.rmtree(shown) if shown.is_dir() else shown.unlink()
        assert run() == first and path.read_bytes() == whole[path]
    # Directories of an earlier version have no checksums.
    for path in tmp_path.rglob("*checksums.json"):
        path.unlink()
    assert run() == first


def test_the_directory_of_a_damaged_description_is_named(tmp_path):
    def run():
        text = gather(["a", "b", "c"], tmp_path / "text")
        stored = vectors.encode(text, Reader(Encoder()), f"{tmp_path}/vectors")
        search = index.SearchSettings("flat", memory=MEMORY)
        found = neighbours.Searcher(stored, stored, f"{tmp_path}/found", search)
        found.find("source", 1)

    run()
    for name in ("text", "vectors", "found", "found/source-1"):
        about = tmp_path / name / "about.json"
        content = about.read_text()
        about.write_text("{")
        with pytest.raises(UserError, match=f"is not JSON.*; delete {about.parent}$"):
            run()
        about.write_text(content)


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("shape", None, "has no shape"),
        *[("shape", value, "has shape=") for value in ("3", [3], [3, "8"])],
        ("shape", [0, 8], "has shape=.0, 8.; allowed: .3, "),
        ("shard_rows", 0, "has shard_rows=0; allowed: int from 1"),
        ("dtype", "int8", "has dtype='int8'; allowed: float32 or float16"),
        ("model", "a", "has model='a'; allowed: dict"),
    ],
)
def test_a_folder_with_a_wrong_description_is_refused(tmp_path, name, value, said):
    (tmp_path / "a.txt").write_text("a\nb\nc\n")
    arguments = ([f"{tmp_path}/a.txt"], "--input", Reader(Encoder()), MEMORY)
    encoded.write(f"{tmp_path}/folder", *arguments)
    path = tmp_path / "folder" / "vectors" / "about.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(UserError, match=f"about.json {said}"):
        encoded.read(f"{tmp_path}/folder", "--source")


def test_a_folder_of_float16_takes_half_of_the_space(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(500)))
    arguments = ([f"{tmp_path}/a.txt"], "--input", Reader(Encoder()), MEMORY)
    sizes, rows = {}, {}
    for dtype in ("float32", "float16"):
        folder = f"{tmp_path}/{dtype}"
        _, stored = encoded.write(folder, *arguments, dtype=dtype)
        shard = f"{folder}/vectors/00000.npy"
        assert np.load(shard).dtype == stored.dtype == dtype
        sizes[dtype] = os.path.getsize(shard) - 128
        rows[dtype] = encoded.read(folder, "--source")[1].read(0, 500)
        assert rows[dtype].dtype == np.float32
        np.testing.assert_array_equal(
            stored.take(np.array([7, 3])), rows[dtype][[7, 3]]
        )
    assert 2 * sizes["float16"] == sizes["float32"]
    np.testing.assert_allclose(rows["float16"], rows["float32"], 2**-10, 1e-6)
    assert (rows["float16"] != rows["float32"]).any()
    # The text has grown, and the folder stays whole.
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(600)))
    for there, asked in (("float32", "float16"), ("float16", "float32")):
        said = f"vectors in {there}; allowed: --dtype={there}, or another"
        with pytest.raises(UserError, match=said):
            encoded.write(f"{tmp_path}/{there}", *arguments, dtype=asked)
        assert len(encoded.read(f"{tmp_path}/{there}", "--source")[0]) == 500


def test_a_folder_with_vectors_of_another_text_is_refused(tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "other"
    for path, lines in ((folder, "a\nb\nc\n"), (other, "c\nb\na\n")):
        (tmp_path / "a.txt").write_text(lines)
        arguments = ([f"{tmp_path}/a.txt"], "--input", Reader(Encoder()), MEMORY)
        encoded.write(str(path), *arguments)
    # Where the text is another one now, its vectors go with it.
    with pytest.raises(UserError, match=f"^{folder} holds another text than --input"):
        encoded.write(str(folder), *arguments)
    shutil.rmtree(folder / "texts")
    shutil.copytree(other / "texts", folder / "texts")
    with pytest.raises(UserError, match=f"vectors of another text .*delete {folder}$"):
        encoded.read(str(folder), "--source")


class Killed(BaseException):
    """A kill of the process at some place."""


def write_folder(directory, lines, encoder=None, workers=numbered_tasks.HERE):
    source = directory.with_suffix(".txt")
    source.write_text("".join(f"{line}\n" for line in lines))
    encoder = encoder or Encoder()
    reader = Reader(encoder, Encoder)
    encoded.write(str(directory), [str(source)], "--input", reader, MEMORY, workers)
    return encoder.asked


def content(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*.*")
    }


@pytest.mark.parametrize("workers", [numbered_tasks.HERE, BEAM])
def test_a_text_with_new_lines_is_encoded_as_one_at_once(
    tmp_path, monkeypatch, workers
):
    monkeypatch.setattr(vectors, "SHARD_ROWS", 10)
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    lines = [f"line {number % 25}" for number in range(30)]
    write_folder(grown, lines)
    # (new lines, calls of the model): repeated lines; a shard and a half; a full shard.
    for more, asked in (
        (["line 3", "line 24"], []),
        ([f"line {number}" for number in range(20, 40)], [10, 10]),
        (["line 40", "line 0", "line 41"], [2]),
    ):
        lines += more
        encoder = Encoder()
        write_folder(grown, lines, encoder, workers)
        if workers is numbered_tasks.HERE:
            assert encoder.asked == asked
        shutil.rmtree(whole, ignore_errors=True)
        write_folder(whole, lines)
        assert content(grown) == content(whole)
    text, _ = encoded.read(str(grown), "--source")
    assert text.take(text.rows) == lines


@pytest.mark.parametrize(
    "module, name",
    [
        # Where the new text is there, and its vectors are those of the old one.
        (vectors, "_grow"),
        # Where the last shard of the old text is gone.
        (storage, "write_about"),
        # Where the first new shard is there.
        (storage, "save"),
    ],
)
def test_a_text_whose_growth_was_killed_goes_on(tmp_path, monkeypatch, module, name):
    monkeypatch.setattr(vectors, "SHARD_ROWS", 10)
    lines = [f"line {number}" for number in range(45)]
    write_folder(tmp_path / "grown", lines[:15])
    called = getattr(module, name)

    def killed(path, *arguments):
        if name == "save":
            called(path, *arguments)
        if name != "write_about" or "vectors" in path:
            raise Killed

        return called(path, *arguments)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(module, name, killed)
        write_folder(tmp_path / "grown", lines[:35])
    with pytest.raises(UserError, match="cmlm.encode command that wrote it again"):
        encoded.read(str(tmp_path / "grown"), "--source")
    for number in (35, 45):
        copy, whole = (tmp_path / f"{kind}{number}" for kind in ("copy", "whole"))
        shutil.copytree(tmp_path / "grown", copy)
        write_folder(copy, lines[:number])
        write_folder(whole, lines[:number])
        assert content(copy) == content(whole)


def test_a_text_grows_behind_its_last_line_only(tmp_path):
    folder, lines = tmp_path / "folder", ["a", "b", "a", "c"]
    write_folder(folder, lines)
    before = content(folder)
    said = "holds another text than --input now, and lines may only be appended: name"
    for other in (lines[:3], ["b", "a", "c", "d"], ["new", *lines], ["a", "b", "c"]):
        with pytest.raises(UserError, match=said):
            write_folder(folder, other)
    with pytest.raises(UserError, match="another run .model: fingerprint a, now b"):
        write_folder(folder, [*lines, "d"], Encoder(fingerprint="b"))
    assert content(folder) == before
    # Another text without the old one is another text all the same.
    shutil.rmtree(folder / "texts")
    with pytest.raises(UserError, match="holds vectors of another run .texts "):
        write_folder(folder, ["b", "a", "c", "d"])


def test_what_is_no_vector_is_named(tmp_path):
    class Broken(Encoder):
        def encode(self, sentences, progress):
            rows = super().encode(sentences, progress)
            rows[[text == "bad" for text in sentences], 2] = self.value
            return rows[:, : self.width]

    lines = gather(["good", "bad"], tmp_path / "text")
    for value, width, said in (
        (np.nan, 8, "vector of 'bad' is not finite"),
        (np.inf, 8, "vector of 'bad' is not finite"),
        (1e30, 8, "vector of 'bad' is longer than 1.8e19"),
        (1.0, 5, r"^the model: .* shape \[2, 5\]; allowed: \[2, 8\]"),
    ):
        Broken.value, Broken.width = value, width
        with pytest.raises(UserError, match=said):
            vectors.encode(lines, Reader(Broken()), str(tmp_path / f"{value}"))
        assert not (tmp_path / f"{value}" / "00000.npy").exists()


# ----------------------------------------------------------------- neighbours


@pytest.mark.parametrize("kind", choices.INDEXES)
def test_with_all_cells_every_index_is_exact(
    sides, on_disk, kind, tmp_path, monkeypatch
):
    # Little memory, so that queries come in blocks and the pool in parts.
    monkeypatch.setattr(index, "ROWS_AT_ONCE", 200)
    memory = 8 * MEMORY if kind == "pq" else MEMORY // 4
    # The memory holds a part of a large cell.
    cells = 2 if kind == "ivf" else 12
    settings = index.SearchSettings(kind, cells, probes=12, memory=memory)
    # As many neighbours as `pq` needs to look at every row of the pool anew.
    k = len(sides[1]) // compressed._CANDIDATES if kind == "pq" else 5
    searcher = neighbours.Searcher(*on_disk, str(tmp_path / "n"), settings)
    found = searcher.find("source", k)
    blocks = list(found.blocks())
    assert len(blocks) > 1 and blocks[1][0] == len(blocks[0][1])
    got, rows = (np.concatenate([block[n] for block in blocks]) for n in (1, 2))
    cosines, _ = brute_force(*sides, k)
    np.testing.assert_allclose(got, cosines, atol=1e-6)
    # Of cosines that are equal but for rounding any order will do.
    own = np.einsum("nd,nkd->nk", sides[0], sides[1][rows])
    np.testing.assert_allclose(own, cosines, atol=1e-6)
    assert all(len(set(row)) == k for row in rows.tolist())
    means, missing = found.means()
    np.testing.assert_allclose(means, cosines.mean(axis=1), atol=1e-6)
    assert not missing.any()


@pytest.mark.parametrize("kind", ["ivf", "pq"])
def test_with_few_cells_partners_are_still_found(sides, on_disk, kind, tmp_path):
    settings = index.SearchSettings(kind, cells=60, probes=6, memory=MEMORY)
    found = neighbours.Searcher(*on_disk, str(tmp_path), settings).find("target", 2)
    _, rows = brute_force(*sides[::-1], 2)
    got = np.concatenate([block[2] for block in found.blocks()])
    partners = np.arange(1300)  # of the first rows of the second side
    assert np.mean(got[:1300, 0] == partners + 1000) > 0.97
    assert np.mean(rows[:1300, 0] == partners + 1000) > 0.97
    # Nothing else is lost than what lies in other cells: the same run, the same rows.
    again = neighbours.Searcher(*on_disk, str(tmp_path / "b"), settings)
    repeated = np.concatenate([block[2] for block in again.find("target", 2).blocks()])
    np.testing.assert_array_equal(got, repeated)


def test_more_probes_than_trained_cells_search_all_of_them(on_disk, tmp_path):
    # So little memory that the sample of the training has fewer rows than cells.
    settings = index.SearchSettings("ivf", cells=8, probes=8, memory=1)
    trained = cells.Cells(on_disk, str(tmp_path), settings)
    assert trained.probes == len(trained.centres) == 7
    nearest = trained.nearest(on_disk[0], str(tmp_path / "source"))
    assert nearest.shape == (2300, 7) and nearest.min() == 0


def test_missing_neighbours_are_left_out(tmp_path):
    random = np.random.default_rng(1)
    x, y = unit(random.normal(size=[30, 6])), unit(random.normal(size=[30, 6]))
    on_disk = [stored(x, tmp_path / "x"), stored(y, tmp_path / "y")]
    settings = index.SearchSettings("ivf", cells=15, probes=1, memory=MEMORY)
    searcher = neighbours.Searcher(*on_disk, str(tmp_path / "n"), settings)
    forward, backward = searcher.find("source", 4), searcher.find("target", 4)
    _, cosines, rows = next(forward.blocks())
    missing = rows < 0
    assert missing.any() and (cosines[missing] == -np.inf).all()
    means = forward.means()
    np.testing.assert_allclose(means.missing[: len(rows)], missing.mean(axis=1))
    # A missing neighbour counts as near as the other sentence of the pair.
    filled = np.where(missing, 0.3, cosines).mean(axis=1)
    own = means.beside(np.arange(len(rows)), np.float32(0.3))
    np.testing.assert_allclose(own, filled, atol=1e-6)
    rule = PairRule("ratio", "forward", one_to_one=False)
    mined = pairs.mine({"source": forward, "target": backward}, rule)
    assert mined["target"].min() >= 0 and np.isfinite(mined["score"]).all()
    assert len(mined) == (~missing).any(axis=1).sum()


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory):
    """50 sentences, whose partners are the first of 5,000."""
    random = np.random.default_rng(1)
    topics = random.normal(size=[40, 24])
    base = 0.8 * topics[random.integers(40, size=5000)] + 0.7
    base += random.normal(size=base.shape)
    few, many = (
        unit(rows + 0.5 * random.normal(size=rows.shape)) for rows in (base[:50], base)
    )
    directory = tmp_path_factory.mktemp("few_and_many")
    return stored(few, directory / "few", 5000), stored(many, directory / "many", 5000)


@pytest.mark.parametrize("kind", ["ivf", "pq"])
@pytest.mark.parametrize("cells, right_first", [(0, 35), (600, 20)])
def test_few_sentences_find_their_partners_among_many(
    few_and_many, tmp_path, kind, cells, right_first
):
    def mine(kind, cells):
        settings = index.SearchSettings(kind, cells, memory=8 * MEMORY)
        directory = str(tmp_path / kind)
        searcher = neighbours.Searcher(*few_and_many, directory, settings)
        found = {side: searcher.find(side, 4) for side in ("source", "target")}
        return pairs.mine(found, PairRule("ratio", "max", 1.04))

    exact, mined = mine("flat", 0), mine(kind, cells)
    for each in (exact, mined):
        is_right = each["source"] == each["target"]
        assert is_right[:right_first].all()
    if kind == "ivf" and not cells:
        np.testing.assert_array_equal(mined["source"], exact["source"])
        np.testing.assert_array_equal(mined["target"], exact["target"])
        np.testing.assert_allclose(mined["score"], exact["score"], atol=1e-6)


def test_pairs_below_the_threshold_are_not_held(small, monkeypatch):
    """Of many proposed pairs, few may reach the threshold."""
    *_, found = small
    held = []
    concatenate = np.concatenate
    monkeypatch.setattr(
        pairs.np, "concatenate", lambda a: held.extend(map(len, a)) or concatenate(a)
    )
    assert len(pairs.mine(found, PairRule("ratio", "max", threshold=9))) == 0
    assert held and not any(held)


def test_a_search_goes_on_where_it_was_stopped(on_disk, tmp_path, monkeypatch):
    settings = index.SearchSettings("flat", memory=MEMORY // 4)
    first = neighbours.Searcher(*on_disk, str(tmp_path), settings).find("source", 3)
    want = np.concatenate([block[2] for block in first.blocks()])
    os.remove(tmp_path / "source-3" / "00001.npy")
    asked = []
    search = index.Flat.search

    def remember(self, queries, start, stop, k):
        asked.append(start)
        return search(self, queries, start, stop, k)

    monkeypatch.setattr(index.Flat, "search", remember)
    # Another share of the memory does not change what is there.
    settings.memory *= 4
    again = neighbours.Searcher(*on_disk, str(tmp_path), settings).find("source", 3)
    assert len(asked) == 1 and asked[0] > 0
    got = np.concatenate([block[2] for block in again.blocks()])
    np.testing.assert_array_equal(got, want)
    (tmp_path / "source-3" / "about.json").write_text('{"block_rows": 0}')
    with pytest.raises(UserError, match="about.json has block_rows=0; allowed: int fr"):
        neighbours.Searcher(*on_disk, str(tmp_path), settings).find("source", 3)
    # Another index starts anew.
    settings = index.SearchSettings("ivf", cells=9, memory=MEMORY)
    neighbours.Searcher(*on_disk, str(tmp_path), settings)
    assert not (tmp_path / "source-3").exists()


def test_the_index_follows_size_and_memory():
    gigabyte = 1 << 30
    for rows, dim, memory, kind in (
        ((100_000, 100_000), 768, gigabyte, "flat"),
        ((2000, 10_000_000), 768, gigabyte, "flat"),
        ((20_000, 10_000_000), 32, gigabyte, "ivf"),
        ((1_000_000, 1_000_000), 256, 3 * gigabyte, "ivf"),
        ((1_000_000, 100_000_000), 256, 3 * gigabyte, "pq"),
    ):
        assert index.choose(rows, dim, memory) == kind


def test_what_cannot_be_searched_is_told(on_disk, tmp_path):
    def find(k=4, **settings):
        settings = index.SearchSettings(**{"memory": MEMORY, **settings})
        searcher = neighbours.Searcher(*on_disk, str(tmp_path / "n"), settings)
        return searcher.find("source", k)

    with pytest.raises(UserError, match="is 1601; allowed: at most 1600, .* target"):
        find(k=1601)
    with pytest.raises(UserError, match="--cells is 4000; allowed: up to 3900"):
        find(kind="ivf", cells=4000)
    with pytest.raises(UserError, match="1,600 sentences, 0.0 GB; allowed: at least "):
        find(kind="pq", memory=9000)
    few = [stored(np.eye(15), tmp_path / name) for name in "ab"]
    settings = index.SearchSettings("pq", memory=MEMORY)
    with pytest.raises(UserError, match="the pool has 15 sentences and pq needs 16"):
        neighbours.Searcher(*few, str(tmp_path / "m"), settings).find("source", 1)


def test_a_full_disk_is_an_error_of_the_system(tmp_path):
    # More than any disk has: no sparse file that fails when it is written to.
    with pytest.raises(OSError):
        storage.new_map(str(tmp_path / "x.npy"), "<i8", (1 << 45, 100))
    with pytest.raises(OSError, match="No space left"):
        with open("/dev/full", "wb") as full:
            full.write(b"x")
            full.flush()


# ---------------------------------------------------------------------- pairs


def brute_force_pairs(x, y, k, margin, retrieval, threshold, one_to_one):
    """Mining by its definition, with loops: [(score, source, target)]."""
    near_x, near_y = brute_force(x, y, k), brute_force(y, x, k)
    best = {"forward": [], "backward": []}
    for direction, (own, other) in (
        ("forward", (near_x, near_y)),
        ("backward", (near_y, near_x)),
    ):
        for i, (cosines, rows) in enumerate(zip(*own)):
            scored = []
            for cosine, j in zip(cosines, rows):
                usual = (own[0][i].mean() + other[0][j].mean()) / 2
                score = {
                    "ratio": cosine / usual,
                    "distance": cosine - usual,
                    "absolute": cosine,
                }[margin]
                scored.append((score, j))
            score, j = max(scored, key=lambda pair: pair[0])
            pair = (i, j) if direction == "forward" else (j, i)
            best[direction].append((score, *map(int, pair)))
    if retrieval == "intersection":
        both = {pair[1:] for pair in best["backward"]}
        proposed = [pair for pair in best["forward"] if pair[1:] in both]
    elif retrieval == "max":
        known = {pair[1:] for pair in best["forward"]}
        proposed = best["forward"] + [
            pair for pair in best["backward"] if pair[1:] not in known
        ]
    else:
        proposed = best[retrieval]
    proposed = sorted(pair for pair in proposed if pair[0] >= threshold)[::-1]
    chosen, sources, targets = [], set(), set()
    for score, source, target in proposed:
        if not one_to_one or (source not in sources and target not in targets):
            chosen.append((score, source, target))
            sources.add(source)
            targets.add(target)
    return chosen


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two small sides with their neighbours, by the exact index."""
    random = np.random.default_rng(2)
    base = random.normal(size=[120, 10]) + 1
    x, y = base[:90], base[30:] + 0.4 * random.normal(size=[90, 10])
    x, y = unit(x).astype(np.float32), unit(np.concatenate([y, y[:20] * 2 + 0.5]))
    y = y.astype(np.float32)
    directory = tmp_path_factory.mktemp("small")
    on_disk = [stored(x, directory / "x"), stored(y, directory / "y")]
    settings = index.SearchSettings("flat", memory=MEMORY)
    searcher = neighbours.Searcher(*on_disk, str(directory / "n"), settings)
    return x, y, {side: searcher.find(side, 4) for side in ("source", "target")}


@pytest.mark.parametrize("one_to_one", [True, False])
@pytest.mark.parametrize("retrieval", choices.RETRIEVALS)
@pytest.mark.parametrize("margin", choices.MARGINS)
def test_pairs_are_those_of_brute_force(small, margin, retrieval, one_to_one):
    x, y, found = small
    for threshold in (
        -np.inf,
        {"ratio": 1.06, "distance": 0.05, "absolute": 0.9}[margin],
    ):
        rule = PairRule(margin, retrieval, threshold, one_to_one)
        got = pairs.mine({side: found[side] for side in rule.needed}, rule)
        want = brute_force_pairs(x, y, 4, margin, retrieval, threshold, one_to_one)
        assert 10 < len(want) == len(got)
        np.testing.assert_allclose(got["score"], [pair[0] for pair in want], atol=1e-6)
        ours = set(zip(got["source"].tolist(), got["target"].tolist(), strict=True))
        assert ours == {pair[1:] for pair in want}
        cosines = np.einsum("nd,nd->n", x[got["source"]], y[got["target"]])
        np.testing.assert_allclose(got["cosine"], cosines, atol=1e-6)
    assert len(brute_force_pairs(x, y, 4, margin, retrieval, -9, one_to_one)) > len(
        want
    )


@pytest.mark.parametrize("mistake", ["another model", "too many neighbours"])
def test_a_mistake_in_a_side_is_found_before_any_encoding(tmp_path, mistake):
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n{name}{name}\n")
    k, said = (
        3,
        "--neighbours is 3; allowed: at most 2, the distinct sentences of the target",
    )
    target = [f"{tmp_path}/b"]
    if mistake == "another model":
        other, k, said = Encoder(fingerprint="b"), 1, "holds vectors of .*--model"
        encoded.write(f"{tmp_path}/folder", target, "--target", Reader(other), MEMORY)
        target = f"{tmp_path}/folder"
    encoder, settings = Encoder(), index.SearchSettings("flat", memory=MEMORY)
    job = jobs.Job(Reader(encoder), f"{tmp_path}/out.tsv", f"{tmp_path}/work", settings)
    with pytest.raises(UserError, match=said):
        jobs.mine_pairs(job, [f"{tmp_path}/a"], target, k, PairRule("ratio", "max"))
    assert encoder.asked == []


@pytest.mark.parametrize("job_of", ["pairs", "negatives"])
def test_too_many_cells_are_refused_before_anything_is_encoded(tmp_path, job_of):
    (tmp_path / "bitext.tsv").write_text("a\tA\nb\tB\n")
    for name in "ab":
        (tmp_path / name).write_text(f"{name}\n{name}{name}\n")
    encoder = Encoder()
    search = index.SearchSettings("ivf", cells=5, memory=MEMORY)
    job = jobs.Job(Reader(encoder), f"{tmp_path}/out.tsv", f"{tmp_path}/work", search)
    with pytest.raises(UserError, match="--cells is 5; allowed: up to 4"):
        if job_of == "pairs":
            sides = [f"{tmp_path}/a"], [f"{tmp_path}/b"]
            jobs.mine_pairs(job, *sides, 1, PairRule("ratio", "max"))
        else:
            given = job, [f"{tmp_path}/bitext.tsv"], 2, None
            jobs.mine_negatives(*given, NegativeRule(1))
    assert encoder.asked == []


@pytest.mark.parametrize(
    "retrieval, said",
    [
        ("intersection", "no pair is found in both directions; allowed: forward, bac"),
        ("max", "no sentence has a neighbour in the cells .*; allowed: a higher --pro"),
    ],
)
def test_languages_in_cells_of_their_own_have_no_pairs(tmp_path, retrieval, said):
    class Apart(Encoder):
        def encode(self, sentences, progress):
            found = super().encode(sentences, progress)
            signs = [1 if line.startswith("a") else -1 for line in sentences]
            return found + 100 * np.array(signs, np.float32)[:, np.newaxis]

    for name in "ab":
        lines = [f"{name} {number}\n" for number in range(50)]
        (tmp_path / name).write_text("".join(lines))
    search = index.SearchSettings("ivf", cells=2, probes=1, memory=MEMORY)
    job = jobs.Job(Reader(Apart()), f"{tmp_path}/out.tsv", f"{tmp_path}/work", search)
    sides = [f"{tmp_path}/a"], [f"{tmp_path}/b"]
    with pytest.raises(UserError, match=said):
        jobs.mine_pairs(job, *sides, 2, PairRule("ratio", retrieval))


def test_a_copy_of_a_sentence_takes_no_place_of_its_translation(tmp_path, capsys):
    class Near(Encoder):
        """The vector of a line's number, with a little of the line itself."""

        def encode(self, sentences, progress):
            numbers = super().encode([line.split()[-1] for line in sentences], False)
            return numbers + 0.15 * super().encode(sentences, False)

    source = ["name 7", "größe 8", *(f"a {number}" for number in range(20))]
    target = ["name 7", "größe 8", *(f"b {number}" for number in range(20))]
    for name, lines in (("a", source), ("b", target)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    search = index.SearchSettings("flat", memory=MEMORY)
    reader = Reader(Near())
    job = jobs.Job(reader, f"{tmp_path}/out.tsv", f"{tmp_path}/work", search)
    sides = [f"{tmp_path}/a"], [f"{tmp_path}/b"]
    for retrieval in choices.RETRIEVALS:
        jobs.mine_pairs(job, *sides, 4, PairRule("ratio", retrieval, 1.04, False))
        assert "2 pairs of a sentence and its copy" in capsys.readouterr().err
        rows = (tmp_path / "out.tsv").read_text().splitlines()
        pairs_of = {tuple(line.split("\t")) for line in rows}
        assert not any(a == b for a, b in pairs_of)
        assert {(f"a {n}", f"b {n}") for n in range(20) if n not in (7, 8)} <= pairs_of
        if retrieval in ("forward", "max"):
            assert {("name 7", "b 7"), ("größe 8", "b 8")} <= pairs_of
    job = jobs.Job(reader, f"{tmp_path}/out.tsv", f"{tmp_path}/other", search)
    for name, lines in (("a", source[:2]), ("b", target[1::-1])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(UserError, match="no pair has two different sentences; allowed"):
        jobs.mine_pairs(job, *sides, 1, PairRule("absolute", "forward"))


def test_the_highest_score_is_named_if_no_pair_reaches_the_threshold(tmp_path):
    for name in "ab":
        lines = [f"{name} {number}\n" for number in range(5)]
        (tmp_path / name).write_text("".join(lines))
    search = index.SearchSettings("flat", memory=MEMORY)
    job = jobs.Job(Reader(Encoder()), f"{tmp_path}/out.tsv", f"{tmp_path}/work", search)

    def mine(threshold):
        rule = PairRule("distance", "max", threshold)
        return jobs.mine_pairs(job, [f"{tmp_path}/a"], [f"{tmp_path}/b"], 2, rule)

    with pytest.raises(UserError, match="--threshold is 9; .*highest score") as error:
        mine(9.0)
    mine(float(str(error.value).split("at most ")[1].split(",")[0]))
    assert len((tmp_path / "out.tsv").read_text().splitlines()) == 1


# ------------------------------------------------------------------ negatives


def test_negatives_are_near_and_wrong(tmp_path):
    words = "red green blue pink grey teal".split()
    bitext = [(a, f"{b}!") for a, b in zip(words, words)] + [("red", "rouge!")]
    pool_lines = [f"{word}!" for word in words] + ["red", "rouge!", "noir!"]
    source = gather([pair[0] for pair in bitext], tmp_path / "source")
    target = gather([pair[1] for pair in bitext], tmp_path / "target")
    pool = gather(pool_lines, tmp_path / "pool")
    encoder = Encoder()
    sides = [
        vectors.encode(part, Reader(encoder), str(tmp_path / name))
        for part, name in ((source, "source-v"), (pool, "pool-v"))
    ]
    settings = index.SearchSettings("flat", memory=MEMORY)
    searcher = neighbours.Searcher(*sides, str(tmp_path / "n"), settings)
    k = negatives.neighbours_for(NegativeRule(2, 1), len(pool), False)
    found = searcher.find("source", k)
    cosines, rows = brute_force(sides[0].read(0, 6), sides[1].read(0, 9), 9)
    for skip, limit in itertools.product((0, 1), (1.0, 0.2)):
        rule = NegativeRule(2, skip, limit)
        given = (source, target, pool, found, sides, rule)
        got = negatives.choose(*given, str(tmp_path))
        for number, word in enumerate(words):
            known = {word, f"{word}!"} | ({"rouge!"} if word == "red" else set())
            want = [
                pool_lines[row]
                for row, cosine in zip(rows[number], cosines[number])
                if pool_lines[row] not in known and cosine <= limit
            ][skip : skip + 2]
            if len(want) < 2:
                assert (got[number] == -1).all()
            else:
                assert pool.take(got[number]) == want
    with pytest.raises(UserError, match="pool has 9 distinct .* at least 10"):
        negatives.neighbours_for(NegativeRule(8, 1), 9, True)
    # Of other texts, all may be wrong.
    assert negatives.neighbours_for(NegativeRule(8, 1), 9, False) == 9


def test_one_negative_is_named_in_the_singular(tmp_path):
    (tmp_path / "bitext.tsv").write_text("a\tA\nb\tB\n")
    search = index.SearchSettings("flat", memory=MEMORY)
    job = jobs.Job(Reader(Encoder()), f"{tmp_path}/out.tsv", f"{tmp_path}/work", search)
    arguments = (job, [f"{tmp_path}/bitext.tsv"], 2, None)
    (said,) = jobs.mine_negatives(*arguments, NegativeRule(1))
    assert said.endswith(
        "2 pairs with 1 hard negative each; left out: 0 pairs with fewer"
    )
    said = "no pair has 1 hard negative; allowed: a higher --max_cosine than -1, or a"
    with pytest.raises(UserError, match=said):
        jobs.mine_negatives(*arguments, NegativeRule(1, max_cosine=-1.0))


@pytest.mark.parametrize("kind", ["too near", "translations", "equal"])
def test_negatives_behind_the_first_neighbours_are_found(
    tmp_path, kind, monkeypatch, capsys
):
    """The nearest 60 texts of the pool are none that a source may get."""
    monkeypatch.setattr(negatives, "_POOL_AT_ONCE", 32)
    monkeypatch.setattr(negatives, "_SOURCES_AT_ONCE", 1)
    angles = np.linspace(0, np.pi / 2, 100)
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if kind == "equal":
        # The product of this vector with itself is above 1 in float32.
        rows = np.float32([[1.0000002, 0]] * 60 + [[0.5, 0]] * 40)
    limit = {"too near": 0.5 * (rows[59, 0] + rows[60, 0])}.get(kind, 1.0)
    pairs_of = range(60) if kind == "translations" else range(1)
    bitext = [(f"source {n}", f"text {row}") for n in range(3) for row in pairs_of]
    pool = gather([f"text {row}" for row in range(100)], tmp_path / "pool")
    source = gather([a for a, _ in bitext], tmp_path / "source")
    target = gather([b for _, b in bitext], tmp_path / "target")
    sides = [
        stored(rows[[0, 0, 0]], tmp_path / "source-v"),
        stored(rows, tmp_path / "pool-v"),
    ]
    settings = index.SearchSettings("flat", memory=MEMORY)
    searcher = neighbours.Searcher(*sides, str(tmp_path / "n"), settings)
    skip = 2 if kind == "translations" else 1
    rule = NegativeRule(2, skip, limit)
    k = negatives.neighbours_for(NegativeRule(2, 1), len(pool), True)
    found = searcher.find("source", k)
    arguments = (source, target, pool, found, sides, rule, str(tmp_path))
    first = (1 if kind == "equal" else 60) + skip
    assert negatives.choose(*arguments).tolist() == [[first, first + 1]] * 3
    if kind != "equal":
        # With little time, the first ones only.
        monkeypatch.setattr(negatives, "MOST_COSINES", 299)
        got = negatives.choose(*arguments)
        assert got.tolist() == [[first, first + 1]] * 2 + [[-1, -1]]
        heard = capsys.readouterr().err
        assert "1 source with too few negatives among 19 neighbours; to search" in heard
