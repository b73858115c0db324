"""N-grams: their scores by the definition, out of core, and what a file may hold."""

import bz2
import collections
import errno
import gzip
import itertools
from pathlib import Path

import commands
import numpy as np
import oracles
import pytest
from test_tokenizers import byte_pairs
from texts import word_piece

from cmlm.common import choices, fields
from cmlm.data import line_files, ngram_files, streams
from cmlm.errors import UserError
from cmlm.ngram_lists import extraction
from cmlm.ngram_lists.extraction import NgramConfig
from cmlm.ngram_lists.sorted_counts import SortedCounts
from cmlm.ngram_lists.units import Units
from cmlm.tokenization.rules import UNCASED, Rules

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def documents() -> list[list[list[str]]]:
    """Documents of sentences of words, of which some like to stand together."""
    random = np.random.default_rng(3)
    words, documents = [f"w{i}" for i in range(12)], []
    for _ in range(6):
        document = []
        for _ in range(9):
            sentence = random.choice(words, random.integers(1, 9)).tolist()
            if random.random() < 0.5:
                sentence += ["new", "york", "city"]
            document.append(sentence)
        documents.append(document)
    return documents


@pytest.fixture
def paths(documents, tmp_path) -> list[str]:
    found = []
    for number in range(2):
        path = tmp_path / f"{number}.txt"
        path.write_text(
            "\n\n".join(
                "\n".join(" ".join(sentence) for sentence in document)
                for document in documents[number::2]
            )
        )
        found.append(str(path))
    return found


def extract(paths, units, config, directory=None):
    return extraction.extract(paths, units, config, directory, collections.Counter())


@pytest.mark.parametrize("form", choices.NGRAM_FORMS)
def test_scores_are_those_of_the_definition(documents, paths, form):
    together = [sentence for document in documents for sentence in document]
    whole = oracles.ngram_scores(together, 4, form == "released")
    config = NgramConfig(form=form, longest=4, top=0, min_count=1, scope="corpus")
    got = dict(extract(paths, Units(UNCASED), config))
    assert got == pytest.approx(whole)

    # Each document keeps its best, by the counts of the corpus or its own.
    for counts in choices.NGRAM_COUNTS:
        config = NgramConfig(form, counts, longest=4, top=7, min_count=1)
        got = dict(extract(paths, Units(UNCASED), config))
        sure, possible = {}, {}
        for document in documents:
            own = oracles.ngram_scores(document, 4, form == "released")
            scores = own if counts == "document" else {n: whole[n] for n in own}
            lowest = sorted(scores.values())[-7]
            for ngram, value in scores.items():
                # Of equal scores only some are among the seven.
                if value > lowest + 1e-9:
                    sure[ngram] = max(value, sure.get(ngram, -99))
                if value > lowest - 1e-9:
                    possible[ngram] = max(value, possible.get(ngram, -99))
        assert sure.keys() <= got.keys() <= possible.keys()
        assert len(sure) > 5 and len(got) <= 7 * len(documents)
        for ngram, value in got.items():
            assert value <= possible[ngram] + 1e-9
            assert value >= sure.get(ngram, -99) - 1e-9
        assert list(got) == sorted(got)


@pytest.mark.parametrize("form", choices.NGRAM_FORMS)
def test_equal_counts_have_equal_scores(form):
    orders = [*itertools.permutations([38, 59, 32, 113])]
    assert len({extraction.score(form, 20, [*order], 9973) for order in orders}) == 1


@pytest.mark.parametrize("counts, scope", [
    ("document", "document"), ("corpus", "document"), ("corpus", "corpus")
])  # fmt: skip
@pytest.mark.parametrize("top", [0, 20])
def test_out_of_core_equals_in_memory(paths, counts, scope, top):
    config = NgramConfig(
        counts=counts, scope=scope, top=top, min_count=1 + (counts == "corpus")
    )
    want = list(extract(paths, Units(UNCASED), config))
    assert want and [ngram for ngram, _ in want] == sorted(ngram for ngram, _ in want)
    small = NgramConfig(**{**vars(config), "max_entries": 5})
    assert list(extract(paths, Units(UNCASED), small)) == want


