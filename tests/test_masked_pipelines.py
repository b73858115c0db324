"""Batches hold the pairs of the text, repeat exactly, and resume exactly."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from texts import word_piece

from cmlm.data import batches as batches_lib
from cmlm.data import masked_pipelines
from cmlm.data.corpus import Corpus
from cmlm.data.masking import MaskingConfig
from cmlm.data.settings import TextDataConfig
from cmlm.errors import UserError

pytestmark = pytest.mark.usefixtures("unconverted")

PAD, UNK, CLS, SEP, MASK = range(5)
N_DOCUMENTS, N_SENTENCES = 10, 21  # 200 pairs
BOTH = pytest.mark.parametrize("make", ["conditional_pairs", "masked_texts"])


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sentences that name their own place: `d3 s7 x x x`, of varied length."""
    directory = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    tokens = ["x", *(f"d{d}" for d in range(N_DOCUMENTS))]
    tokens += [f"s{s}" for s in range(N_SENTENCES)]
    files = []
    for d in range(N_DOCUMENTS):
        lines = [f"d{d} s{s}" + " x" * rng.integers(40) for s in range(N_SENTENCES)]
        path = directory / f"{d}.txt"
        path.write_text("\n".join(lines))
        files.append(str(path))
    return word_piece(directory, tokens), files


def build(data, make="conditional_pairs", *, masking=None, batch_size=8, **kwargs):
    tokenizer, files = data
    names = ("seq_length", "length_buckets", "seed", "hold_out_fraction")
    config = TextDataConfig(
        input_path="-",
        global_batch_size=8,
        shuffle_buffer_size=64,
        **{
            "seq_length": 32,
            "hold_out_fraction": 0.0,
            **{name: kwargs.pop(name) for name in names if name in kwargs},
        },
    )
    corpus = Corpus({"": files}, {"": len(files)})
    feed = batches_lib.Feed(
        config,
        tokenizer,
        corpus,
        **{"batch_size": batch_size, "part": "train", **kwargs},
    )
    masking = masking or MaskingConfig()
    return getattr(masked_pipelines, make)(feed, masking, passages=False)


def take(dataset, n):
    return list(dataset.take(n).as_numpy_iterator())


