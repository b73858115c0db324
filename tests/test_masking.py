"""Masks have BERT's statistics, touch nothing special and repeat with their seed."""

import numpy as np
import pytest
import tensorflow as tf
from texts import word_piece

from cmlm.common import fields
from cmlm.data import masking, span_masking
from cmlm.data.masking import MaskingConfig
from cmlm.errors import UserError

PAD, UNK, CLS, SEP, MASK = range(5)
N_WORDS = 400  # ids 5..404 begin a word
N_PIECES = 200  # ids 405..604 continue one


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    tokens = [f"w{i}" for i in range(N_WORDS)] + [f"##p{i}" for i in range(N_PIECES)]
    return word_piece(tmp_path_factory.mktemp("vocab"), tokens)


def make_rows(lengths, rng, continuation_share=0.4):
    """Rows `[CLS] ... [SEP]` with words of several pieces and a few [UNK]."""
    ids = np.zeros([len(lengths), max(lengths)], np.int32)
    for row, length in zip(ids, lengths, strict=True):
        content = rng.integers(5, 5 + N_WORDS, length - 2)
        continues = rng.random(length - 2) < continuation_share
        pieces = rng.integers(5 + N_WORDS, 5 + N_WORDS + N_PIECES, length - 2)
        content = np.where(continues, pieces, content)
        content[rng.random(length - 2) < 0.05] = UNK
        content[:1] = 5  # the first piece begins a word
        # A piece after [UNK] cannot be: it would have been part of the unknown word.
        after_unk = np.concatenate([[False], content[:-1] == UNK])
        content[after_unk & (content >= 5 + N_WORDS)] = 6
        row[:length] = [CLS, *content, SEP]
    return ids


def mask(ids, tokenizer, config, seed=(1, 2), **kwargs):
    result = masking.mask_tokens(
        tf.constant(ids), tokenizer, config, tf.constant(seed), **kwargs
    )
    return {name: tensor.numpy() for name, tensor in result.items()}


def words_of(row):
    """Positions of each whole word of a row, as sets, special tokens left out."""
    words = []
    for position, token in enumerate(row):
        if token < 5:
            continue
        if token >= 5 + N_WORDS:
            words[-1].add(position)
        else:
            words.append({position})
    return words


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize("static", [False, True])
def test_every_row_is_masked_as_it_should_be(tokenizer, whole_word, static):
    rng = np.random.default_rng(0)
    lengths = [2, 3, 4, 5, 8, 17, 33, 64, 120, 120]
    ids = make_rows(lengths, rng)
    config = MaskingConfig(rate=0.3, max_predictions=20, whole_word=whole_word)
    for step in range(20):
        out = mask(ids, tokenizer, config, (7, step), static_predictions=static)
        positions, labels = out["masked_lm_positions"], out["masked_lm_ids"]
        weights = out["masked_lm_weights"]
        counts = weights.sum(axis=1)
        assert positions.shape[1] == (20 if static else max(counts.max(), 1))
        for r, length in enumerate(lengths):
            n = int(counts[r])
            assert weights[r].tolist() == [1.0] * n + [0.0] * (len(weights[r]) - n)
            chosen = positions[r, :n]
            assert (np.diff(chosen) > 0).all()
            assert (labels[r, :n] == ids[r, chosen]).all() and (
                labels[r, :n] >= 5
            ).all()
            assert not positions[r, n:].any() and not labels[r, n:].any()
            others = np.setdiff1d(np.arange(ids.shape[1]), chosen)
            assert (out["input_word_ids"][r, others] == ids[r, others]).all()
            replacements = out["input_word_ids"][r, chosen]
            assert ((replacements >= 5) | (replacements == MASK)).all()

            maskable = int((ids[r] >= 5).sum())
            budget = min(20, max(1, int(np.round(np.float32(0.3) * length))), maskable)
            if not whole_word:
                assert n == budget
                continue
            assert n <= budget and (n > 0) == (maskable > 0)
            words = words_of(ids[r])
            left = set(chosen)
            cut = [word for word in words if word & left and not word <= left]
            if cut:  # only where no word fits
                assert n == budget < min(map(len, cut)) and len(cut) == 1
            else:
                # BERT's loop stops only when no other word fits into the budget.
                rest = [len(word) for word in words if not word & left]
                assert not rest or min(rest) > budget - n


def test_the_paper_s_rate_on_full_rows(tokenizer):
    ids = make_rows([256] * 4, np.random.default_rng(1))
    out = mask(ids, tokenizer, MaskingConfig())
    assert out["masked_lm_weights"].sum(axis=1).tolist() == [80] * 4


@pytest.mark.parametrize("whole_word", [False, True])
def test_statistics(tokenizer, whole_word):
    ids = make_rows([102] * 400, np.random.default_rng(2))
    config = MaskingConfig(rate=0.2, whole_word=whole_word)
    out = mask(ids, tokenizer, config)
    used = out["masked_lm_weights"] > 0
    rows = np.nonzero(used)[0]
    chosen = out["masked_lm_positions"][used]
    now, before = out["input_word_ids"][rows, chosen], ids[rows, chosen]
    n = len(before)
    assert n == pytest.approx(400 * 20, rel=0.01 if whole_word else 0)

    def within(found, share):  # four standard deviations of a binomial share
        return abs(found.mean() - share) < 4 * np.sqrt(share * (1 - share) / n)

    assert within(now == MASK, 0.8)
    # A random token is the old one in 1 of 600 cases.
    assert within((now != MASK) & (now != before), 0.1 * (1 - 1 / 600))
    random_tokens = now[(now != MASK) & (now != before)]
    assert len(np.unique(random_tokens)) > 0.6 * 600
    # Every position is as likely as the others: chi-square over 100 of them.
    if not whole_word:
        maskable = (ids >= 5).sum(axis=0)[1:-1]
        hits = np.bincount(chosen, minlength=102)[1:-1]
        expected = maskable * n / maskable.sum()
        chi_square = ((hits - expected) ** 2 / expected).sum()
        assert chi_square < 99 + 4 * np.sqrt(2 * 99)