def test_a_long_line_ends_where_the_training_cuts_it(tmp_path):
    # Two bytes a letter and one a space: the limit falls into a letter.
    line = "\u00e9\u00e9 \u00fc\u00fc " * 2000
    path = tmp_path / "long.txt"
    path.write_text(line, encoding="utf-8")
    config = NgramConfig(counts="document", longest=2, top=0, min_count=1)
    (tmp_path / "marked").mkdir()
    list(extract([str(path)], Units(UNCASED), config, str(tmp_path / "marked")))
    (marked,) = (tmp_path / "marked" / "long.txt").read_bytes().strip().splitlines()
    (read,) = streams.sentences(streams.Portion([str(path)]))
    kept = marked.split(b"\t")[0].decode()
    assert kept == read.numpy().decode(errors="ignore") and "\ufffd" not in kept
    assert streams.MAX_SENTENCE_BYTES - 3 < len(kept.encode()) < len(line.encode())


def test_the_training_cuts_no_mark_of_a_long_line(tmp_path):
    """It reads the marks of the first words, of any length, and each of them whole."""
    words = [f"word{number:03d}" for number in range(400)]
    (tmp_path / "long.txt").write_text(" ".join(words))
    (tmp_path / "marked").mkdir()
    config = NgramConfig(counts="document", longest=4, min_count=1)
    given, where = [str(tmp_path / "long.txt")], str(tmp_path / "marked")
    listed = dict(extract(given, Units(UNCASED), config, where))
    text = streams.Portion([str(tmp_path / "marked" / "long.txt")])
    (line,) = streams.sentences(text).as_numpy_iterator()
    sentence, *marks = line.decode().split(ngram_files.MARK)
    assert sentence == " ".join(words) and set(marks) < set(listed)
    first = {" ".join(words[a:b]) for a in range(100) for b in range(a + 2, a + 5)}
    assert first <= set(marks)


@pytest.mark.parametrize("counts, scope", [
    ("document", "document"), ("corpus", "document"), ("corpus", "corpus")
])  # fmt: skip
def test_sentences_are_marked_with_the_list_of_their_document(
    documents, paths, tmp_path, counts, scope
):
    config = NgramConfig(counts=counts, scope=scope, longest=4, top=5, min_count=1)
    (tmp_path / "marked").mkdir()
    found = extract(paths, Units(UNCASED), config, str(tmp_path / "marked"))
    listed = set(dict(found))
    together = [sentence for document in documents for sentence in document]
    whole = oracles.ngram_scores(together, 4, False)
    n_marks = n_elsewhere = 0
    for number in range(2):
        text = (tmp_path / "marked" / f"{number}.txt").read_text()
        marked = [block.split("\n") for block in text.strip().split("\n\n")]
        assert len(marked) == len(documents[number::2])
        for rows, document in zip(marked, documents[number::2], strict=True):
            own = oracles.ngram_scores(document, 4, False)
            if counts == "corpus":
                own = whole if scope == "corpus" else {n: whole[n] for n in own}
            lowest = sorted(own.values())[-5]
            best = {ngram for ngram, value in own.items() if value > lowest + 1e-9}
            maybe = {ngram for ngram, value in own.items() if value > lowest - 1e-9}
            for row, sentence in zip(rows, document, strict=True):
                text, *marks = row.split("\t")
                assert text == " ".join(sentence)
                inside = {
                    " ".join(sentence[a:b])
                    for a in range(len(sentence))
                    for b in range(a + 2, min(a + 4, len(sentence)) + 1)
                }
                assert inside & best <= set(marks) <= inside & maybe
                n_marks += len(marks)
                n_elsewhere += len(inside & listed - maybe)
    assert n_marks > 20
    # Without marks some sentences would have n-grams of other documents.
    assert (n_elsewhere > 0) == (scope == "document")


