"""The vocabulary of a run: an existing file, or one learnt from the training text."""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import os
import string
import time
import unicodedata
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from official.modeling import hyperparams

from cmlm.common import fields
from cmlm.data import languages, tokenization, vocabulary_file
from cmlm.errors import UserError
from cmlm.vocabulary import wordpiece
from cmlm.vocabulary import words as words_lib

# The learner's time and memory grow with the number of distinct words. Words beyond the
# most frequent ones make up about 1 % of a text and hardly change the pieces.
_MIN_LEARNER_WORDS = 100_000
_LEARNER_WORDS_PER_TOKEN = 2
_MAX_WORD_LENGTH = 50
# Share of a text's characters that may lack a token: one foreign letter in a hundred
# thousand is not worth two tokens, the letter and its ## form.
_UNCOVERED_CHARACTERS = 1e-5

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class VocabularyConfig(hyperparams.Config):
    """The WordPiece vocabulary.

    Attributes:
        file: an existing vocabulary, one token a line; empty to learn one.
        size: tokens of a learnt vocabulary, special ones included. A small text may
            give fewer.
        lower_case: lower-case the text and strip its accents.
        max_text_bytes: bytes to learn from, at the start of each language's corpus.
        sampling_exponent: with several languages, the words of language l count in
            proportion to n_l^sampling_exponent, where n_l is the number of words of
            language l. LaBSE (section 3.2) and CMLM (section 4.4) use 0.3.
        max_word_bytes: words of more bytes are [UNK]. Weights from other programs have
            their own limit: tf-text's is 100 bytes.
        max_word_characters: words of more characters are [UNK]; 0: no such limit. The
            limit is 100 characters in Hugging Face and 200 in BERT's own code.
    """

    file: str = ""
    size: int = fields.ranged(30_522, at_least=200)
    lower_case: bool = True
    max_text_bytes: int = fields.ranged(256 * 2**20, at_least=1)
    sampling_exponent: float = fields.ranged(0.3, at_least=0, at_most=1)
    max_word_bytes: int = fields.ranged(tokenization.MAX_WORD_BYTES, at_least=1)
    max_word_characters: int = fields.ranged(0, at_least=0)

    def tokenizer(self, path: str) -> tokenization.Tokenizer:
        """Returns the tokenizer of a vocabulary file with these settings."""
        return tokenization.Tokenizer(
            path, self.lower_case, self.max_word_bytes, self.max_word_characters
        )

    def adopt_rules(self, other: VocabularyConfig) -> None:
        """Copies the settings of the tokenizer from another configuration."""
        self.lower_case = other.lower_case
        self.max_word_bytes = other.max_word_bytes
        self.max_word_characters = other.max_word_characters


def prepare(
    config: VocabularyConfig,
    files: Mapping[str, list[str]],
    model_dir: str,
    model_size: int = 0,
) -> str:
    """Puts the vocabulary of a run at `model_dir/vocab.txt` and returns that path.

    The vocabulary is `config.file` if that is set, else the file that the run has
    already, else a new vocabulary learnt from `files`.

    Args:
        config: file and size.
        files: text to learn from, by language.
        model_dir: directory of the run.
        model_size: number of tokens that the model is configured for; 0: any number.

    Raises:
        UserError: the vocabulary is unusable or does not fit the model, or
            `config.file` differs from the vocabulary that the run has already.
    """
    target = os.path.join(model_dir, vocabulary_file.FILE_NAME)
    present = tf.io.gfile.exists(target)
    if config.file:
        tokens = vocabulary_file.load(config.file)
        _refuse_other_size(config.file, tokens, model_size)
        if present and vocabulary_file.load(target) != tokens:
            raise UserError(
                f"{config.file} differs from the run's vocabulary, {target}; allowed:"
                " that file, or another --model_dir"
            )
        if not present:
            vocabulary_file.write(tokens, target)
    elif not present:
        learn(files, config, target)
    _refuse_other_size(target, vocabulary_file.load(target), model_size)
    return target


