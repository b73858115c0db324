"""Learns a vocabulary from text, and writes it with its rules."""

from __future__ import annotations

import collections
import logging
import math
import string
import time
import unicodedata
from collections.abc import Mapping, Set
from typing import Any

import tensorflow as tf

from cmlm.common import atomic, checksums, outputs
from cmlm.data import corpus, languages
from cmlm.errors import UserError
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.rules import JOINER, Rules
from cmlm.vocabulary import accents, wordpiece
from cmlm.vocabulary import words as words_lib
from cmlm.vocabulary.settings import VocabularyConfig

# The learner's time and memory grow with the number of distinct words. Where there are
# spaces between words, words beyond the most frequent ones make up about 1 % of a large
# text and hardly change the pieces.
_MIN_LEARNER_WORDS = 100_000
_LEARNER_WORDS_PER_TOKEN = 2
# The learner's memory grows with the square of a word's length. Longer words, such as
# phrases of Thai, are cut.
_MAX_WORD_LENGTH = 50
# At a lower threshold, words that occur once would be whole pieces. No piece would be
# learnt from their parts, so other text would fall into single characters.
_MIN_THRESHOLD = 2
# Share of a text's characters that may lack a token: one foreign letter in a hundred
# thousand is not worth two tokens, the letter and its ## form.
_UNCOVERED_CHARACTERS = 1e-5
# Passes of the learner, each with more characters.
_MOST_PASSES = 3

logger = logging.getLogger(__name__)


def origin(config: VocabularyConfig, files: Mapping[str, list[str]]) -> dict[str, Any]:
    """Describes the source of a vocabulary: settings, and files by size."""
    return {
        "size": config.size,
        "sampling_exponent": config.sampling_exponent,
        "max_text_bytes": config.max_text_bytes,
        "text": checksums.of_values(corpus.listing(files)),
    }


def write(
    tokens: list[str], path: str, rules: Rules, origin: Mapping[str, Any]
) -> None:
    """Writes a vocabulary and its rules.

    Both are on disk before the first gets its name, so a disk that fills up never
    leaves new rules beside an old vocabulary.
    """
    with (
        outputs.named_together(path) as begin,
        atomic.file(path) as vocabulary,
        atomic.file(rules_lib.path_of(path)) as record,
    ):
        vocabulary_file.write(tokens, vocabulary)
        with tf.io.gfile.GFile(record, "w") as file:
            file.write(rules_lib.record(rules, origin))
        begin()


def learn(
    files: Mapping[str, list[str]],
    config: VocabularyConfig,
    output_path: str,
    mark: Mapping[str, str] | None = None,
) -> list[str]:
    """Learns a WordPiece vocabulary from text and writes it.

    Args:
        files: text in the training format, by language.
        config: size, case, and limit of the text to read.
        output_path: file to write, atomically.
        mark: more entries for the origin in the record of the rules.

    Returns:
        The special tokens, single characters, and pieces in order of falling count.

    Raises:
        UserError: the text has no words.
    """
    if config.lower_case and config.strip_accents is None:
        accents.warn_of_stripped(files)
    number = learner_words(config.size)
    counted = dict(
        words_lib.count_languages(files, config.rules(), config.max_text_bytes, number)
    )
    totals = {language: counts.total for language, counts in counted.items()}
    _log_estimates({language: counts.share for language, counts in counted.items()})
    smoothed = words_lib.smooth_and_cut(counted, config.sampling_exponent, number)
    return learn_and_write(smoothed, totals, config, output_path, files, mark)


