"""Batches of two texts: packed into one sequence, side by side, or a text twice."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from texts import word_piece

from cmlm.data import (
    batches,
    masked_pipelines,
    pair_pipelines,
    span_masking,
    streams,
)
from cmlm.data.bitext import BitextDataConfig
from cmlm.data.corpus import Corpus
from cmlm.data.masking import MaskingConfig
from cmlm.data.settings import DataConfig
from cmlm.data.span_masking import SpanConfig
from cmlm.tokenization.word_pieces import WordPiece

pytestmark = pytest.mark.usefixtures("unconverted")

PAD, UNK, CLS, SEP, MASK = range(5)
N = 120


@pytest.fixture
def tokenizer(tmp_path) -> WordPiece:
    tokens = [f"{letter}{i}" for letter in "edn" for i in range(N)]
    return word_piece(tmp_path, ["x", "y", *tokens])


@pytest.fixture
def bitext(tmp_path) -> list[str]:
    """`eI x x` translated as `dI y`, with the hard negative `nI`; and sentences."""
    rows = [f"e{i}{' x' * (i % 9)}\td{i}{' y' * (i % 4)}\tn{i}" for i in range(N)]
    (tmp_path / "bitext.tsv").write_text("\n".join(rows))
    return [str(tmp_path / "bitext.tsv")]


@pytest.fixture
def text(tmp_path) -> list[str]:
    (tmp_path / "a.txt").write_text(
        "\n".join(f"e{i}" + " x" * (i % 9) for i in range(N))
    )
    return [str(tmp_path / "a.txt")]


def feed(files, tokenizer, part="all", seq_length=24, **values) -> batches.Feed:
    config = DataConfig(
        input_path="-",
        global_batch_size=8,
        seq_length=seq_length,
        shuffle_buffer_size=N,
        hold_out_fraction=0.0,
        length_buckets=values.pop("length_buckets", True),
    )
    corpus = Corpus({"": files}, {"": N})
    return batches.Feed(config, tokenizer, corpus, 8, part, **values)


def rows(dataset):
    for batch in dataset.as_numpy_iterator():
        for i in range(len(next(iter(batch.values())))):
            yield {key: value[i] for key, value in batch.items()}


def unmasked(row):
    ids = row["input_word_ids"].copy()
    used = row["masked_lm_weights"] > 0
    ids[row["masked_lm_positions"][used]] = row["masked_lm_ids"][used]
    return ids


def segments(row, tokenizer) -> list[list[str]]:
    """The words of the two segments of a packed row; checks its shape."""
    ids = unmasked(row)[row["input_mask"] > 0]
    (first_end, last) = np.flatnonzero(ids == SEP)
    assert ids[0] == CLS and last == len(ids) - 1
    types = row["input_type_ids"]
    assert not types[: first_end + 1].any() and types[first_end + 1 : last + 1].all()
    assert not types[last + 1 :].any()
    return [
        [tokenizer.vocab[i] for i in ids[1:first_end]],
        [tokenizer.vocab[i] for i in ids[first_end + 1 : last]],
    ]


def test_tlm_packs_a_text_and_its_translation_in_either_order(bitext, tokenizer):
    dataset = masked_pipelines.masked_pairs(feed(bitext, tokenizer), MaskingConfig())
    found, english_first = set(), 0
    for row in rows(dataset):
        first, second = segments(row, tokenizer)
        english_first += first[0].startswith("e")
        english, german = sorted((first, second), key=lambda s: s[0], reverse=True)
        number = int(english[0][1:])
        assert german[0] == f"d{number}"
        assert (len(english), len(german)) == (1 + number % 9, 1 + number % 4)
        found.add(number)
    assert found == set(range(N))
    assert 0.3 * N < english_first < 0.7 * N


@pytest.mark.parametrize("make", ["bitext_pairs", "scored_pairs"])
def test_prompts_precede_the_two_texts(tmp_path, tokenizer, make):
    """Against a file with the prompts before its texts; hashes are without them."""
    last = "{}d{}" if make == "bitext_pairs" else "{}0.{}"
    plain, written = tmp_path / "plain.tsv", tmp_path / "written.tsv"
    prompts = {plain: ("", ""), written: ("x y ", "y ")}
    for path, (first, second) in prompts.items():
        of_last = second if make == "bitext_pairs" else ""
        path.write_text(
            "".join(
                f"{first}e{i}\t{second}d{i}\t{last.format(of_last, (i + 1) % N)}\n"
                for i in range(N)
            )
        )
    pipeline = getattr(pair_pipelines, make)
    found, wanted, bare = (
        list(pipeline(feed([str(path)], tokenizer), *given).as_numpy_iterator())
        for path, given in (
            (plain, [prompts[written]]),
            (written, []),
            (plain, []),
        )
    )
    assert len(found) == len(wanted) == N // 8
    for own, other, without in zip(found, wanted, bare, strict=True):
        assert own.keys() == other.keys()
        for name in own:
            expected = without if name.endswith("_hash") else other
            np.testing.assert_array_equal(own[name], expected[name], name)


def test_sorted_bitext_is_shuffled_as_a_whole(tmp_path, tokenizer):
    n_pairs = 200_000
    lines = (f"e{i * N // n_pairs}\ty" for i in range(n_pairs))
    (tmp_path / "sorted.tsv").write_text("\n".join(lines))
    config = BitextDataConfig(input_path="-", global_batch_size=64, seq_length=8)
    corpus = Corpus({"": [str(tmp_path / "sorted.tsv")]}, {"": n_pairs})
    reads = batches.Feed(config, tokenizer, corpus, 64, "train")
    first = next(iter(pair_pipelines.bitext_pairs(reads).as_numpy_iterator()))
    drawn = first["source_word_ids"][:, 1] - tokenizer.vocab.index("e0")
    assert drawn.min() < N / 4 and drawn.max() > 3 * N / 4


def test_a_validation_reads_few_lines_before_its_first_batch(tmp_path, tokenizer):
    n_pairs = 131_072
    lines = (f"e{i * N // n_pairs}\ty" for i in range(n_pairs))
    (tmp_path / "sorted.tsv").write_text("\n".join(lines))
    config = BitextDataConfig(
        input_path="-",
        global_batch_size=64,
        seq_length=8,
        shuffle_buffer_size=1_000_000,
    )
    corpus = Corpus({"": [str(tmp_path / "sorted.tsv")]}, {"": n_pairs})
    reads = batches.Feed(config, tokenizer, corpus, 64, "all")
    first = next(iter(pair_pipelines.bitext_pairs(reads).as_numpy_iterator()))
    drawn = first["source_word_ids"][:, 1] - tokenizer.vocab.index("e0")
    assert drawn.min() < N / 8 and 3 * N / 8 < drawn.max() <= N / 2


@pytest.mark.parametrize("make", ["masked_pairs", "ordered_pairs"])
def test_pairs_in_one_sequence_are_batched_by_its_length(tmp_path, tokenizer, make):
    """Against the batches of the sorted sums."""
    random = np.random.default_rng(5)
    lengths = random.integers(1, 30, [N, 2])
    separator = "\t" if make == "masked_pairs" else "\n"
    rows = [separator.join("x " * n for n in row) for row in lengths]
    # Documents of two sentences have one pair each.
    path = tmp_path / "pairs.txt"
    path.write_text(("\n" if make == "masked_pairs" else "\n\n").join(rows))
    given = feed([str(path)], tokenizer, seq_length=128)
    dataset = (
        masked_pipelines.masked_pairs(given, MaskingConfig())
        if make == "masked_pairs"
        else masked_pipelines.ordered_pairs(given, MaskingConfig(), "swapped")
    )
    found = [batch["input_mask"].shape[1] for batch in dataset.as_numpy_iterator()]
    sums = np.sort(lengths.sum(axis=1)).reshape(-1, 8)
    assert sorted(found) == sorted(sums.max(axis=1) + 3)


@pytest.mark.parametrize("wrong", ["random", "swapped"])
def test_half_of_the_pairs_are_not_as_in_the_text(text, tokenizer, wrong):
    dataset = masked_pipelines.ordered_pairs(
        feed(text, tokenizer), MaskingConfig(), wrong
    )
    right = 0
    for row in rows(dataset):
        first, second = (int(s[0][1:]) for s in segments(row, tokenizer))
        if row["order_label"]:
            assert second == first + 1
            right += 1
        elif wrong == "swapped":
            assert first == second + 1
        else:
            assert second != first + 1
    assert 0.3 * N < right < 0.7 * N


def test_a_pair_that_is_alone_is_a_right_one(text, tokenizer):
    alone = dataclasses.replace(feed(text, tokenizer), batch_size=1)
    dataset = masked_pipelines.ordered_pairs(alone, MaskingConfig(), "random")
    assert all(row["order_label"] for row in rows(dataset))


@pytest.mark.parametrize(
    "first, second, lengths",
    [
        (3, 4, (3, 4)),
        (20, 20, (6, 5)),
        (20, 3, (8, 3)),
        (3, 20, (3, 8)),
        (0, 20, (0, 11)),
    ],
)
def test_a_pair_is_cut_where_it_does_not_fit(tokenizer, first, second, lengths):
    ids = tokenizer.encode_pair(["x " * first], ["y " * second], seq_length=14)
    x, y = (lengths[0] * [tokenizer.vocab.index("x")], lengths[1] * [6])
    assert ids.to_list() == [[CLS, *x, SEP, *y, SEP]]


@pytest.mark.parametrize("static", [False, True])
def test_translations_carry_hard_negatives_and_fingerprints(bitext, tokenizer, static):
    seen = {}
    dataset = pair_pipelines.bitext_pairs(feed(bitext, tokenizer, static_shapes=static))
    for row in rows(dataset):
        number = row["source_word_ids"][1] - 7
        assert row["target_word_ids"][1] - 7 - N == number
        assert row["negative_word_ids"].shape[0] == 1
        assert row["negative_word_ids"][0, 1] - 7 - 2 * N == number
        assert row["source_mask"].sum() == 3 + number % 9
        assert row["negative_mask"][0].sum() == 3
        if static:
            assert row["source_word_ids"].shape == (24,)
            assert row["negative_word_ids"].shape == (1, 24)
        seen[number] = (
            row["source_hash"],
            row["target_hash"],
            row["negative_hash"][0],
        )
    assert len(seen) == N
    assert len({value for triple in seen.values() for value in triple}) == 3 * N


def test_languages_of_a_bitext_are_mixed(tmp_path, bitext, tokenizer):
    (tmp_path / "other.tsv").write_text("\n".join(f"n{i}\td{i}\tx" for i in range(N)))
    corpus = Corpus(
        {"en-de": bitext, "xx-de": [str(tmp_path / "other.tsv")]},
        {"en-de": N, "xx-de": N},
    )
    given = feed(bitext, tokenizer, "train")
    given = batches.Feed(given.config, tokenizer, corpus, 8, "train")
    drawn = list(pair_pipelines.bitext_pairs(given).take(40).as_numpy_iterator())
    first = np.concatenate([batch["source_word_ids"][:, 1] for batch in drawn])
    assert 0.35 < np.mean(first >= 7 + 2 * N) < 0.65


@pytest.mark.parametrize("make", ["bitext_pairs", "masked_pairs"])
def test_languages_with_and_without_hard_negatives_mix(
    tmp_path, bitext, tokenizer, make
):
    (tmp_path / "other.tsv").write_text("\n".join(f"n{i}\td{i}" for i in range(N)))
    corpus = Corpus(
        {"en-de": bitext, "xx-de": [str(tmp_path / "other.tsv")]},
        {"en-de": N, "xx-de": N},
    )
    config = feed(bitext, tokenizer).config
    given = batches.Feed(config, tokenizer, corpus, 8, "train")
    if make == "masked_pairs":
        assert next(iter(masked_pipelines.masked_pairs(given, MaskingConfig())))
        return
    found = list(pair_pipelines.bitext_pairs(given).take(20).as_numpy_iterator())
    english = np.concatenate([b["source_word_ids"][:, 1] < 7 + N for b in found])
    exists = np.concatenate([b["negative_exists"][:, 0] for b in found])
    np.testing.assert_array_equal(exists, english)
    assert 0 < exists.sum() < len(exists)


def test_languages_with_the_same_lines_come_in_orders_of_their_own(
    tmp_path, bitext, tokenizer
):
    """As the files of a text in several languages, line by line."""
    corpus = Corpus({"en-de": bitext, "en-fr": bitext}, {"en-de": N, "en-fr": N})
    given = feed(bitext, tokenizer, "train", length_buckets=False)
    given = batches.Feed(given.config, tokenizer, corpus, N, "train")
    (first,) = pair_pipelines.bitext_pairs(given).take(1).as_numpy_iterator()
    _, counts = np.unique(first["source_word_ids"][:, 1], return_counts=True)
    # Lines of two files in one order would come twice each.
    assert np.mean(counts == 1) > 0.4


@pytest.mark.parametrize("compared", [False, True])
def test_texts_that_a_loss_compares_have_several_lengths(text, tokenizer, compared):
    given = feed(text, tokenizer, "train")
    dataset = pair_pipelines.taught_texts(
        given, lambda texts: tf.zeros([tf.shape(texts)[0], 2]), compared
    )
    found = dataset.take(40).as_numpy_iterator()
    lengths = [batch["source_mask"].sum(axis=1) for batch in found]
    within = np.mean([each.std() for each in lengths])
    assert (within > 0.8 * np.concatenate(lengths).std()) == compared


@pytest.mark.parametrize("make", ["bitext_pairs", "neighbours", "copies"])
def test_batches_of_contrastive_objectives_are_random_and_sorted_inside(
    text, bitext, tokenizer, make
):
    """The lengths in a batch vary as in the text; micro-batches are narrower."""
    given = feed(bitext if make == "bitext_pairs" else text, tokenizer, "train")
    dataset = (
        pair_pipelines.copies(given, SpanConfig(length=0), 0.0)
        if make == "copies"
        else getattr(pair_pipelines, make)(given)
    )
    deviations, lengths = [], []
    for batch in dataset.take(40).as_numpy_iterator():
        longest = np.maximum(
            batch["source_mask"].sum(axis=1), batch["target_mask"].sum(axis=1)
        )
        np.testing.assert_array_equal(longest, np.sort(longest))
        deviations.append(longest.std())
        lengths.append(longest)
    assert np.mean(deviations) > 0.8 * np.concatenate(lengths).std()
    static = feed(text, tokenizer, "train", static_shapes=True)
    assert next(iter(pair_pipelines.neighbours(static)))["source_mask"].shape == (8, 24)


def test_a_copy_is_made_of_every_distinct_string_once(tmp_path, tokenizer):
    (tmp_path / "twice.txt").write_text("\n".join(f"e{i % 50}" for i in range(N)))
    given = feed([str(tmp_path / "twice.txt")], tokenizer)
    found = [
        row["source_hash"]
        for row in rows(pair_pipelines.copies(given, SpanConfig(), 0))
    ]
    assert len(found) == len(set(found)) == 50


def test_a_string_of_two_languages_is_one_string(tmp_path, tokenizer):
    """Languages of 60 strings each share 20: an epoch and its steps count 100."""
    files = {"xx": [str(tmp_path / "xx.txt")], "yy": [str(tmp_path / "yy.txt")]}
    for language, first in (("xx", 0), ("yy", 40)):
        strings = [f"e{i}" for i in range(first, first + 60)]
        (tmp_path / f"{language}.txt").write_text("\n".join(strings))
    corpus = Corpus(files, {"xx": 60, "yy": 60})
    given = dataclasses.replace(feed([], tokenizer, "train"), corpus=corpus)

    def copies(**values):
        changed = dataclasses.replace(given, **values)
        return pair_pipelines.copies(changed, SpanConfig(length=0), 0.0)

    assert sum(1 for _ in copies(unbatched=True)) == 100
    epoch = copies(batch_size=20, epoch_examples=100).take(5)
    assert len({row["source_hash"] for row in rows(epoch)}) == 100
    # Without epochs, both languages are drawn.
    drawn = np.concatenate(
        [batch["source_word_ids"][:, 1] for batch in copies().take(9)]
    )
    drawn -= tokenizer.vocab.index("e0")
    assert (drawn < 40).any() and (drawn >= 60).any()


@pytest.mark.parametrize("make", ["copies", "masked_texts"])
@pytest.mark.parametrize("batch_size, languages", [(16, 2), (50, 1)])
def test_an_epoch_has_every_example_once(
    tmp_path, text, tokenizer, make, batch_size, languages
):
    """120 sentences: batches of their own for each epoch, the rest left out."""
    per_epoch = N // batch_size
    given = feed(text, tokenizer, "train")
    if languages == 2:
        # The buffer is too small to mix one language behind the other.
        lines = (tmp_path / "a.txt").read_text().splitlines()
        parts = {"xx": lines[:80], "yy": lines[80:]}
        files = {name: [str(tmp_path / f"{name}.txt")] for name in parts}
        for name, part in parts.items():
            (tmp_path / f"{name}.txt").write_text("\n".join(part))
        corpus = Corpus(files, {name: len(part) for name, part in parts.items()})
        config = given.config.replace(shuffle_buffer_size=8)
        given = dataclasses.replace(given, corpus=corpus, config=config)

    def build(**values):
        changed = dataclasses.replace(
            given,
            batch_size=batch_size,
            epoch_examples=per_epoch * batch_size,
            **values,
        )
        if make == "copies":
            return pair_pipelines.copies(changed, SpanConfig(length=0), 0.0)
        return masked_pipelines.masked_texts(
            changed, MaskingConfig(mask_token_share=0.0, random_token_share=0.0), False
        )

    key = "source_word_ids" if make == "copies" else "input_word_ids"
    found = [b[key][:, 1] for b in build().take(3 * per_epoch).as_numpy_iterator()]
    epochs = [np.concatenate(found[i * per_epoch :][:per_epoch]) for i in range(3)]
    for epoch in epochs:
        assert len(set(epoch)) == len(epoch) == per_epoch * batch_size
        first_half = epoch[: len(epoch) // 2] - tokenizer.vocab.index("e0")
        assert 8 < np.sum(first_half >= 80) < 32
    assert list(epochs[0]) != list(epochs[1])
    for skip in (1, per_epoch, 2 * per_epoch + 1):
        rest = build(skip_batches=skip).take(3 * per_epoch - skip)
        for want, got in zip(found[skip:], rest.as_numpy_iterator(), strict=True):
            np.testing.assert_array_equal(want, got[key][:, 1])


@pytest.mark.parametrize("part", ["train", "all"])
def test_hosts_that_share_a_file_have_other_places_of_it_in_a_step(tmp_path, part):
    """And other languages: host 1 does not follow the draws of host 0."""
    corpus, n_lines = Corpus({}, {}), 4000
    names = [f"{language}{i}" for language in "ab" for i in range(n_lines)]
    for language in "ab":
        path = tmp_path / f"{language}.tsv"
        path.write_text("\n".join(f"{language}{i}\tx" for i in range(n_lines)))
        corpus.files[language], corpus.sizes[language] = [str(path)], n_lines
    tokenizer = word_piece(tmp_path, ["x", *names])
    config = BitextDataConfig(
        input_path="-",
        global_batch_size=200,
        shuffle_buffer_size=1000,
        hold_out_fraction=0.0,
        # Rows stay in the order in which they were drawn.
        length_buckets=False,
    )
    places = []
    for host in range(2):
        context = tf.distribute.InputContext(2, host, 2)
        reads = batches.Feed(config, tokenizer, corpus, 100, part, context)
        first = next(iter(pair_pipelines.bitext_pairs(reads).as_numpy_iterator()))
        places.append(first["source_word_ids"][:, 1] - 6)
    languages = [place // n_lines for place in places]
    assert np.sum(languages[0] != languages[1]) > 20
    adjacent = np.abs(places[0][:, None] - places[1]) == 1
    # Ten to twenty by chance. With one seed, each row would have its neighbour.
    assert adjacent.sum() < 40


def test_neighbours_are_side_by_side_in_the_text(text, tokenizer):
    found = set()
    for row in rows(pair_pipelines.neighbours(feed(text, tokenizer))):
        number = row["source_word_ids"][1]
        assert row["target_word_ids"][1] == number + 1
        found.add(number)
    assert len(found) == N - 1


# ------------------------------------------------------------ copies of a text


@pytest.mark.parametrize("unit", ["characters", "tokens"])
def test_one_span_of_the_copy_becomes_one_mask(text, tokenizer, unit):
    span = SpanConfig(length=3, unit=unit, shortest=8)
    lengths = set()
    for row in rows(pair_pipelines.copies(feed(text, tokenizer), span, mask_rate=0.0)):
        source, target = (
            row[f"{side}_word_ids"][row[f"{side}_mask"] > 0]
            for side in ("source", "target")
        )
        assert row["source_hash"] == row["target_hash"]
        n_tokens = len(source) - 2
        n_units = (
            n_tokens
            if unit == "tokens"
            else len(f"e{source[1] - 7}") + 2 * (n_tokens - 1)
        )
        if n_units < 8:
            np.testing.assert_array_equal(source, target)
            continue
        (at,) = np.flatnonzero(target == MASK)
        lengths.add(len(source) - len(target))
        np.testing.assert_array_equal(target[:at][:1], source[:1])
        assert target[-1] == SEP
        if unit == "tokens":
            np.testing.assert_array_equal(target[:at], source[:at])
            np.testing.assert_array_equal(target[at + 1 :], source[at + 3 :])
    # Three characters hide two short words, one, or the middle of a long one.
    assert lengths == ({2} if unit == "tokens" else {-1, 0, 1})


def test_a_span_of_characters_may_cut_a_word(tokenizer):
    texts = tf.repeat(["e5 x x x x x x x x x"], 200)
    span = SpanConfig(length=2, shortest=2)
    tokens, seed = tokenizer.tokenize(texts), tf.constant([1, 2])
    masked = span_masking.mask_span(texts, tokens, tokenizer, span, seed)
    kinds = {tuple(row) for row in masked.to_list()}
    # `e5` whole, cut in front of or behind the span, or swallowed by it.
    assert {row[0] for row in kinds} >= {MASK, 7 + 5, UNK}
    assert all(row.count(MASK) == 1 for row in kinds)
    none = SpanConfig(length=0)
    assert span_masking.mask_span(texts, tokens, tokenizer, none, seed) is tokens


def test_both_views_are_masked_independently(text, tokenizer):
    dataset = pair_pipelines.copies(feed(text, tokenizer), SpanConfig(length=0), 0.3)
    masked = {"source": 0, "target": 0}
    different = n_tokens = 0
    for row in rows(dataset):
        source, target = row["source_word_ids"], row["target_word_ids"]
        different += not np.array_equal(source, target)
        n_tokens += row["source_mask"].sum()
        for side in masked:
            masked[side] += np.sum(row[f"{side}_word_ids"] == MASK)
    assert different > N / 2
    for count in masked.values():
        assert 0.2 < count / n_tokens < 0.4


@pytest.mark.parametrize("make", ["bitext_pairs", "neighbours", "copies", "ordered"])
def test_skipping_gives_what_would_have_come(text, bitext, tokenizer, make):
    def build(**values):
        files = bitext if make == "bitext_pairs" else text
        given = feed(files, tokenizer, "train", **values)
        if make == "copies":
            return pair_pipelines.copies(given, SpanConfig(), 0.2)
        if make == "ordered":
            return masked_pipelines.ordered_pairs(given, MaskingConfig(), "random")
        return getattr(pair_pipelines, make)(given)

    whole, rest = build().skip(5), build(skip_batches=5)
    for want, got in zip(whole.take(20), rest.take(20), strict=True):
        assert want.keys() == got.keys()
        for key in want:
            np.testing.assert_array_equal(want[key], got[key])


def test_streams_refuse_a_part_that_is_none(text):
    with pytest.raises(ValueError, match="part is 'test'; allowed: train, validation"):
        list(streams.sentences(streams.Portion(text, part="test")))