def _refuse_other_size(path: str, tokens: list[str], model_size: int) -> None:
    if model_size not in (0, len(tokens)):
        raise UserError(
            f"model.vocab_size is {model_size}, {path} has {len(tokens)} entries"
        )


def learn(
    files: Mapping[str, list[str]], config: VocabularyConfig, output_path: str
) -> list[str]:
    """Learns a WordPiece vocabulary from text and writes it.

    Args:
        files: text in the training format, by language.
        config: size, case, and limit of the text to read.
        output_path: file to write, atomically.

    Returns:
        The special tokens, single characters, and pieces in order of falling count.

    Raises:
        UserError: the text has no words.
    """
    counted = {
        language: words_lib.count(paths, config.lower_case, config.max_text_bytes).top(
            learner_words(config.size)
        )
        for language, paths in files.items()
    }
    totals = {language: counts.total for language, counts in counted.items()}
    counts = words_lib.smooth(counted, config.sampling_exponent)
    return learn_and_write(counts, totals, config, output_path)


def learn_and_write(
    counts: collections.Counter,
    totals: Mapping[str, int],
    config: VocabularyConfig,
    output_path: str,
) -> list[str]:
    """Learns a vocabulary from counted and smoothed words and writes it.

    Args:
        counts: words and their smoothed counts.
        totals: number of words of each language, for the log.
        config: size of the vocabulary, and the exponent of the smoothing.
        output_path: file to write, atomically.

    Raises:
        UserError: `counts` is empty.
    """
    if not counts:
        raise UserError("the text has no word to learn a vocabulary from")
    began = time.monotonic()
    logger.info(
        "learning a vocabulary of %s tokens from %s words%s",
        f"{config.size:,}",
        f"{sum(totals.values()):,}",
        _shares(totals, config.sampling_exponent) if len(totals) > 1 else "",
    )
    tokens = learn_from_counts(counts, config.size)
    vocabulary_file.write(tokens, output_path)
    logger.info(
        "vocabulary: %s tokens in %.0f s, %s",
        f"{len(tokens):,}",
        time.monotonic() - began,
        output_path,
    )
    return tokens


def _shares(totals: Mapping[str, int], exponent: float) -> str:
    """Describes the size of each language and its share after smoothing."""
    shares = languages.smoothed_shares(totals, exponent)
    told = ", ".join(
        f"{language} {total:,} ({shares[language]:.1%})"
        for language, total in totals.items()
    )
    return f": {told}; shares by number^{exponent:g}"


def learner_words(size: int) -> int:
    """Returns the number of distinct words from which to learn `size` tokens."""
    return max(_MIN_LEARNER_WORDS, _LEARNER_WORDS_PER_TOKEN * size)