def test_the_default_drops_rare_n_grams(tmp_path):
    path = tmp_path / "a.txt"
    city, seven = "new york is big", "one two three four five six seven"
    path.write_text(f"{city}\n" * 20 + f"{seven}\n" * 19)
    found = dict(extract([str(path)], Units(UNCASED), NgramConfig()))
    assert city in found and not any("two" in ngram for ngram in found)
    # And those of more than six words.
    path.write_text(f"{seven}\n" * 20)
    found = dict(extract([str(path)], Units(UNCASED), NgramConfig()))
    assert max(len(ngram.split()) for ngram in found) == 6


def test_counts_beyond_memory_are_on_disk():
    random = np.random.default_rng(0)
    keys = [f"k{i}" for i in random.integers(0, 500, 3000)]
    with SortedCounts("sum", max_entries=40) as counts:
        counts.update((key, 1) for key in keys)
        assert len(counts._entries) < 40
        want = [(key, keys.count(key)) for key in sorted(set(keys))]
        assert list(counts.items()) == want
        # The corpus is scored in two passes.
        counts.settle()
        for _ in range(2):
            assert list(counts.items()) == want


def test_keys_of_counts_are_any_text_in_its_order_in_python():
    keys = ["b", "a\tc", "a\nb", "\U0001f600", "\uffee", "\u00e9", "", "a\0", "a"]
    with SortedCounts("max", max_entries=2) as counts:
        counts.update((key, value) for value in (0.1, 0.7, 0.3) for key in keys)
        assert list(counts.items()) == [(key, 0.7) for key in sorted(keys)]


def test_a_full_disk_and_an_interrupt_end_the_counting():
    entries = [(f"{number} words", 1) for number in range(20_000)]
    with SortedCounts("sum", max_entries=100) as counts:
        counts._disk.execute("PRAGMA max_page_count = 20")
        with pytest.raises(OSError, match="No space left on device: .*sqlite") as found:
            counts.update(entries)
        assert found.value.errno == errno.ENOSPC
    with SortedCounts("sum", max_entries=100) as counts:
        counts.update(entries)

        def interrupted():
            raise KeyboardInterrupt

        counts._disk.set_progress_handler(interrupted, 100)
        with pytest.raises(KeyboardInterrupt):
            counts.settle()


@pytest.mark.parametrize("scope", choices.NGRAM_SCOPES)
def test_a_corpus_is_read_in_parts_of_any_document(paths, tmp_path, scope, monkeypatch):
    """The borders of documents matter only if each document has its list."""
    config = NgramConfig(scope=scope, top=20, min_count=2)
    (tmp_path / "marked").mkdir()
    want = dict(extract(paths, Units(UNCASED), config, str(tmp_path / "marked")))
    marked = (tmp_path / "marked" / "0.txt").read_text()
    monkeypatch.setattr(line_files, "LINES_PER_CHUNK", 4)
    totals, units = collections.Counter(), Units(UNCASED)
    read = [*extraction._documents(paths, units, totals, scope)]
    assert totals["documents"] == 6
    longest = max(len(document.lines) for document in read)
    assert longest == (4 if scope == "corpus" else 10)
    assert dict(extract(paths, units, config, str(tmp_path / "marked"))) == want
    assert (tmp_path / "marked" / "0.txt").read_text() == marked
    Path(paths[0]).write_text(f"\n\n {Path(paths[0]).read_text()}\n\n\n")
    assert dict(extract(paths, units, config, str(tmp_path / "marked"))) == want
    assert (tmp_path / "marked" / "0.txt").read_text() == marked


def test_words_that_like_each_other_come_first(paths):
    config = NgramConfig(scope="corpus", top=1, min_count=5)
    assert dict(extract(paths, Units(UNCASED), config)).keys() == {"new york city"}
    # Undivided and of counts, the released score falls with every word.
    config = NgramConfig(form="released", scope="corpus", top=1, min_count=5)
    (ngram,) = dict(extract(paths, Units(UNCASED), config))
    assert len(ngram.split()) == 2
    with pytest.raises(UserError, match="no n-gram is left"):
        config = NgramConfig(threshold=99.0, min_count=1)
        ngram_files.write(extract(paths, Units(UNCASED), config), paths[0] + ".tsv")
    assert not Path(paths[0] + ".tsv").exists()