def equal(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def unmask(batch):
    """The rows of input_word_ids as they were before masking."""
    ids = batch["input_word_ids"].copy()
    for row, positions, labels, weights in zip(
        ids,
        batch["masked_lm_positions"],
        batch["masked_lm_ids"],
        batch["masked_lm_weights"],
        strict=True,
    ):
        row[positions[weights > 0]] = labels[weights > 0]
    return ids


def place(row):
    """(document, sentence) of a row of ids."""
    return row[1] - 6, row[2] - 6 - N_DOCUMENTS


def places(batches):
    """((document, sentence) of the context, of the target) of every pair."""
    return [
        (place(context), place(target))
        for batch in batches
        for context, target in zip(
            batch["context_word_ids"], unmask(batch), strict=True
        )
    ]


ALL_PAIRS = {
    ((d, s), (d, s + 1)) for d in range(N_DOCUMENTS) for s in range(N_SENTENCES - 1)
}


@pytest.mark.parametrize("shapes", ["buckets", "padded", "static"])
def test_a_pass_has_every_pair_once_and_each_order_about_half_of_the_time(data, shapes):
    dataset = build(
        data,
        part="all",
        length_buckets=shapes == "buckets",
        static_shapes=shapes == "static",
    )
    batches = list(dataset.as_numpy_iterator())
    found = places(batches)
    assert sorted(map(tuple, map(sorted, found))) == sorted(ALL_PAIRS)
    forward = sum(pair in ALL_PAIRS for pair in found)
    assert 70 < forward < 130  # 200 fair coins: within four standard deviations
    assert sum(len(b["input_mask"]) for b in batches) == len(ALL_PAIRS)


def test_an_epoch_of_training_has_every_pair_once(data):
    # One pair a batch and no buckets: nothing waits in them for the next epoch.
    dataset = build(data, batch_size=1, length_buckets=False)
    batches = take(dataset, 2 * len(ALL_PAIRS))
    epochs = [places(batches[: len(ALL_PAIRS)]), places(batches[len(ALL_PAIRS) :])]
    for epoch in epochs:
        assert sorted(map(tuple, map(sorted, epoch))) == sorted(ALL_PAIRS)
    orders = [[tuple(sorted(pair)) for pair in epoch] for epoch in epochs]
    assert orders[0] != orders[1]
    assert orders[0] != sorted(orders[0])


@pytest.mark.parametrize("length_buckets", [False, True])
def test_tensorflow_sees_that_training_data_never_ends(data, length_buckets):
    """If not, several workers ask each other in each step whether data is left."""
    endless = build(data, length_buckets=length_buckets)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    once = build(data, part="validation", length_buckets=length_buckets)
    assert once.cardinality() != tf.data.INFINITE_CARDINALITY


@BOTH
def test_masks_differ_between_epochs(data, make):
    tokenizer, files = data
    dataset = build((tokenizer, files[:1]), make, batch_size=1, length_buckets=False)
    n = N_SENTENCES - (make == "conditional_pairs")
    masked = [set(), set()]
    for i, batch in enumerate(take(dataset, 2 * n)):
        for word, ids in zip(unmask(batch), batch["input_word_ids"], strict=True):
            masked[i // n].add((tuple(word), tuple(ids)))
    assert masked[0] != masked[1]
    assert len(masked[0] & masked[1]) < n / 2


@BOTH
@pytest.mark.parametrize("static_shapes", [False, True])
def test_shapes_types_and_masks(data, make, static_shapes):
    masking = MaskingConfig(max_predictions=9)
    dataset = build(data, make, masking=masking, static_shapes=static_shapes)
    widths = set()
    for batch in take(dataset, 30):
        b, length = batch["input_word_ids"].shape
        assert b == 8
        widths.add(length)
        assert batch["masked_lm_positions"].shape[1] == (
            9 if static_shapes else batch["masked_lm_weights"].sum(axis=1).max()
        )
        for name, array in batch.items():
            assert array.dtype == ("float32" if name.endswith("weights") else "int32")
        original = unmask(batch)
        sides = [(original, batch["input_mask"])]
        if make == "conditional_pairs":
            sides.append((batch["context_word_ids"], batch["context_mask"]))
            assert not (batch["context_word_ids"] == MASK).any()
        longest = 0
        for ids, input_mask in sides:
            assert ids.shape == input_mask.shape == (b, length)
            lengths = input_mask.sum(axis=1)
            longest = max(longest, lengths.max())
            assert (input_mask == (np.arange(length) < lengths[:, None])).all()
            assert ((ids != PAD) == input_mask).all()
            assert (ids[:, 0] == CLS).all()
            assert (ids[np.arange(b), lengths - 1] == SEP).all()
        assert length == (32 if static_shapes else longest)
    if static_shapes:
        assert widths == {32}
        for name, spec in dataset.element_spec.items():
            assert spec.shape == (8, 9 if name.startswith("masked_lm") else 32)
    else:
        assert len(widths) > 4 and max(widths) <= 32


def test_any_first_part_of_a_pass_has_short_and_long_sentences(data):
    dataset = build(data, part="all", seq_length=64)
    widths = [batch["input_mask"].shape[1] for batch in take(dataset, 8)]
    assert max(widths) > 36 and widths != sorted(widths)


def test_buckets_waste_little(data):
    def padding(length_buckets):
        batches = take(build(data, length_buckets=length_buckets), 30)
        cells = sum(b["input_mask"].size for b in batches)
        return 1 - sum(b["input_mask"].sum() for b in batches) / cells

    # Pairs of random lengths: the shorter side of each is padded in any case.
    assert padding(True) < padding(False) - 0.05


@pytest.mark.parametrize(
    "make, length_buckets", [("conditional_pairs", True), ("masked_texts", False)]
)
def test_a_rebuilt_dataset_repeats_itself_and_skips_exactly(
    data, make, length_buckets, monkeypatch
):
    tokenizer, files = data
    data = tokenizer, files[:4]
    # 35 batches: six windows, and more than three epochs.
    monkeypatch.setattr(batches_lib, "_MOST_BATCHES", 6)
    kwargs = {"length_buckets": length_buckets}
    straight = take(build(data, make, **kwargs), 35)
    for n in (0, 10, 27):
        resumed = take(build(data, make, skip_batches=n, **kwargs), len(straight) - n)
        assert all(map(equal, straight[n:], resumed))
    other = take(build(data, make, seed=1, **kwargs), len(straight))
    assert not any(map(equal, straight, other))


@BOTH
def test_validation_is_the_same_in_every_pass(data, make):
    dataset = build(data, make, part="all")
    first, second = (list(dataset.as_numpy_iterator()) for _ in range(2))
    assert len(first) == len(second) and all(map(equal, first, second))
    n = N_DOCUMENTS * (N_SENTENCES - (make == "conditional_pairs"))
    assert sum(len(batch["input_mask"]) for batch in first) == n


def test_parts_share_no_sentence(data):
    train = take(build(data, hold_out_fraction=0.3), 40)
    validation = build(data, part="validation", hold_out_fraction=0.3)
    seen = set(itertools.chain.from_iterable(places(train)))
    held_out = set(
        itertools.chain.from_iterable(places(validation.as_numpy_iterator()))
    )
    assert held_out and not seen & held_out


def test_nothing_to_train_on_is_an_error_and_no_endless_wait(data):
    with pytest.raises(UserError, match="hold_out_fraction=0.9999999"):
        build(data, hold_out_fraction=0.9999999)


def test_hosts_differ_in_text_and_in_random_numbers(data):
    tokenizer, files = data
    hosts = [tf.distribute.InputContext(2, host, 2) for host in range(2)]
    shares = [
        places(build(data, part="all", input_context=host).as_numpy_iterator())
        for host in hosts
    ]
    found = [tuple(sorted(pair)) for share in shares for pair in share]
    assert sorted(found) == sorted(ALL_PAIRS)

    # The same text on both hosts: the masks must not be the same.
    batches = []
    for number, host in enumerate(hosts):
        two_files = [files[0], files[0]]
        (batch,) = take(
            build((tokenizer, two_files), part="all", input_context=host,
                  length_buckets=False), 1
        )  # fmt: skip
        batches.append(batch)
        assert host.input_pipeline_id == number
    assert not equal(*batches)


def test_passages_have_the_masks_of_full_sequences(data, caplog):
    """80 of 256 tokens, as single sentences cannot have them."""
    caplog.set_level("INFO")
    masking = MaskingConfig()
    tokenizer, files = data
    config = TextDataConfig(
        input_path="-", global_batch_size=8, seq_length=32, hold_out_fraction=0.0
    )
    corpus = Corpus({"": files}, {"": len(files)})
    feed = batches_lib.Feed(config, tokenizer, corpus, 8, "train")
    full = rows = 0
    for batch in take(
        masked_pipelines.conditional_pairs(feed, masking, passages=True), 10
    ):
        for (d, s), (e, t) in places([batch]):
            assert d == e and s != t
        lengths = batch["input_mask"].sum(axis=1)
        full += (lengths == 32).sum()
        rows += len(lengths)
        counts = batch["masked_lm_weights"].sum(axis=1)
        assert (counts[lengths == 32] == 10).all()  # 31.25 % of 32
    assert full > rows / 3
    assert "0 of the first 10 documents fit into one passage of 32 tokens" in (
        caplog.text
    )
    longer = dataclasses.replace(feed, config=config.replace(seq_length=2000))
    with pytest.raises(UserError, match="no document of more than one passage"):
        masked_pipelines.conditional_pairs(longer, masking, passages=True)


def test_both_sides_are_cut_at_seq_length(data):
    for batch in take(build(data, seq_length=10), 20):
        assert batch["input_word_ids"].shape[1] <= 10
        assert batch["context_word_ids"].shape[1] <= 10