def learn_and_write(
    smoothed: words_lib.SmoothedCounts,
    totals: Mapping[str, int],
    config: VocabularyConfig,
    output_path: str,
    files: Mapping[str, list[str]],
    mark: Mapping[str, str] | None = None,
) -> list[str]:
    """Learns a vocabulary from counted and smoothed words and writes it.

    Args:
        smoothed: words and their smoothed counts.
        totals: number of words of each language, for the log.
        config: size of the vocabulary, and the exponent of the smoothing.
        output_path: file to write, atomically; its rules go beside it.
        files: the text of the words, by language.
        mark: as for `learn`.

    Raises:
        UserError: there are no words.
    """
    if not smoothed.counts:
        raise UserError(
            "the text has no word to learn a vocabulary from; allowed: at least one"
        )
    began, learnt_from = time.monotonic(), origin(config, files) | (mark or {})
    logger.info(
        "learning a vocabulary of %s tokens from %s words%s",
        f"{config.size:,}",
        f"{sum(totals.values()):,}",
        _shares(totals, config.sampling_exponent) if len(totals) > 1 else "",
    )
    tokens = learn_from_counts(smoothed.counts, config.size, smoothed.once)
    write(tokens, output_path, config.rules(), learnt_from)
    logger.info(
        "vocabulary: %s tokens in %.0f s, %s, %s",
        f"{len(tokens):,}",
        time.monotonic() - began,
        config.rules(),
        output_path,
    )
    if len(tokens) < config.size:
        characters = wordpiece.count_characters(smoothed.counts.items())
        missing = len(characters.keys() - tokens)
        logger.info(
            "the vocabulary has %s tokens instead of %s, because the learner found no "
            "more pieces that occur twice%s",
            f"{len(tokens):,}",
            f"{config.size:,}",
            f"; rare characters without a token: {missing:,}" if missing else "",
        )
    return tokens


def _log_estimates(read: Mapping[str, float]) -> None:
    """Tells which part of the text of each language was read, if it is not all."""
    alone = "it" if len(read) == 1 else "unnamed text"
    told = [
        f"{share:.2%} of {name or alone}" for name, share in read.items() if share < 1
    ]
    if told:
        logger.info(
            "the text is larger than max_text_bytes: read about %s; the numbers of "
            "words are estimates for the whole text",
            ", ".join(told),
        )


def _shares(totals: Mapping[str, int], exponent: float) -> str:
    """Describes the size of each language and its share after smoothing."""
    shares = languages.smoothed_shares(totals, exponent)
    told = ", ".join(
        f"{language or 'unnamed'} {total:,} ({shares[language]:.1%})"
        for language, total in totals.items()
    )
    return f": {told}; shares by number^{exponent:g}"


def learner_words(size: int) -> int:
    """Returns the number of distinct words from which to learn `size` tokens."""
    return max(_MIN_LEARNER_WORDS, _LEARNER_WORDS_PER_TOKEN * size)


