"""The whole pipeline, against the same rules written down as loops over lists."""

import collections
import dataclasses
import gzip
import os
import random
import tempfile
import tracemalloc

import commands
import numpy as np
import pytest

from cmlm.common import beam_counts, beam_runner, packing
from cmlm.errors import UserError
from cmlm.preparation import (
    assembly,
    deduplication,
    documents,
    on_beam,
    report,
    spilling,
    spreading,
    writing,
)
from cmlm.preparation import settings as settings_lib
from cmlm.preparation import steps as steps_lib

WORDS = [f"word{i}" for i in range(40)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Three files of small documents of which many repeat; [file][document][line]."""
    generator = random.Random(3)
    directory = tmp_path_factory.mktemp("corpus")
    lines = [
        " ".join(generator.choices(WORDS, k=generator.randint(3, 8))) + "."
        for _ in range(120)
    ]
    made, paths = [], []
    for file in range(3):
        texts = [
            [generator.choice(lines) for _ in range(generator.randint(1, 4))]
            for _ in range(60)
        ]
        for _ in range(10):
            texts.append(generator.choice(texts + [t for f in made for t in f]))
        made.append(texts)
        path = directory / f"{file}.txt"
        path.write_text("\n\n".join("\n".join(text) for text in texts) + "\n")
        paths.append(str(path))
    return made, paths


def settings(paths, **changes):
    base = settings_lib.Settings(
        paths=tuple(map(str, paths)),
        layout="lines",
        steps=("duplicate_documents", "duplicate_lines"),
        languages=("en",),
        shards=3,
    )
    return dataclasses.replace(base, **changes)


def prepare(chosen, directory, workers=1, beam_options="", readers=1, scratch=None):
    """Runs the pipeline; {file name: bytes} and the statistics."""
    counts = str(directory / "counts.json")
    beam_runner.run(
        lambda p: assembly.build(
            p, chosen, str(directory), counts, readers=readers, scratch=scratch
        ),
        beam_options,
        workers,
    )
    stats = report.statistics(beam_counts.read_counts(counts), chosen)
    found = {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.glob("*/*.gz"))
    }
    return found, stats


def texts(found):
    """All documents of some files, as lists of sentences."""
    unpacked = (gzip.decompress(data).decode() for data in found.values())
    return [
        document.split("\n")
        for text in unpacked
        for document in text.split("\n\n")[:-1]
    ]


def unique(made):
    """The oracle: first documents, then first lines; what is left of each document."""
    seen_documents, seen_lines, left = set(), set(), []
    for document in (d for file in made for d in file):
        if tuple(document) in seen_documents:
            continue
        seen_documents.add(tuple(document))
        kept = []
        for line in document:
            if line not in seen_lines:
                kept.append(line)
            seen_lines.add(line)
        if kept:
            left.append(kept)
    return left


@pytest.mark.parametrize("spills", [False, True])
def test_duplicates_equal_the_oracle(corpus, tmp_path, spills, monkeypatch):
    made, paths = corpus
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(spilling, "_GATHERED", 1000)
    found, stats = prepare(
        settings(paths), tmp_path, scratch=str(scratch) if spills else None
    )
    assert any(scratch.iterdir()) == spills
    expected = unique(made)
    assert sorted(texts(found)) == sorted(expected)
    assert len(found) == 3
    kept = stats["languages"]["en"]
    assert kept["documents"] == len(expected)
    assert kept["sentences"] == sum(map(len, expected))

    everything = [d for file in made for d in file]
    flow = stats["steps"]
    assert flow["read"]["documents"]["out"] == len(everything) == 210
    assert flow["split"]["lines"]["in"] == sum(map(len, everything))
    dropped = stats["dropped"]["write"]
    assert dropped["documents"]["en"]["duplicate document"] == len(everything) - len(
        set(map(tuple, everything))
    )
    assert sum(dropped["documents"]["en"].values()) + kept["documents"] == 210
    assert f"en: {kept['documents']:,} documents" in report.summary(stats)


def test_order_within_a_shard_is_that_of_the_input(corpus, tmp_path):
    made, paths = corpus
    found, _ = prepare(settings(paths, steps=(), shards=2), tmp_path)
    everything = [d for file in made for d in file]
    assert sorted(texts(found)) == sorted(everything)
    for name in found:
        remaining = iter(everything)
        assert all(document in remaining for document in texts({name: found[name]}))


def test_a_limit_keeps_a_random_part_of_whole_documents_but_one(corpus, tmp_path):
    made, paths = corpus
    chosen = settings(paths, max_sentences=100)
    found, stats = prepare(chosen, tmp_path)
    kept = texts(found)
    assert sum(map(len, kept)) == 100
    expected = {tuple(d) for d in unique(made)}
    others = [d for d in kept if tuple(d) not in expected]
    assert len(others) <= 1
    for cut in others:
        assert any(whole[: len(cut)] == tuple(cut) for whole in expected)
    assert stats["dropped"]["write"]["documents"]["en"]["over --max_sentences"] > 0
    assert len(found) == 3

    (tmp_path / "other").mkdir()
    other, _ = prepare(dataclasses.replace(chosen, seed=1), tmp_path / "other")
    assert sorted(texts(other)) != sorted(kept)


@pytest.mark.parametrize(
    "layout, limit, kept", [("tsv", 500, 500), ("tsv", 9999, 1500), ("lines", 501, 501)]
)
def test_a_limit_below_the_first_document_cuts_it(tmp_path, layout, limit, kept):
    path, output = tmp_path / "a.txt", tmp_path / "output"
    output.mkdir()
    tab, language = {"tsv": ("\t", "en-de"), "lines": (" ", "en")}[layout]
    path.write_text("".join(f"One {i}.{tab}Eins {i}.\n" for i in range(1500)))
    chosen = settings([path], layout=layout, languages=(language,), steps=())
    found, stats = prepare(dataclasses.replace(chosen, max_sentences=limit), output)
    text = b"".join(map(gzip.decompress, found.values())).decode()
    assert len(list(filter(None, text.split("\n")))) == kept
    assert stats["languages"][language]["sentences"] == kept
    dropped = stats["dropped"].get("write", {}).get("lines", {}).get(language, {})
    if layout == "tsv":
        assert dropped.get("over --max_sentences", 0) == 1500 - kept


def test_a_line_may_have_more_sentences_than_two_bytes_count():
    spread = spreading.Spread(settings([], steps=(), max_sentences=1))
    spread.start_bundle()
    line = "\t".join(["a"] * 70_000)
    list(spread.process(documents.Document(1, "en", [line])))
    sent = list(spread.finish_bundle())
    (block,) = (s.value.value[1] for s in sent if getattr(s, "tag", "") == spread.ROWS)
    (rows,) = np.frombuffer(block, deduplication.ROWS)
    assert rows["sentences"] == 70_000


def test_sentences_of_evaluation_files_are_removed(corpus, tmp_path):
    made, paths = corpus
    secret, two = made[1][0][0], made[2][0][0]
    assert secret != two
    # An accent may be a character of its own.
    words = ("Où est le café", "ou\u0300 est le cafe\u0301?", "Ou est le cafe")
    prints = [documents.loose_fingerprint(text) for text in words]
    assert prints[0] == prints[1] != prints[2]
    # Vowel signs and tone marks are letters; points and variants of emoji are not.
    for words, number in [
        (("यह दिन है", "यह दीन है", "यह दन है"), 3),
        (("ใกล้", "ใกล"), 2),
        (("ड़", "\u095c", "\u0921\u093c"), 1),
        (("كَتَبَ", "كتب"), 1),
        (("Ja ☺", "ja ☺\ufe0f"), 1),
    ]:
        assert len({*map(documents.loose_fingerprint, words)}) == number
    guard = tmp_path / "test.tsv"
    guard.write_text(
        f'0.5\t"{secret.upper()[:-1]}"\tsomething else\n'
        f"An answer. {two.capitalize()} No more.\n"
    )
    output = tmp_path / "output"
    output.mkdir()
    chosen = settings(paths, steps=(), remove_sentences_of=(str(guard),))
    found, stats = prepare(chosen, output)
    everything = [d for file in made for d in file]
    times = sum(d.count(secret) + d.count(two) for d in everything)
    assert times > 1
    assert not any({secret, two} & set(document) for document in texts(found))
    dropped = stats["dropped"]["remove_sentences_of"]["sentences"]["en"]
    assert dropped == {"sentence of the given files": times}


def test_evaluation_files_are_not_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "_FREE_EXPANSION", 1 << 20)
    guard = tmp_path / "test.txt.gz"
    guard.write_bytes(gzip.compress(b"Good text.\n" + b"a\n" * (2 << 20)))
    chosen = settings([], steps=(), remove_sentences_of=(str(guard),))
    with pytest.raises(UserError, match="test.txt.gz: it unpacks to more than"):
        steps_lib.guard(chosen).setup()


@pytest.mark.large
def test_every_runner_writes_the_same_bytes(corpus, tmp_path):
    """In this process, in two others, and by Beam's portable job service."""
    with commands.forked_workers():
        results = by_every_runner(corpus, tmp_path)
    assert results[0] == results[1] == results[2]
    assert results[0][0]


def by_every_runner(corpus, tmp_path):
    _, paths = corpus
    steps = ("duplicate_documents", "near_duplicates", "duplicate_lines")
    chosen = settings(paths, steps=steps, max_sentences=150, seed=5)
    (tmp_path / "scratch").mkdir()
    results = []
    for name, arguments in {
        "one": {},
        "two": {"workers": 2, "readers": 8, "scratch": str(tmp_path / "scratch")},
        "portable": {
            "beam_options": "--runner=PortableRunner --job_endpoint=embed"
            " --environment_type=LOOPBACK"
        },
    }.items():
        (tmp_path / name).mkdir()
        results.append(prepare(chosen, tmp_path / name, **arguments))
    return results


def test_the_sizes_of_the_parts_change_nothing(corpus, tmp_path, monkeypatch):
    """Of buckets; and of blocks and batches, of which a large text has many."""
    _, paths = corpus
    steps = ("duplicate_documents", "near_duplicates", "duplicate_lines")
    results = []
    for buckets in (1, 7):
        (tmp_path / str(buckets)).mkdir()
        chosen = settings(paths, steps=steps, buckets=buckets, max_sentences=150)
        results.append(prepare(chosen, tmp_path / str(buckets)))
        del results[-1][1]["settings"]
        monkeypatch.setattr(spreading, "_BLOCK", 2000)
        monkeypatch.setattr(deduplication, "_BATCH_BYTES", 1000)
    assert results[0] == results[1]
    assert results[0][0]


def test_a_limit_within_a_cut_takes_its_documents_in_order():
    """The oracle goes through the documents of the cut, one by one."""
    numbers = np.array([documents.number(0, place) for place in range(9)], np.uint64)
    sizes = np.array([*zip(numbers, range(1, 10), strict=True)], writing._SIZES)
    order = np.argsort(documents.scatter(numbers, 6))
    assert order.tolist() != sorted(order)
    # A document may have several rows.
    rows = np.concatenate([sizes, sizes[:3]])
    total = rows["sentences"].sum()
    for rest in range(int(total) + 1):
        left, expected = rest, None
        for place in order.tolist():
            own = (place + 1) * (2 if place < 3 else 1)
            if own > left:
                expected = (int(numbers[place]), left)
                break
            left -= own
        found = writing.limit((4, rows.tobytes()), {4: (0, rest)}, seed=5)
        assert found == (4, expected)


@pytest.mark.parametrize(
    "shards, languages, size, expected",
    [
        (0, ("en",), 0, (1, 64)),
        (0, ("en",), 200 << 20, (4, 64)),
        (0, (), 200 << 20, (1, 64)),
        (0, (), 64 << 30, (129, 1024)),
        (0, ("en", "de"), 200 << 20, (2, 64)),
        (0, tuple("abcdefghij"), 64 << 30, (129, 1024)),
        (3, ("en", "de"), 200 << 20, (3, 64)),
        (0, ("en",), 1 << 50, (1 << 20, 1 << 24)),
    ],
)
def test_shards_and_buckets_grow_with_the_input(shards, languages, size, expected):
    chosen = settings([], shards=shards, languages=languages)
    sized = on_beam._sized(chosen, size)
    assert (sized.shards, sized.buckets) == expected


def test_an_input_of_which_nothing_is_left_leaves_nothing(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("Short.\n\nTiny.\n")
    chosen = settings([tmp_path / "a.txt"], steps=("length",))
    with pytest.raises(UserError, match="^no document of --input is left; allowed"):
        on_beam.run(chosen, str(tmp_path / "output"), False, "", 1)
    said = capsys.readouterr().out
    assert "dropped by length: 2 lines: under 10 characters 2" in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_sentences_that_are_none_are_dropped_by_the_splitter():
    lines = ["Here is one. 12.", "---", f"Here are two. {'X' * 10_001}."]
    dropped = collections.Counter()
    left = steps_lib.Split().apply(documents.Document(1, "en", lines), dropped)
    assert left.lines == ["Here is one.", "Here are two."]
    assert dropped == {"sentence without a letter": 2, "sentence over 10,000": 1}


def test_a_shard_is_written_from_a_few_blocks_at_a_time(tmp_path):
    """Its memory follows the blocks that overlap, not the size of the shard."""
    generator = random.Random(0)
    peaks = []
    for amount in (10, 100):
        path = tmp_path / str(amount)
        blocks = []
        for start in range(amount):
            numbers = range(100 * start, 100 * start + 200, 2)  # overlaps the next
            text = [[f"{generator.getrandbits(800):x}"] for _ in numbers]
            blocks.append(spreading.pack([*zip(numbers, text, strict=True)]))
        generator.shuffle(blocks)
        with open(path, "wb") as file:
            for block in blocks:
                file.write(len(block).to_bytes(4, "little") + block)
        tracemalloc.start()
        numbers = [number for number, _ in spreading.unpack([str(path)])]
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert numbers == sorted(numbers) and len(numbers) == 100 * amount
    # Ten times the text; the list of numbers itself takes less than 40 bytes each.
    assert peaks[1] < peaks[0] + 40 * 100 * 100


def test_near_duplicates_fall_and_their_lines_stay_free(tmp_path):
    generator = random.Random(1)
    words = [f"w{i}" for i in range(5000)]
    long = [" ".join(generator.choices(words, k=12)) + "." for _ in range(40)]
    copy = [*long[:-1], "This line is in the copy and in the last document."]
    other = [" ".join(generator.choices(words, k=12)) + "." for _ in range(40)]
    last = [copy[-1], "And here is one more line of it."]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join("\n".join(d) for d in (long, copy, other, last)) + "\n")
    output = tmp_path / "output"
    output.mkdir()
    chosen = settings([path], steps=("near_duplicates", "duplicate_lines"), shards=1)
    found, stats = prepare(chosen, output)
    assert texts(found) == [long, other, last]
    assert stats["dropped"]["write"]["documents"]["en"] == {"near duplicate": 1}


@pytest.mark.parametrize("first", ["一", "ぁ", "ก"])
def test_near_duplicates_fall_in_scripts_without_spaces(tmp_path, first):
    generator = random.Random(1)
    letters = [chr(ord(first) + i) for i in range(40)]
    long, other = (
        ["".join(generator.choices(letters, k=12)) for _ in range(40)] for _ in "ab"
    )
    copy = [
        letters[0] + line[1:] if i % 10 == 5 else line for i, line in enumerate(long)
    ]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join("\n".join(d) for d in (long, copy, other)) + "\n")
    output = tmp_path / "output"
    output.mkdir()
    chosen = settings([path], steps=("near_duplicates",), shards=1)
    _, stats = prepare(chosen, output)
    assert stats["languages"]["en"]["documents"] == 2
    assert stats["dropped"]["write"]["documents"]["en"] == {"near duplicate": 1}


