"""Files are read as they are or refused; vectors are kept; neighbours are exact."""

import bz2
import gzip
import importlib
import json
import os
import resource
import sys
import tempfile

import numpy as np
import pytest
import testsets
from encoders import Table, WordCounts

import cmlm
from cmlm.common import arrays, files, packing, scratch
from cmlm.errors import UserError
from cmlm.evaluation import catalogue, listing, parsing, run, search, store
from cmlm.evaluation.data_dir import EITHER, DataDir, MissingData
from cmlm.finetuning import reviews
from cmlm.mining import index

# --------------------------------------------------------------------- store


def test_each_sentence_is_encoded_once_the_longest_first():
    model = WordCounts()
    with store.Store(model) as vectors:
        vectors.add(["a b", "c", "a b"])
        assert model.asked == ["a b", "c"]
        found = vectors(["c", "a b", "new", "c"])
        assert model.asked == ["a b", "c", "new"] and len(vectors) == 3
        assert vectors([]).shape == (0, 12)
    expected = WordCounts().encode(["c", "a b", "new", "c"])
    np.testing.assert_array_equal(found, expected)


def test_vectors_are_kept_and_a_killed_run_does_no_harm(tmp_path):
    first, second, directory = WordCounts(), WordCounts(), str(tmp_path / "cache")
    with store.Store(first, directory) as vectors:
        vectors.add(["a", "b c", "d"])
        with pytest.raises(UserError, match="in use"):
            store.Store(second, directory)
    # Killed within the third row: neither its key nor the checksums were written.
    os.truncate(tmp_path / "cache" / "keys", 2 * 16 + 5)
    (tmp_path / "cache" / "checksums.json").unlink()
    with store.Store(second, directory) as vectors:
        assert len(vectors) == 2
        texts = ["d", "a", "b c", "e"]
        np.testing.assert_array_equal(vectors(texts), WordCounts().encode(texts))
    assert len(second.asked) == 2 and "e" in second.asked
    # A killed run leaves no checksums.
    (tmp_path / "cache" / "checksums.json").unlink()
    for content in ("{}", "5", '{"dim": Infinity}', '{"dim": 0}'):
        (tmp_path / "cache" / "shape.json").write_text(content)
        with pytest.raises(UserError, match=f"shape.json .*; delete {directory}$"):
            store.Store(second, directory)


@pytest.mark.parametrize("name", ["keys", "vectors", "shape.json"])
def test_a_byte_of_the_vectors_that_changed_is_noticed(tmp_path, name):
    with store.Store(WordCounts(), str(tmp_path)) as vectors:
        vectors.add(["a", "b c"])
    # A killed run adds rows without checksums.
    with pytest.raises(ZeroDivisionError):
        with store.Store(WordCounts(), str(tmp_path)) as vectors:
            vectors.add(["d"])
            raise ZeroDivisionError
    with store.Store(WordCounts(), str(tmp_path)) as vectors:
        assert len(vectors) == 3
    sums = tmp_path / "checksums.json"
    assert json.loads(sums.read_text())["keys"][0] == 3 * 16, "its rows too have sums"
    # A run that finds every vector sums nothing again.
    written = sums.stat().st_ino
    with store.Store(WordCounts(), str(tmp_path)) as vectors:
        vectors.add(["a", "d"])
    assert sums.stat().st_ino == written
    content = bytearray((tmp_path / name).read_bytes())
    content[10] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"damaged.*; delete {tmp_path}$"):
        store.Store(WordCounts(), str(tmp_path))


@pytest.mark.parametrize("name", ["keys", "vectors"])
def test_a_file_of_the_vectors_that_is_a_link_is_refused(tmp_path, name):
    with store.Store(WordCounts(), str(tmp_path / "cache")) as vectors:
        vectors.add(["a", "b c"])
    (tmp_path / "cache/checksums.json").unlink()
    (tmp_path / "mine").write_text("a text of no whole row")
    (tmp_path / "cache" / name).unlink()
    (tmp_path / "cache" / name).symlink_to(tmp_path / "mine")
    with pytest.raises(
        UserError, match=f"/{name} is a symbolic link; .*; delete {tmp_path}"
    ):
        store.Store(WordCounts(), str(tmp_path / "cache"))
    assert (tmp_path / "mine").read_text() == "a text of no whole row"