def test_the_threshold_is_the_lowest_score_that_stays(paths):
    config = NgramConfig(scope="corpus", top=0, min_count=1)
    scored = dict(extract(paths, Units(UNCASED), config))
    lowest = sorted(scores := scored.values())[len(scored) // 2]
    want = {ngram: value for ngram, value in scored.items() if value >= lowest}
    assert min(want.values()) == lowest < max(scores) and len(want) < len(scored)
    at_least = NgramConfig(scope="corpus", top=0, min_count=1, threshold=lowest)
    assert dict(extract(paths, Units(UNCASED), at_least)) == want


def test_a_marked_text_is_packed_by_gzip_and_has_a_name_of_its_own(paths, tmp_path):
    for name, pack in (("a.txt.bz2", bz2.compress), ("b.txt.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(Path(paths[0]).read_bytes()))
    given = [*paths, str(tmp_path / "a.txt.bz2"), str(tmp_path / "b.txt.gz")]
    extraction.check_names(given)
    (tmp_path / "marked").mkdir()
    config = NgramConfig(counts="document", min_count=1)
    list(extract(given, Units(UNCASED), config, str(tmp_path / "marked")))
    want = (tmp_path / "marked" / "0.txt").read_bytes()
    names = sorted(path.name for path in (tmp_path / "marked").iterdir())
    assert names == ["0.txt", "1.txt", "a.txt.gz", "b.txt.gz"]
    for name in names[2:]:
        packed = (tmp_path / "marked" / name).read_bytes()
        assert gzip.decompress(packed) == want
    for name in ("0.txt", "a.txt.gz", "b.txt.bz2"):
        want = name.replace("bz2", "gz")
        said = f"--input names 2 files for {want}; allowed with --marked_output: diff"
        with pytest.raises(UserError, match=said):
            extraction.check_names([*given, f"elsewhere/{name}"])


def test_units_do_not_cross_punctuation():
    (runs,) = Units(UNCASED).split(['Caf\u00e9s, "New York" -- don\'t 3.5'])
    assert runs == [["cafes"], ["new", "york"], ["don"], ["t", "3"], ["5"]]
    assert Units(Rules(lower_case=False)).split(["New York"]) == [[["New", "York"]]]
    # Chinese characters are words; Thai has none without pieces.
    assert Units(UNCASED).split(["\u4e1c\u4eac\u3002"]) == [[["\u4e1c", "\u4eac"]]]
    assert Units(UNCASED).split(["", " "]) == [[], []]


def test_pieces_of_a_language_without_spaces(tmp_path):
    pieces = ["\u0e01", "##\u0e32", "##\u0e23", "x"]
    tokenizer = word_piece(tmp_path, pieces)
    text = tmp_path / "a.txt"
    text.write_text("\u0e01\u0e32\u0e23 x q\n\u0e01\u0e32\n")
    units = Units(UNCASED, tokenizer)
    assert units.split(["\u0e01\u0e32\u0e23 q x"]) == [[pieces[:3], ["x"]]]
    found = dict(extract([str(text)], units, NgramConfig(min_count=1)))
    assert "\u0e01 ##\u0e32 ##\u0e23" in found


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "is empty; allowed: lines of n-gram, tab, number, as"),
        ("new york\t1.5\nnew york 2\n", "line 2 is 'new york 2'"),
        ("new york\tmany\n", "line 1"),
        ("\t1.0\n", "line 1"),
        ("a b\tnan\n", "line 1"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path, text, message):
    path = tmp_path / "ngrams.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        ngram_files.read(str(path))
    with pytest.raises(UserError, match="does not exist; allowed: lines of n-gram, "):
        ngram_files.read(str(path) + "x")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"form": "pmi"}, "form is 'pmi'; allowed: paper, released"),
        ({"scope": "line"}, "scope is 'line'"),
        ({"counts": "word"}, "counts is 'word'; allowed: corpus, document"),
        ({"counts": "document", "scope": "corpus"}, "scope is 'corpus'; allowed: doc"),
        ({"longest": 1}, "longest is 1; allowed: at least 2"),
        ({"top": -1}, "top is -1"),
        ({"min_count": 0}, "min_count is 0"),
        ({"max_entries": 0}, "max_entries is 0"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(UserError, match=message):
        fields.check(NgramConfig(**values), "--")


def run(*arguments):
    return commands.run("cmlm.ngrams", *arguments)


@pytest.mark.large
def test_words_follow_the_rules_of_a_vocabulary(tmp_path):
    (tmp_path / "a.txt").write_text("New York is big\n" * 20)
    vocabulary, output = tmp_path / "v.txt", tmp_path / "ngrams.tsv"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nNew\n")
    (tmp_path / "v.txt.json").write_text('{"lower_case": false}')
    arguments = (f"--input={tmp_path}/a.txt", f"--output={output}")
    done = run(*arguments, f"--vocab_file={vocabulary}")
    assert done.returncode == 0, done.stderr
    assert "New York is big" in ngram_files.read(str(output))


@pytest.mark.large
def test_the_command_writes_a_sorted_file(paths, tmp_path):
    output = tmp_path / "ngrams.tsv"
    arguments = (
        f"--input={tmp_path}/*.txt",
        f"--output={output}",
        "--top=9",
        "--min_count=1",
    )
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    lines = output.read_text().splitlines()
    assert lines == sorted(lines)
    said = f"{len(lines)} n-grams of 6 documents in 2 files\n"
    assert done.stdout.startswith(said)
    assert ngram_files.read(str(output)) == [line.split("\t")[0] for line in lines]
    again = run(*arguments)
    assert again.returncode == 1 and "exists" in again.stderr.splitlines()[-1]
    for line in again.stderr.splitlines():
        assert line.startswith("error: ")
    # A corpus of which nothing is above the threshold.
    none = run(*arguments, "--overwrite", "--threshold=99")
    assert none.returncode == 1
    assert none.stderr.startswith("error: no n-gram is left") and "\n" in none.stderr
    assert output.read_text().splitlines() == lines


@pytest.mark.large
def test_pieces_need_word_pieces(paths, tmp_path):
    """MiSAD finds no n-grams of other pieces in a text."""
    _, vocabulary = byte_pairs(tmp_path)
    arguments = (f"--input={paths[0]}", f"--output={tmp_path}/ngrams.tsv")
    done = run(*arguments, "--unit=pieces", f"--vocab_file={vocabulary}")
    assert done.returncode == 1
    said = f"--vocab_file is {vocabulary}, of byte-level BPE; allowed: a WordPiece voc"
    assert done.stderr.startswith(f"error: {said}")


@pytest.mark.large
def test_the_flags_are_the_settings_of_the_library(paths, tmp_path):
    with open(paths[0], "a") as file:
        file.write("\n\ncaf\u00e9 noir\ncaf\u00e9 noir\n")
    cases = [{"form": "released"}, {"counts": "document"}, {"scope": "corpus"}]
    cases += [{"longest": 3}, {"strip_accents": False}]
    arguments = [
        [
            *(f"--input={paths[0]},{paths[1]}", f"--output={tmp_path}/{number}.tsv"),
            *("--top=5", "--min_count=1"),
            *(f"--{name}={value}" for name, value in case.items()),
        ]
        for number, case in enumerate(cases)
    ]
    answers = commands.repeatedly("cmlm.ngrams", arguments)
    found = set()
    for number, (case, answer) in enumerate(zip(cases, answers, strict=True)):
        code, _, heard = answer
        assert code == 0, heard
        rules = Rules(True, case.pop("strip_accents", True))
        config = NgramConfig(**{"top": 5, "min_count": 1, **case})
        extracted = extract(paths, Units(rules), config)
        ngram_files.write(extracted, f"{tmp_path}/want")
        got = (tmp_path / f"{number}.tsv").read_bytes()
        assert got == (tmp_path / "want").read_bytes(), case
        found.add(got)
    assert len(found) == len(cases)