def test_languages_go_to_directories_of_their_own(tmp_path):
    english = "This is the first paragraph of an English text about nothing at all."
    german = "Das ist der erste Absatz eines deutschen Textes über gar nichts."
    french = "Voici le premier paragraphe d'un texte français qui ne dit rien du tout."
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([english, german, english + " Again.", french, "??"]))
    output = tmp_path / "output"
    output.mkdir()
    chosen = settings([path], steps=("language",), languages=("en", "de"), shards=1)
    found, stats = prepare(chosen, output)
    assert list(found) == [
        "de/00000-of-00001.txt.gz",
        "en/00000-of-00001.txt.gz",
    ]
    assert texts(found) == [[german], [english], [english, "Again."]]
    assert stats["dropped"]["language"]["documents"]["-"] == {
        "in another language: fr": 1,
        "language not clear": 1,
    }


def test_all_languages_are_kept_if_none_is_named(tmp_path):
    german = "Das ist der erste Absatz eines deutschen Textes über gar nichts."
    french = "Voici le premier paragraphe d'un texte français qui ne dit rien du tout."
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join([german, french, "??"]))
    output = tmp_path / "output"
    output.mkdir()
    steps = ("language", "duplicate_lines")
    every = settings_lib.languages_of("all", "lines", steps)
    assert every == ()
    chosen = settings([path], steps=steps, languages=every, shards=1)
    found, stats = prepare(chosen, output)
    assert list(found) == ["de/00000-of-00001.txt.gz", "fr/00000-of-00001.txt.gz"]
    assert texts(found) == [[german], [french]]
    dropped = stats["dropped"]["language"]["documents"]
    assert dropped == {"-": {"language not clear": 1}}
    named = settings_lib.languages_of("fr, de,fr", "lines", steps)
    assert named == ("fr", "de")


