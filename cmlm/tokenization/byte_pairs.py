"""Byte-level byte-pair encoding, as in GPT-2 and RoBERTa, with graph ops.

A text is split into words by GPT-2's regular expression. A word begins as a sequence of
bytes. The pair of neighbours with the lowest rank in the list of merges becomes one
token, until the list has no pair of the word.

Reference: Sennrich et al., arXiv:1508.07909, section 3.2; Radford et al., 2019, section
2.2.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from cmlm.tokenization import tokenizer_file
from cmlm.tokenization.base import Tokenizer, word_borders

# Unicode's White_Space, as in the regular expressions of other programs. RE2's \s knows
# ASCII only.
_SPACE = (
    r"\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}"
)
# A noncharacter, which no text may exchange. It marks a border that RE2 cannot express.
_BORDER = "\ufdd0"
_WORD = (
    r"'s|'t|'re|'ve|'m|'ll|'d"
    r"| ?\p{L}+| ?\p{N}+"
    rf"| ?[^{_SPACE}\p{{L}}\p{{N}}{_BORDER}]+"
    rf"|[{_SPACE}]+"
)
# Between these two characters one word ends and another begins, whatever follows.
_END_OF_WORD = rf"\p{{L}}[^\p{{L}}]|\p{{N}}[^\p{{N}}]|[^{_SPACE}][{_SPACE}]"
# A long text is cut at the first end of a word in this many characters.
_SEARCHED = 1024
_NO_RANK = np.iinfo(np.int64).max
# The windows of a long word begin this many bytes apart. A window is twice as long.
_STRIDE = 64


class BytePairs(Tokenizer):
    """Byte-level BPE with the ids of Hugging Face's `ByteLevel` and `BPE`.

    Args:
        vocab_file: a `tokenizer.json` with a BPE model.
        found: the contents of that file.
    """

    title = "byte-level BPE"

    def __init__(self, vocab_file: str, found: tokenizer_file.TokenizerFile):
        super().__init__(vocab_file, found, found.rules)
        self._prefix_space = found.prefix_space
        ids = {token: number for number, token in enumerate(found.tokens)}
        self._byte_ids = np.array(
            [ids[letter] for letter in tokenizer_file.BYTE_LETTERS], np.int64
        )
        keys = [ids[a] * self.vocab_size + ids[b] for a, b in found.merges]
        self._order = np.argsort(np.array(keys, np.int64), kind="stable")
        self._keys = np.array(keys, np.int64)[self._order]
        # A token has a letter for each byte.
        self._sizes = np.array([len(token) for token in found.tokens], np.int64)
        self._merged = np.array([ids[a + b] for a, b in found.merges], np.int64)
        first_use = np.full(self.vocab_size, len(keys))
        for rank, pair in reversed(list(enumerate(found.merges))):
            first_use[[ids[token] for token in pair]] = rank
        # A merge that makes a pair of a lower rank, which learnt lists hardly have.
        self._opens_lower = first_use[self._merged] < np.arange(len(keys))
        texts = [tokenizer_file.text_of(token) for token in found.tokens]
        self._word_borders = word_borders(texts, self.is_special)

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        words = self._split(text)
        distinct, place = tf.unique(words.values)
        tokens = tf.gather(self._merge(distinct), place)
        by_text = words.with_values(tokens)
        return tf.cast(by_text.merge_dims(1, 2), tf.int32)

    def _beginning(self, text: tf.Tensor, number: int) -> tf.Tensor:
        """Cuts long texts at the end of a word behind their first `number` tokens.

        A token has at least a byte of each of its characters, so these tokens end
        within `number` times the longest token. A text stays whole if a word longer
        than `_SEARCHED` begins there.
        """
        most = int(number * self._sizes.max())

        def cut():
            begin = tf.minimum(tf.strings.length(text, "UTF8_CHAR"), most)
            rest = tf.strings.substr(
                text, begin, tf.fill(tf.shape(begin), _SEARCHED), "UTF8_CHAR"
            )
            head = tf.strings.substr(text, tf.zeros_like(begin), begin, "UTF8_CHAR")
            end = rf"(?s)^(.*?(?:{_END_OF_WORD})).*$"
            kept = tf.strings.regex_replace(rest, end, r"\1")
            has_end = tf.strings.regex_full_match(rest, end)
            return tf.where(has_end, tf.strings.join([head, kept]), text)

        is_long = tf.reduce_any(tf.strings.length(text) > most)
        return tf.cond(is_long, cut, lambda: text)

    def _split(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Splits valid UTF-8, string [n], into words, string [n, (words)]."""
        if self._prefix_space:
            lacks = ~tf.strings.regex_full_match(text, r"(?s) .*|")
            text = tf.where(lacks, tf.strings.join([" ", text]), text)
        # GPT-2's `\s+(?!\S)` leaves the last white space of a run to the next word. RE2
        # has no look-ahead, so a mark separates that last one.
        # tf-text's op ends a text at NUL.
        text = tf.strings.regex_replace(text, rf"[\x{{0}}{_BORDER}]", "\ufffd")
        text = tf.strings.regex_replace(
            text, rf"([{_SPACE}])([{_SPACE}][^{_SPACE}])", rf"\1{_BORDER}\2"
        )
        return tf_text.regex_split(
            text, rf"{_WORD}|{_BORDER}", keep_delim_regex_pattern=_WORD
        )

    def _merge(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Merges the bytes of string [n] to tokens, int64 [n, (tokens)].

        The time of `_merge_whole` grows with the square of a word's length. A long word
        is therefore merged in windows that overlap by half, and the tokens of two
        windows are joined behind the first token that both have. A word with windows
        that share no token is merged as a whole.

        The joined tokens are the tokens of the whole word: a merge crosses the border
        between two tokens of a word only if it also crosses this border in the text of
        these two alone, and every two neighbours of the joined tokens are neighbours
        in a window, where no merge crossed their border.
        """
        n_words = tf.size(words, tf.int64)
        n_bytes = tf.cast(tf.strings.length(words), tf.int64)
        window_bytes = tf.constant(2 * _STRIDE, tf.int64)
        n_windows = tf.maximum(-(-n_bytes // _STRIDE) - 1, 1)
        word = tf.repeat(tf.range(n_words), n_windows)
        number = tf.range(tf.size(word, tf.int64))
        begin = number - tf.gather(tf.cumsum(n_windows, exclusive=True), word)
        begin *= _STRIDE
        windows = tf.strings.substr(
            tf.gather(words, word), begin, tf.fill(tf.shape(word), window_bytes)
        )
        tokens = self._merge_whole(windows)
        window = tokens.value_rowids()
        size = tf.gather(tf.constant(self._sizes), tokens.values)
        n_bytes = tf.cast(tf.strings.length(windows), tf.int64)
        end = tf.cumsum(size) - tf.gather(tf.cumsum(n_bytes, exclusive=True), window)

        # Windows of two words are further apart than a window is long.
        place = tf.gather(number + word, window) * _STRIDE + end
        _, key, count = tf.unique_with_counts(place * self.vocab_size + tokens.values)
        shared = (tf.gather(count, key) == 2) & (end - size < _STRIDE)
        nowhere = tf.constant(4 * _STRIDE, tf.int64)
        joint = tf.math.unsorted_segment_min(
            tf.where(shared, end, nowhere), window, tf.size(word)
        )
        joint = tf.where(begin == 0, tf.zeros_like(joint), tf.minimum(joint, nowhere))
        next_joint = tf.where(
            tf.roll(begin, -1, 0) == 0, nowhere, tf.roll(joint, -1, 0) + _STRIDE
        )
        apart = tf.math.unsorted_segment_max(joint, word, n_words) == nowhere
        kept = (end > tf.gather(joint, window)) & (end <= tf.gather(next_joint, window))
        kept &= ~tf.gather(apart, tf.gather(word, window))
        joined = tf.RaggedTensor.from_value_rowids(
            tf.boolean_mask(tokens.values, kept),
            tf.boolean_mask(tf.gather(word, window), kept),
            nrows=n_words,
            validate=False,
        )
        return tf.concat([joined, self._merge_whole(tf.where(apart, words, ""))], 1)

    def _merge_whole(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Does the same as `_merge`, for short words.

        A round merges, in every word, the pair with the lowest rank wherever it stands,
        or only the first of them if their merge makes a pair of a lower rank. Words
        without a pair leave the loop.
        """
        n_words = tf.shape(words, tf.int64)[0]
        n_bytes = tf.cast(tf.strings.length(words), tf.int64)
        every_byte = tf.io.decode_raw(tf.strings.reduce_join(words), tf.uint8)
        ids = tf.gather(tf.constant(self._byte_ids), tf.cast(every_byte, tf.int32))
        word = tf.repeat(tf.range(n_words), n_bytes)
        place = tf.range(tf.shape(ids, tf.int64)[0])
        empty = tf.zeros([0], tf.int64)

        def one_round(ids, word, place, done_ids, done_place):
            rank = self._ranks(ids, word)
            lowest = tf.math.unsorted_segment_min(rank, word, n_words)
            lowest = tf.gather(lowest, word)
            open_ = lowest < _NO_RANK
            merge = open_ & (rank == lowest)
            known = tf.minimum(rank, len(self._merged) - 1)
            # In `aaaaa` four pairs have the rank; the first and the third win.
            at = tf.range(tf.size(merge, tf.int64))
            others = tf.concat([[-1], tf.where(~merge)[:, 0]], 0)
            before = tf.gather(others, tf.cumsum(tf.cast(~merge, tf.int32)))
            merge &= (at - before) % 2 == 1
            if self._opens_lower.any():
                place_of = tf.where(merge, at, _NO_RANK)
                first = tf.math.unsorted_segment_min(place_of, word, n_words)
                alone = tf.gather(tf.constant(self._opens_lower), known)
                merge &= ~alone | (at == tf.gather(first, word))
            ids = tf.where(merge, tf.gather(tf.constant(self._merged), known), ids)
            second = tf.concat([[False], merge[:-1]], 0)
            stays = open_ & ~second
            return (
                tf.boolean_mask(ids, stays),
                tf.boolean_mask(word, stays),
                tf.boolean_mask(place, stays),
                tf.concat([done_ids, tf.boolean_mask(ids, ~open_)], 0),
                tf.concat([done_place, tf.boolean_mask(place, ~open_)], 0),
            )

        _, _, _, ids, place_of = tf.while_loop(
            lambda ids, *_: tf.size(ids) > 0,
            one_round,
            (ids, word, place, empty, empty),
            shape_invariants=(tf.TensorShape([None]),) * 5,
            parallel_iterations=1,
        )
        order = tf.argsort(place_of)
        rows = tf.gather(word, tf.gather(place_of, order))
        return tf.RaggedTensor.from_value_rowids(
            tf.gather(ids, order), rows, nrows=n_words, validate=False
        )

    def _ranks(self, ids: tf.Tensor, word: tf.Tensor) -> tf.Tensor:
        """Returns the rank of each token and the next one of its word, int64 [n]."""
        if not len(self._keys):
            return tf.fill(tf.shape(ids), tf.constant(_NO_RANK, tf.int64))
        pair = ids[:-1] * self.vocab_size + ids[1:]
        keys = tf.constant(self._keys)
        index = tf.minimum(tf.searchsorted(keys, pair), len(self._keys) - 1)
        known = (tf.gather(keys, index) == pair) & (word[:-1] == word[1:])
        rank = tf.gather(tf.constant(self._order, tf.int64), index)
        rank = tf.where(known, rank, _NO_RANK)
        # The last token has no next one.
        return tf.concat([rank, tf.fill([tf.minimum(tf.size(ids), 1)], _NO_RANK)], 0)