def learn_from_counts(
    counts: collections.Counter, size: int, once: Set[str] = frozenset()
) -> list[str]:
    """Learns a vocabulary of `size` tokens from counted words.

    A vocabulary's size depends on a threshold for the count of a piece. tf-text finds
    the threshold by bisection, in about seventeen steps. The size falls nearly as a
    power of the threshold, so the secant method on logarithmic axes needs only about
    four steps. Then the rarest surplus pieces are dropped. Single characters stay,
    because a word with a missing character would be unknown.

    Characters take a quarter of the tokens at most. If the pieces leave tokens free, as
    in Chinese, where a character is a word, further characters take these tokens.

    Args:
        counts: words and their counts.
        size: number of tokens; a text with few pieces that occur twice gives a smaller
            vocabulary.
        once: words that occur once, whatever their count.
    """
    words = words_lib.most_frequent(counts, learner_words(size))
    words, once = _cut(words, once)
    reserved = [*vocabulary_file.SPECIAL_TOKENS, *_ascii_tokens(counts)]
    characters = wordpiece.count_characters(words)
    rare = _UNCOVERED_CHARACTERS * characters.total()
    most_tokens = min(size // 4, size - len(reserved))
    number = _characters_worth_a_token(characters.most_common(), most_tokens, rare)
    threshold = max(_MIN_THRESHOLD, counts.total() // (7 * size))
    tokens: list[str] = []
    for _ in range(_MOST_PASSES):
        learner = wordpiece.Learner(words, reserved, number, once)
        found = _learn_size(learner, size, threshold)
        if tokens and len(found) > size:
            break
        tokens = found
        more = _characters_worth_a_token(learner.left_out, size - len(tokens), rare)
        if not more:
            break
        number += more
    return tokens


def _learn_size(learner: wordpiece.Learner, size: int, threshold: int) -> list[str]:
    """Learns `size` tokens, or as many as the least threshold gives.

    Args:
        learner: the learner of the words.
        size: number of tokens.
        threshold: the first threshold to try.
    """

    def learn(threshold):
        return [
            token
            for token in learner.learn(threshold)
            if not (len(token) == 3 and token[:2] == JOINER and _is_a_word(token[2]))
        ]

    # `low` gives at least `size` tokens, or is the least threshold, which gives the
    # most. `high` gives fewer than `size`, or is the largest count.
    tried: dict[int, list[str]] = {}
    low, high = _MIN_THRESHOLD, learner.most_frequent
    for _ in range(6):
        tried[threshold] = tokens = learn(threshold)
        if len(tokens) >= size:
            low = threshold
            if len(tokens) <= 1.05 * size:
                break
        else:
            high = threshold
        if high - low <= 1 and low in tried:
            break
        threshold = min(max(_next(tried, size), low), high - 1)
        if threshold in tried:
            break
    enough = [tokens for tokens in tried.values() if len(tokens) >= size]
    if not enough:
        enough = [tried.get(low) or learn(low)]
    return _shorten(min(enough, key=len), size)


def _cut(
    words: list[tuple[str, int]], once: Set[str]
) -> tuple[list[tuple[str, int]], Set[str]]:
    """Cuts long words into parts of `_MAX_WORD_LENGTH` characters.

    The later parts of a word begin with `##`.

    Args:
        words: words and their counts.
        once: words that occur once.

    Returns:
        The words and parts with their counts, and those of them that occur once.
    """
    counts: collections.Counter = collections.Counter()
    alone = set()
    for word, number in words:
        for begin in range(0, len(word), _MAX_WORD_LENGTH):
            joiner = JOINER if begin else ""
            part = joiner + word[begin : begin + _MAX_WORD_LENGTH]
            (alone.add if word in once and part not in counts else alone.discard)(part)
            counts[part] += number
    return list(counts.items()), alone


def _ascii_tokens(counts: collections.Counter) -> list[str]:
    """Returns ASCII punctuation, and digits and letters alone and inside a word.

    Without these tokens, a vocabulary learnt from prose would turn every `$` or `3D`
    into [UNK].
    """
    cased = any(word != word.lower() for word in counts)
    letters = string.ascii_letters if cased else string.ascii_lowercase
    alone = [*string.punctuation, *string.digits, *letters]
    return alone + [
        f"{JOINER}{character}" for character in alone if character.isalnum()
    ]


def _is_a_word(character: str) -> bool:
    """Tells whether a character is always a word of its own, which needs no `##`."""
    name = unicodedata.name(character, "")
    return name.startswith("CJK ") or unicodedata.category(character).startswith("P")


def _characters_worth_a_token(
    ranked: list[tuple[str, int]], most_tokens: int, rare: float
) -> int:
    """Returns the number of first characters that make up nearly all text.

    Args:
        ranked: characters and their counts, by falling count.
        most_tokens: upper limit for the tokens of these characters. A letter takes two
            tokens, a Chinese character one.
        rare: the last characters lack a token if all of them count at most this.
    """
    uncovered = sum(count for _, count in ranked)
    n_tokens = 0
    for number, (character, count) in enumerate(ranked):
        n_tokens += 1 if _is_a_word(character) else 2
        if uncovered <= rare or n_tokens > most_tokens:
            return number
        uncovered -= count
    return len(ranked)


def _next(tried: dict[int, list[str]], size: int) -> int:
    """Returns the threshold where the secant of the two nearest tries aims at `size`.

    It aims 2 % above `size`, so that surplus pieces can be dropped.
    """
    points = sorted(tried.items(), key=lambda item: abs(math.log(len(item[1]) / size)))
    (x0, y0) = math.log(points[0][0]), math.log(len(points[0][1]))
    slope = -0.8  # Measured on English text; used until two tries differ.
    if len(points) > 1:
        (x1, y1) = math.log(points[1][0]), math.log(len(points[1][1]))
        if x1 != x0 and y1 != y0:
            slope = (y1 - y0) / (x1 - x0)
    aim = math.log(1.02 * size)
    return max(1, round(math.exp(x0 + (aim - y0) / slope)))


def _shorten(tokens: list[str], size: int) -> list[str]:
    """Drops the rarest pieces of several characters until `size` tokens are left."""
    excess = len(tokens) - size
    kept = []
    for token in reversed(tokens):
        piece = token.removeprefix(JOINER) or token
        if (
            excess > 0
            and len(piece) > 1
            and token not in vocabulary_file.SPECIAL_TOKENS
        ):
            excess -= 1
        else:
            kept.append(token)
    return kept[::-1]