def test_translations(tmp_path):
    pairs = ["Yes.\tJa.", "No.\tNein.", "Yes.\tJa.", "OK\tOK", "Secret.\tGeheim."]
    # A sentence of a side is found, too, and a pair with two of them counts once.
    pairs += ["It is a secret. More.\tDas ist geheim. Mehr.", "Secret.\tNichts."]
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(pairs) + "\n")
    guard = tmp_path / "test.txt"
    guard.write_text("geheim\nsecret\nDas ist geheim\nIt is a secret\n")
    output = tmp_path / "output"
    output.mkdir()
    chosen = settings(
        [path],
        layout="tsv",
        steps=("duplicate_lines",),
        languages=("en-de",),
        shards=1,
        remove_sentences_of=(str(guard),),
    )
    found, stats = prepare(chosen, output)
    (data,) = found.values()
    assert list(found) == ["en-de/00000-of-00001.tsv.gz"]
    assert gzip.decompress(data).decode() == "Yes.\tJa.\nNo.\tNein.\n"
    assert stats["languages"]["en-de"]["sentences"] == 2
    assert stats["dropped"]["pairs"]["lines"]["en-de"] == {"both sides equal": 1}
    # The blocks in which pairs are read are no documents.
    assert report.summary(stats).splitlines() == [
        "read: 7 pairs",
        "dropped by pairs: 1 pair: both sides equal 1",
        "dropped by remove_sentences_of: 3 pairs: sentence of the given files 3",
        "dropped by write: 1 pair: duplicate line 1",
        "en-de: 2 pairs, 19 characters",
    ]