def test_words_are_masked_as_by_berts_loop(tokenizer):
    """Words in the order of their scores, without those that no longer fit."""
    rng = np.random.default_rng(4)
    ids = make_rows([40] * 50, rng)
    maskable, continues = ids >= 5, ids >= 5 + N_WORDS
    score = rng.random(ids.shape).astype(np.float32)
    budget = rng.integers(2, 12, len(ids)).astype(np.int32)
    chosen = masking._choose_words(
        *map(tf.constant, (maskable, score, continues, budget))
    )
    for row, found in enumerate(chosen.numpy()):
        words = np.cumsum(~continues[row]) - 1
        wanted, left = set(), budget[row]
        for first in sorted(
            set(words[maskable[row]]), key=lambda word: score[row, word]
        ):
            pieces = set(np.flatnonzero((words == first) & maskable[row]))
            if len(pieces) <= left:
                wanted, left = wanted | pieces, left - len(pieces)
        assert set(np.flatnonzero(found)) == wanted


def test_no_word_fits_then_a_part_of_the_first_is_masked(tokenizer):
    ids = np.array([[CLS, 5, 405, 406, 407, SEP]], np.int32)
    out = mask(ids, tokenizer, MaskingConfig(rate=0.3, whole_word=True))
    assert out["masked_lm_positions"].tolist() == [[1, 2]]


def test_rows_without_a_token_to_mask_get_no_weight(tokenizer):
    ids = np.array([[CLS, SEP, PAD], [CLS, UNK, SEP], [PAD, PAD, PAD]], np.int32)
    for whole_word in (False, True):
        out = mask(ids, tokenizer, MaskingConfig(whole_word=whole_word))
        assert (out["input_word_ids"] == ids).all()
        assert out["masked_lm_weights"].tolist() == [[0.0]] * 3


def test_the_seed_decides(tokenizer):
    ids = make_rows([60] * 8, np.random.default_rng(3))
    first, again = (mask(ids, tokenizer, MaskingConfig(), (3, 4)) for _ in range(2))
    other = mask(ids, tokenizer, MaskingConfig(), (3, 5))
    for name in first:
        assert (first[name] == again[name]).all()
    assert (first["masked_lm_positions"] != other["masked_lm_positions"]).any()


@pytest.mark.parametrize("unit", ["tokens", "characters"])
def test_a_span_goes_into_each_text_that_is_long_enough(tokenizer, unit):
    """Against every place that a span of two units may take."""
    words = [f"w{number}" for number in range(8, 14)]
    long, short = " ".join(words), " ".join(words[1:])

    def tokens(text):
        return tokenizer.tokenize(tf.constant([text])).to_list()[0]

    units, join = (long, tokens) if unit == "characters" else (tokens(long), list)
    before = [units[:start] for start in range(len(units) - 1)]
    if unit == "characters":
        before = [text.rstrip() for text in before]
    possible = {
        (*join(left), MASK, *join(units[start + 2 :]))
        for start, left in enumerate(before)
    }
    texts = tf.constant([long, short] * 100)
    span = span_masking.SpanConfig(length=2, unit=unit, shortest=len(units))
    seed = tf.constant([1, 2])
    rows = span_masking.mask_span(
        texts, tokenizer.tokenize(texts), tokenizer, span, seed
    ).to_list()
    assert {tuple(row) for row in rows[::2]} == possible and len(possible) >= 5
    assert rows[1::2] == [tokens(short)] * 100


def test_shares_of_one_kind(tokenizer):
    ids = make_rows([60] * 8, np.random.default_rng(4))
    kept = MaskingConfig(mask_token_share=0.0, random_token_share=0.0)
    assert (mask(ids, tokenizer, kept)["input_word_ids"] == ids).all()
    all_masks = mask(ids, tokenizer, MaskingConfig(mask_token_share=1.0))
    n_masks = (all_masks["input_word_ids"] == MASK).sum()
    assert n_masks == all_masks["masked_lm_weights"].sum()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"rate": 0.0}, "rate is 0.0; allowed: above 0 to 1"),
        ({"rate": 1.5}, "rate is 1.5"),
        ({"max_predictions": -1}, "is -1; allowed: 0 \\(no limit\\), or at least 1"),
        (
            {"mask_token_share": 0.95},
            "random_token_share is 0.1; allowed: at most 0.05",
        ),
        (
            {"mask_token_share": 0.25, "random_token_share": 0.8},
            "random_token_share is 0.8; allowed: at most 0.75",
        ),
        ({"random_token_share": -0.1}, "random_token_share is -0.1; allowed: 0 to 1"),
    ],
)
def test_wrong_values_are_named(changes, message):
    fields.check(MaskingConfig())
    fields.check(MaskingConfig(mask_token_share=0.25, random_token_share=0.75))
    with pytest.raises(UserError, match=message):
        fields.check(MaskingConfig(**changes))