@pytest.mark.parametrize(("largest", "name"), [(5, "shape.json"), (20, "vectors")])
def test_a_full_disk_is_named_and_does_no_harm(tmp_path, largest, name):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            with store.Store(WordCounts(), str(tmp_path)) as vectors:
                vectors.add(["a", "b c"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(tmp_path / name)
    with store.Store(WordCounts(), str(tmp_path)) as vectors:
        np.testing.assert_array_equal(
            vectors(["a", "b c"]), WordCounts().encode(["a", "b c"])
        )


@pytest.mark.parametrize(
    ("vectors_of", "said"),
    [
        (lambda texts: np.full([len(texts), 2], np.nan), "'bad (one|two)' is not fin"),
        (lambda texts: np.full([len(texts), 2], 1e30), "'bad (one|two)' is longer"),
        (lambda texts: np.zeros([1, 2]), r"shape \[1, 2\]; allowed: \[2, dim\]"),
        (lambda texts: np.zeros([2]), r"shape \[2\]; allowed: \[2, dim\]"),
    ],
)
def test_vectors_that_are_none_are_refused(vectors_of, said):
    class Broken:
        name = "my_run"
        encode = staticmethod(vectors_of)

    said = f"^my_run: .*{said}"

    with store.Store(Broken()) as vectors, pytest.raises(UserError, match=said):
        vectors.add(["bad one", "bad two"])


def test_vectors_on_disk_are_those_of_the_store_at_length_1():
    texts = ["a b", "c", "a b", "d e f"]
    with store.Store(
        WordCounts(), change=lambda x, language: x + len(language)
    ) as kept:
        unit = arrays.unit_length(kept(texts, "de"))
        lazy = kept.on_disk(texts, "de")
        assert lazy.shape == unit.shape and len(lazy) == 4
        np.testing.assert_allclose(lazy.read(1, 9), unit[1:], rtol=1e-6)
        np.testing.assert_allclose(lazy.take(np.array([3, 0])), unit[[3, 0]], rtol=1e-6)
        raw = WordCounts().encode(texts)
        np.testing.assert_array_equal(kept(texts), raw)
        np.testing.assert_array_equal(kept(texts, "de"), raw + 2)


def test_an_encoder_for_each_language():
    english, german = WordCounts(), WordCounts(dim=12)
    with store.LanguageStores({"en": english, "de": german}, False) as vectors:
        vectors.add(["a"])
        np.testing.assert_array_equal(vectors(["b"], "de"), WordCounts().encode(["b"]))
        assert (english.asked, german.asked, len(vectors)) == ([], ["b"], 1)
        with pytest.raises(UserError, match="language 'fr'; allowed: .* en, de; L"):
            vectors(["c"], "fr")


def test_a_store_that_cannot_open_closes_those_before_it(monkeypatch):
    opened = []

    class Second(store.Store):
        def __init__(self, *args, **kwargs):
            if opened:
                raise UserError("the disk is full")
            super().__init__(*args, **kwargs)
            opened.append(self)

        def __exit__(self, *error):
            super().__exit__(*error)
            opened.append("closed")

    monkeypatch.setattr(store, "Store", Second)
    with pytest.raises(UserError, match="the disk is full"):
        store.LanguageStores({"en": WordCounts(), "de": WordCounts()}, False)
    assert opened[1:] == ["closed"]


# -------------------------------------------------------------------- search


def test_search_through_an_index_on_disk_is_that_in_memory(monkeypatch):
    random = np.random.default_rng(0)
    names = [f"{side} {row}" for side in "xy" for row in range(70)]
    table = dict(zip(names, random.normal(size=[140, 8]), strict=True))
    with store.Store(Table(table)) as kept:
        sides = [[text for text in table if text[0] == side] for side in "xy"]
        x, y = (arrays.unit_length(kept(texts)) for texts in sides)
        # So few vectors have fewer cells than `ivf` visits for each query.
        for kind in ("flat", "ivf"):
            monkeypatch.setattr(index, "choose", lambda *_, kind=kind: kind)
            found = search.nearest_on_disk(*map(kept.on_disk, sides))
            assert found[2] == (kind == "flat")
            np.testing.assert_array_equal(found[0], (x @ y.T).argmax(axis=1))
            np.testing.assert_array_equal(found[1], (y @ x.T).argmax(axis=1))


def test_a_running_search_keeps_its_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with store.Store(Table({"a": [1, 0], "b": [0, 1]})) as kept:
        side = kept.on_disk(["a", "b"])
        with search._searcher(side, side, "flat") as searcher:
            found = searcher.find("source", 1)
            # The next scratch directory removes the directories of killed processes.
            with scratch.directory():
                assert search._rows(found).tolist() == [[0], [1]]
    assert not list(tmp_path.iterdir())


def test_faiss_is_needed_for_indexes_on_disk_only(monkeypatch):
    # The extra `evaluate` does not install FAISS.
    rooms = ("cmlm.evaluation", "cmlm.mining")
    for room in rooms:
        monkeypatch.setattr(cmlm, room.split(".")[1], sys.modules[room])
    for name in list(sys.modules):
        if name.startswith(rooms):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "faiss", None)
    importlib.import_module("cmlm.evaluation.run")
    in_memory = importlib.import_module("cmlm.mining.exact")
    found = in_memory.nearest(np.eye(4), np.eye(4)[::-1], 1)
    np.testing.assert_array_equal(found[1], [[3], [2], [1], [0]])
    on_disk = importlib.import_module("cmlm.evaluation.search")
    with pytest.raises(UserError, match=r"faiss is not installed.*cmlm\[mine\]"):
        on_disk.nearest_of_pool(np.eye(4), np.eye(4), 1)


def test_margin_by_hand():
    # Cosines of x (rows) and y (columns), orthogonal y: x = cosines, not unit length.
    x = np.array([[0.8, 0.6, 0.0], [0.0, 0.6, 0.8]], np.float32)
    y = np.eye(3, dtype=np.float32)
    found = search.Neighbours.of(x, y, k=2)
    # Averages of the two nearest: x 0.7 and 0.7; y 0.4, 0.6, 0.4.
    margins = [[0.8 / 0.55, 0.6 / 0.65], [0.8 / 0.55, 0.6 / 0.65]]
    np.testing.assert_allclose(found.margins(), margins, rtol=1e-6)
    assert found.best_by_margin()[1].tolist() == [0, 2]
    zero = search.Neighbours.of(np.zeros([2, 3]), y, k=2)
    assert not zero.margins()[:, 1:].any()


# ------------------------------------------------------------------- reading


def test_files_are_found_packed_or_in_their_folder(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.tsv.gz").write_bytes(gzip.compress(b"x\ty\r\n"))
    source = DataDir(str(tmp_path))
    path = source.find("other.tsv", "a.tsv", within="sub")
    assert source.table(path, 2) == [["x", "y"]]
    assert list(source.checksums) == ["sub/a.tsv.gz"]
    with pytest.raises(MissingData, match=f"{tmp_path}/b, {tmp_path}/sub/b"):
        source.find("b", within="sub")
    (tmp_path / "sub" / "a.tsv.gz").write_bytes(b"\x1f\x8b\x08broken")
    with pytest.raises(UserError, match="not a whole gzip file"):
        source.lines(path)


def test_a_file_of_two_that_were_joined_has_a_byte_order_mark_inside(tmp_path):
    path = tmp_path / "file"
    path.write_bytes("x,y\n".encode("utf-8-sig") * 2)
    source = DataDir(str(tmp_path))
    assert source.lines(str(path)) == ["x,y", "x,y"]
    assert source.csv(str(path), 2) == [["x", "y"], ["x", "y"]]


def test_damaged_files_are_refused(tmp_path):
    source, path = DataDir(str(tmp_path)), tmp_path / "file"
    path.write_bytes("caf\xe9\n".encode("latin-1"))
    with pytest.raises(UserError, match="is not utf-8-sig text"):
        source.lines(str(path))
    assert source.lines(str(path), EITHER) == ["caf\xe9"]
    path.write_bytes(b"")
    with pytest.raises(UserError, match="is empty; allowed: at least one line"):
        source.lines(str(path))
    with pytest.raises(UserError, match="is empty; allowed: at least one row"):
        source.csv(str(path), 2)
    path.write_text('a,"b,\nc"\nd,e,f\n')
    # Line 2 ends the first row.
    with pytest.raises(UserError, match="line 3: 3 columns; allowed: 2"):
        source.csv(str(path), 2)
    path.write_bytes('a\u2028b,c\x85d\x0c\r\n"e\r\nf",g\n'.encode())
    assert source.csv(str(path), 2) == [["a\u2028b", "c\x85d\x0c"], ["e\r\nf", "g"]]
    path.write_text('a,b\n"c,d\ne,f\n')
    with pytest.raises(UserError, match="file, line 2: .*each quote closed"):
        source.csv(str(path), 2)
    path.write_text(f"a,b\nc,{'d' * 200_000}\n")
    with pytest.raises(UserError, match="file, line 2: .*at most 131,072 characters"):
        source.csv(str(path), 2)
    with pytest.raises(
        UserError, match="line by line: a 1 line, b 2 lines; allowed: equal"
    ):
        parsing.check_parallel({"a": ["x"], "b": ["x", "y"]})
    with pytest.raises(UserError, match="b, line 2 is blank; allowed: text"):
        parsing.check_parallel({"a": ["x", "y"], "b": ["x", " "]})


@pytest.mark.parametrize("ending, pack", [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_set_that_unpacks_without_end_is_refused(tmp_path, monkeypatch, ending, pack):
    path = tmp_path / f"set.review.{ending}"
    path.write_bytes(pack(b" " * (20 << 20)))
    content = files.whole(str(path))
    assert content == b" " * (20 << 20)
    monkeypatch.setattr(packing, "_FREE_EXPANSION", 1 << 20)
    for read in (
        DataDir(str(tmp_path)).lines,
        lambda path: list(reviews.TASK.read(path)),
    ):
        with pytest.raises(UserError, match=f"{path} unpacks to more than 200 times i"):
            read(str(path))


# ----------------------------------------------------------------- catalogue


def test_names_of_tasks():
    chosen = catalogue.select(["tatoeba-de", "sts16", "sts16", "bitext:a.tsv"], [1, 2])
    assert [task.name for task in chosen] == ["sts16", "tatoeba-de", "bitext:a.tsv"]
    assert all(task.seeds == (1, 2) for task in chosen)
    names = [task.name for task in catalogue.select(["all"])]
    assert len(set(names)) == len(names) > 12
    for old, new in (("shape", "geometry"), ("lexicon", "bli")):
        assert [task.name for task in catalogue.select([old])] == [new]
    (own,) = catalogue.select(["parallel:a.en:a.de"])
    assert own.name == "agnosticity:a.en:a.de"
    for wrong in ("sts18", "tatoeba-", "bitext:", "other:a.tsv", "sts16-de"):
        with pytest.raises(UserError, match=f"--tasks has '{wrong}'; .*allowed: all"):
            catalogue.select([wrong])


def test_damaged_and_missing_languages_are_named_and_the_others_scored(tmp_path):
    """LASER's folder; German lacks a side, French lacks lines."""
    folder = tmp_path / "tatoeba" / "v1"
    folder.mkdir(parents=True)
    for code in ("deu", "fra", "est", "ell"):
        for side in (code, "eng"):
            lines = "".join(f"{side} {row}\n" for row in range(4))
            (folder / f"tatoeba.{code}-eng.{side}").write_text(lines)
    (folder / "tatoeba.deu-eng.eng").unlink()
    (folder / "tatoeba.fra-eng.fra").write_text("fra 0\n")
    found, failed = run.read(catalogue.select(["tatoeba"]), str(tmp_path))
    assert sorted(found[0].data) == ["el", "et"]
    assert sorted(failed) == ["tatoeba-de", "tatoeba-fr"]
    assert failed["tatoeba-de"].startswith("missing: ")
    assert failed["tatoeba-fr"].startswith("damaged: not line by line")
    for code in ("est", "ell"):
        (folder / f"tatoeba.{code}-eng.eng").unlink()
    found, failed = run.read(catalogue.select(["tatoeba"]), str(tmp_path))
    assert not found and failed["tatoeba"].startswith("missing: ")
    _, failed = run.read(catalogue.select(["tatoeba-fr"]), str(tmp_path))
    assert failed["tatoeba-fr"].startswith("damaged: not line by line")


def test_paraphrases_in_other_languages_than_english_may_be_damaged(tmp_path):
    folder = tmp_path / "pawsx"
    folder.mkdir()
    for language in ("de", "en", "fr", "ja", "zh"):
        for part in ("dev", "test"):
            rows = "".join(f"{language} {row}\tx\n" for row in range(4))
            (folder / f"{part}-{language}.tsv").write_text(rows)
    (folder / "dev-de.tsv").unlink()
    (folder / "test-fr.tsv").write_text("one line\tx\n")
    (folder / "dev-zh.tsv").write_text("no columns\n" * 4)
    found, failed = run.read(catalogue.select(["pawsx"]), str(tmp_path))
    assert list(found[0].data.texts) == list(found[0].data.fitted) == ["en", "ja"]
    assert sorted(failed) == ["pawsx-de", "pawsx-fr", "pawsx-zh"]
    assert failed["pawsx-de"].startswith("missing: ")


def test_paraphrases_in_two_languages_may_be_damaged(tmp_path):
    """English too: the other languages have the lines of the first one."""
    for language in ("de", "en", "fr", "ja"):
        for part in ("dev", "test"):
            rows = [f"{language} {row}\tx\n" for row in range(4)]
            (tmp_path / f"{part}-{language}.tsv").write_text("".join(rows))
    (tmp_path / "test-en.tsv").write_text("no columns\n")
    (tmp_path / "test-fr.tsv").write_text("one line\tx\n")
    found, failed = run.read(catalogue.select(["pawsx"]), str(tmp_path))
    assert list(found[0].data.texts) == ["de", "ja"]
    assert sorted(failed) == ["pawsx-en", "pawsx-fr"]


def test_available_files_are_listed_by_task_and_language(tmp_path):
    data_dir = testsets.write(tmp_path)
    (tmp_path / "senteval" / "SICK" / "SICK_train.txt").unlink()
    (tmp_path / "tatoeba" / "tatoeba.fra-eng.fra").unlink()

    def listed(language):
        cells = (row.split(maxsplit=2) for row in listing.rows(language, data_dir))
        return {name: said for name, _, said in cells}

    english = listed("en")
    assert english["stsb-multilingual"] == "there, without en"
    assert english["sick-r"] == "there"
    assert english["sick-r-trained"].startswith("missing: ")
    assert english["tatoeba"] == "there, but not tatoeba-fr"
    assert listed("ja")["pawsx"] == "there, without ja"


def test_languages_of_tasks_are_those_of_their_data(shared_data):
    """What --list_tasks promises against what the public files hold."""
    assert {task.name for task in catalogue.of_language("tr")} >= {
        *("tatoeba", "xnli", "sts17", "bli", "xeval-mr")
    }
    assert [task.name for task in catalogue.of_language("ja")] == [
        *("stsb-multilingual", "tatoeba", "pawsx", "amazon")
    ]
    with pytest.raises(
        UserError, match="list_tasks=qq: no task has this language; .* all, af"
    ):
        catalogue.of_language("qq")
    source = DataDir(str(shared_data / "eval"))
    for name in ("tatoeba", "bucc", "bli", "multi-simlex", "stsb-multilingual"):
        (task,) = catalogue.select([name])
        parts = {code for part in task.find_parts(source) for code in part.split("-")}
        assert parts <= set(task.languages), name