def test_a_later_file_of_another_layout_is_left_out_and_named(tmp_path):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    paths[0].write_text('{"text": "One here."}\n')
    paths[1].write_text('{"body": "Two here."}\n')
    output = tmp_path / "output"
    output.mkdir()
    chosen = settings(paths, layout="json", steps=(), shards=1)
    found, stats = prepare(chosen, output, readers=4)
    assert texts(found) == [["One here."]]
    said = "is not of layout json: line 1 has no text 'text'; its fields: body"
    assert stats["files_left_out"] == [f"{paths[1]} {said}"]
    assert stats["damaged_files"] == []


def test_pairs_with_a_tab_in_another_place_are_no_duplicates():
    one, two, same = "A B\tC", "A\tB C", " A  B \t C"
    assert documents.fingerprint(one) != documents.fingerprint(two)
    assert documents.fingerprint(one) == documents.fingerprint(same)


def test_invalid_bytes_are_a_share_of_the_lines_of_the_files(tmp_path):
    """A paragraph of wrapped text has many of them."""
    text = "Eine Zeile hier.\n" * 14 + "Ein Caf\xe9 dort.\n\n"
    (tmp_path / "a.txt").write_bytes(text.encode("latin-1") * 15)
    chosen = settings([tmp_path / "a.txt"], layout="wrapped", steps=())
    stats = on_beam.run(chosen, str(tmp_path / "output"), False, "", 1)
    assert stats["steps"]["read"]["lines"]["out"] == 15
    told = {"files": 1, "lines": 240, "invalid UTF-8 replaced": 15}
    assert stats["source"] == told
    assert "  invalid UTF-8 replaced 15\n" in report.summary(stats)