def learn_from_counts(counts: collections.Counter, size: int) -> list[str]:
    """Learns a vocabulary of `size` tokens from counted words.

    A vocabulary's size depends on a threshold for the count of a piece. tf-text finds
    the threshold by bisection, in about seventeen steps. The size falls nearly as a
    power of the threshold, so the secant method on logarithmic axes needs only about
    four steps. Then the rarest surplus pieces are dropped. Single characters stay,
    because a word with a missing character would be unknown.

    Args:
        counts: words and their counts.
        size: number of tokens; a text with few pieces gives a smaller vocabulary.
    """
    words = words_lib.most_frequent(counts, learner_words(size))
    learner = wordpiece.Learner(
        words,
        reserved=[*vocabulary_file.SPECIAL_TOKENS, *_ascii_tokens(counts)],
        max_length=_MAX_WORD_LENGTH,
        max_characters=_characters_worth_a_token(words, size // 4),
    )

    def learn(threshold):
        return [
            token
            for token in learner.learn(threshold)
            if not (len(token) == 3 and token[:2] == "##" and _is_a_word(token[2]))
        ]

    # `low` gives at least `size` tokens, or is 1, which gives the most. `high` gives
    # fewer than `size`, or is the largest count.
    threshold = max(1, counts.total() // (7 * size))
    tried: dict[int, list[str]] = {}
    low, high = 1, max(counts.values())
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
        threshold = min(max(_next(tried, size, threshold), low), high - 1)
        if threshold in tried:
            break
    enough = [tokens for tokens in tried.values() if len(tokens) >= size]
    if not enough:
        enough = [tried.get(low) or learn(low)]
    return _shorten(min(enough, key=len), size)


def _ascii_tokens(counts: collections.Counter) -> list[str]:
    """Returns ASCII punctuation, and digits and letters alone and inside a word.

    Without these tokens, a vocabulary learnt from prose would turn every `$` or `3D`
    into [UNK].
    """
    cased = any(word != word.lower() for word in counts)
    letters = string.ascii_letters if cased else string.ascii_lowercase
    alone = [*string.punctuation, *string.digits, *letters]
    return alone + [f"##{character}" for character in alone if character.isalnum()]


def _is_a_word(character: str) -> bool:
    """Tells whether a character is always a word of its own, which needs no `##`."""
    name = unicodedata.name(character, "")
    return name.startswith("CJK ") or unicodedata.category(character).startswith("P")


def _characters_worth_a_token(words: list[tuple[str, int]], most_tokens: int) -> int:
    """Returns the number of most frequent characters that make up nearly all text.

    Args:
        words: words and their counts.
        most_tokens: upper limit for the tokens of these characters. A letter takes two
            tokens, a Chinese character one.
    """
    counts: collections.Counter = collections.Counter()
    for word, count in words:
        for character in word:
            counts[character] += count
    uncovered = counts.total()
    allowed = _UNCOVERED_CHARACTERS * uncovered
    n_tokens = 0
    for number, (character, count) in enumerate(counts.most_common()):
        n_tokens += 1 if _is_a_word(character) else 2
        if uncovered <= allowed or n_tokens > most_tokens:
            return number
        uncovered -= count
    return len(counts)


def _next(tried: dict[int, list[str]], size: int, last: int) -> int:
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
        piece = token.removeprefix("##") or token
        if (
            excess > 0
            and len(piece) > 1
            and token not in vocabulary_file.SPECIAL_TOKENS
        ):
            excess -= 1
        else:
            kept.append(token)
    return kept[::-1]


@dataclasses.dataclass(frozen=True)
class Coverage:
    """The fit of a vocabulary to a text; every occurrence of a word counts.

    Attributes:
        words_in_one_piece: share of words that are one piece.
        tokens_per_word: mean number of tokens; an unknown word is one token.
        unknown_tokens: share of tokens that are [UNK].
        known_words: share of words that are not [UNK].
        known_characters: share of all characters that are in known words.
    """

    words_in_one_piece: float
    tokens_per_word: float
    unknown_tokens: float
    known_words: float
    known_characters: float


def coverage(tokenizer, counts: collections.Counter) -> Coverage:
    """Measures how a tokenizer splits counted words.

    Args:
        tokenizer: a `tokenization.Tokenizer`.
        counts: words and their counts, from `words.count`.
    """
    pieces = tokenizer.tokenize(tf.constant(list(counts)))
    occurrences = np.array(list(counts.values()), np.float64)
    unknown = tf.reduce_any(pieces == tokenizer.unk_id, axis=1).numpy()
    lengths = pieces.row_lengths().numpy()
    whole = (lengths == 1) & ~unknown
    n_words, n_tokens = occurrences.sum(), (occurrences * lengths).sum()
    characters = occurrences * [len(word) for word in counts]
    return Coverage(
        words_in_one_piece=float(occurrences[whole].sum() / n_words),
        tokens_per_word=float(n_tokens / n_words),
        unknown_tokens=float(occurrences[unknown].sum() / n_tokens),
        known_words=float(occurrences[~unknown].sum() / n_words),
        known_characters=float(characters[~unknown].sum() / characters.sum()),
    )