def test_blocks_of_a_remote_output_wait_in_a_directory_with_a_lock(
    tmp_path, monkeypatch
):
    """After a kill, the next run removes it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = tmp_path / "cmlm-scratch-1234"
    abandoned.mkdir()
    with on_beam._scratch("gs://bucket/output") as path:
        name = os.path.basename(path)
        assert sorted(os.listdir(tmp_path)) == [name, f"{name}.lock"]
    assert not os.listdir(tmp_path)


def test_a_later_file_in_utf16_is_refused_before_the_work(tmp_path, monkeypatch):
    paths = [tmp_path / "a.txt", tmp_path / "b.txt.gz"]
    paths[0].write_text("One here.\n")
    paths[1].write_bytes(gzip.compress("Two here.\n".encode("utf-16")))
    monkeypatch.setattr(beam_runner, "run", None)
    with pytest.raises(UserError, match="b.txt.gz is UTF-16; allowed: UTF-8, as"):
        on_beam.run(settings(paths), str(tmp_path / "output"), False, "", 1)


@pytest.mark.parametrize(
    "layout, steps, wanted, message",
    [
        ("lines", (), "xx", "language is 'xx'; allowed"),
        ("lines", (), "EN", "ISO 639"),
        ("lines", (), "en-de", "language is 'en-de'; allowed"),
        ("tsv", (), "en", "a pair such as en-de"),
        ("tsv", (), "en-xx", "language is 'xx'; allowed"),
        ("lines", (), "en,de", "or the step `language`"),
        ("lines", ("language",), "en,ast", "--language is ast; allowed with the step"),
        ("tsv", ("c4",), "en-de", "allowed for bitext: duplicate_lines"),
    ],
)
def test_languages_that_cannot_be(layout, steps, wanted, message):
    with pytest.raises(UserError, match=message):
        settings_lib.languages_of(wanted, layout, steps)


def test_repeated_rows_are_all_but_the_first():
    generator = np.random.default_rng(0)
    rows = np.zeros(500, deduplication.ROWS)
    rows["print"] = generator.integers(0, 100, 500)
    rows["number"] = generator.permutation(500)
    found = deduplication.repeated(rows)
    first = collections.defaultdict(lambda: 10**9)
    for row in rows:
        first[row["print"]] = min(first[row["print"]], row["number"])
    expected = {n for n in range(500)} - set(map(int, first.values()))
    assert set(found["number"].tolist()) == expected


@pytest.mark.parametrize("changed, is_near", [(2, True), (60, False)])
def test_minhash_finds_what_shares_most_runs(changed, is_near):
    """The share of equal values is near the true Jaccard similarity."""
    generator = random.Random(7)
    words = [f"w{generator.randrange(10**6)}" for _ in range(600)]
    copy = list(words)
    copy[5 :: 600 // changed] = ["new"] * changed
    runs = [
        {tuple(text[i : i + 5]) for i in range(len(text) - 4)} for text in (words, copy)
    ]
    true = len(runs[0] & runs[1]) / len(runs[0] | runs[1])
    signatures = [deduplication.signature(" ".join(text)) for text in (words, copy)]
    equal = (signatures[0][1] == signatures[1][1]).mean()
    assert abs(equal - true) < 0.13  # three standard deviations of 128 values
    rows = np.array(
        [(b, n, 0, s[1]) for n, s in enumerate(signatures) for b in s[0]],
        deduplication.SIGNATURES,
    )
    found = set(deduplication.near(rows)["number"].tolist())
    assert found == ({1} if is_near else set())


@pytest.mark.parametrize("amount", [0, 1, 300])
def test_lines_are_found_by_their_document_and_place(amount):
    generator = np.random.default_rng(amount)

    def some(size):
        rows = np.zeros(size, deduplication.ROWS)
        rows["number"] = generator.integers(0, 30, size).astype(np.uint64) << 36
        rows["line"] = generator.integers(0, 20, size)
        return rows

    rows, lines = some(500), some(amount)
    wanted = set(zip(lines["number"].tolist(), lines["line"].tolist(), strict=True))
    expected = [
        (number, line) in wanted
        for number, line in zip(
            rows["number"].tolist(), rows["line"].tolist(), strict=True
        )
    ]
    assert deduplication.are_among(rows, lines).tolist() == expected
    by_document = deduplication.by_document(lines)
    assert {(n, i) for n, some in by_document.items() for i in some.tolist()} == wanted


def test_scatter_is_even_and_depends_on_the_seed():
    numbers = np.array([documents.number(f, p) for f in range(4) for p in range(5000)])
    shards = documents.scatter(numbers, 0) % np.uint64(10)
    counts = np.bincount(shards.astype(int))
    assert (abs(counts - 2000) < 200).all()
    assert (documents.scatter(numbers, 1) != documents.scatter(numbers, 0)).all()
    # Published first outputs of SplitMix64, whose state starts at 0.
    golden = 0x9E3779B97F4A7C15
    start = np.array([0, golden], np.uint64)
    assert [hex(v) for v in documents.scatter(start, 0).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
    ]
