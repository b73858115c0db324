"""WordPiece vocabularies: one that exists, or one learnt from the training text."""

from __future__ import annotations

import collections
import dataclasses
import logging
import math
import os
import string
import time
from collections.abc import Mapping

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text
from official.modeling import hyperparams
from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as learner,
)

from cmlm import files as files_lib
from cmlm.data import streams
from cmlm.errors import UserError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FILE_NAME = "vocab.txt"
# The learner's time grows with the number of distinct words; those beyond the most
# frequent ones hold about 1 % of a text and move hardly a piece.
MAX_LEARNER_WORDS = 100_000
# Distinct words to count at a time; above it, words seen once are forgotten.
_MAX_COUNTED_WORDS = 3_000_000
_MAX_WORD_LENGTH = 50
# Share of all characters that may be left without a token: one stray foreign letter
# in a hundred thousand must not cost two tokens, the letter and its ## form.
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
        max_text_bytes: text to learn from, from the start of each language's corpus.
        sampling_exponent: where languages are named, the words of each count in
            proportion to their number to this power (LaBSE, CMLM: 0.3).
    """

    file: str = ""
    size: int = 30_522
    lower_case: bool = True
    max_text_bytes: int = 256 * 2**20
    sampling_exponent: float = 0.3

    def validate(self) -> None:
        """Raises UserError where a value makes no sense."""
        if self.size < 200:
            raise UserError(f"vocabulary size={self.size}: allowed is 200 or more")
        if self.max_text_bytes < 1:
            raise UserError(
                f"vocabulary max_text_bytes={self.max_text_bytes}: allowed is 1 or more"
            )
        if not 0 <= self.sampling_exponent <= 1:
            raise UserError(
                f"vocabulary sampling_exponent={self.sampling_exponent}: "
                "allowed is 0 to 1"
            )


def load(path: str) -> list[str]:
    """Reads a vocabulary, one token a line, its id being its line.

    Raises:
        UserError: the file is missing, empty, has a token twice or an empty line, or
            lacks one of BERT's special tokens.
    """
    if not tf.io.gfile.exists(path):
        raise UserError(f"vocabulary {path} does not exist")
    with files_lib.open_text(path) as lines:
        tokens = [line.rstrip("\r\n") for line in lines]
    if not any(tokens):
        raise UserError(f"vocabulary {path} is empty")
    missing = [token for token in SPECIAL_TOKENS if token not in tokens]
    if missing:
        raise UserError(
            f"vocabulary {path} lacks {', '.join(missing)}: it needs"
            f" {' '.join(SPECIAL_TOKENS)}, each on a line of its own"
        )
    first: dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if not token:
            raise UserError(f"vocabulary {path}: line {number} is empty")
        if token in first:
            raise UserError(
                f"vocabulary {path} has {token!r} twice: lines {first[token]} and"
                f" {number}"
            )
        first[token] = number
    return tokens


def prepare(
    config: VocabularyConfig, files: Mapping[str, list[str]], model_dir: str
) -> str:
    """Puts the vocabulary of a run at `model_dir/vocab.txt` and returns that path.

    It is `config.file` where that is given, else the one that is there, else one
    learnt from `files`.

    Raises:
        UserError: the vocabulary is not usable, or `config.file` is another one than
            the run was begun with.
    """
    target = os.path.join(model_dir, FILE_NAME)
    present = tf.io.gfile.exists(target)
    if config.file:
        tokens = load(config.file)
        if present and load(target) != tokens:
            raise UserError(
                f"vocabulary {config.file} is not the one this model was begun with,"
                f" {target}: use that or another model_dir"
            )
        if not present:
            _write(tokens, target)
    elif not present:
        learn(files, config, target)
    load(target)
    return target


def learn(
    files: Mapping[str, list[str]], config: VocabularyConfig, output_path: str
) -> list[str]:
    """Learns a WordPiece vocabulary from text and writes it.

    Args:
        files: text in the training format, by language.
        config: size, case, and how much text to read.
        output_path: where to write it, atomically.

    Returns:
        The tokens: the special ones, single characters, then by falling count.
    """
    config.validate()
    began = time.monotonic()
    by_language = {
        language: count_words(paths, config.lower_case, config.max_text_bytes)
        for language, paths in files.items()
    }
    counts = smooth(by_language, config.sampling_exponent)
    if not counts:
        paths = [path for of in files.values() for path in of]
        raise UserError(f"no word in {', '.join(paths[:3])}: no vocabulary to learn")
    logger.info(
        "learning a vocabulary of %d tokens from %d words",
        config.size,
        sum(counts.values()),
    )
    tokens = learn_from_counts(counts, config.size)
    _write(tokens, output_path)
    logger.info(
        "vocabulary: %d tokens in %.0f s, %s",
        len(tokens),
        time.monotonic() - began,
        output_path,
    )
    return tokens


def _write(tokens: list[str], path: str) -> None:
    with files_lib.atomic_text(path) as file:
        file.writelines(f"{token}\n" for token in tokens)


def count_words(
    files: list[str], lower_case: bool, max_text_bytes: int
) -> collections.Counter:
    """Counts words as the tokenizer sees them before it cuts them into pieces.

    Args:
        files: text in the training format.
        lower_case: count lower-cased words without accents.
        max_text_bytes: stop after this much text.

    Returns:
        Counter of str; flat in memory, as rare words are forgotten if there are
        millions.
    """
    normalizer = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=lower_case)
    # A vocabulary without usable pieces (the normaliser removes control characters)
    # makes each word one [UNK], whose offsets are the word's: the very rules of the
    # tokenizer, at its speed.
    splitter = tf_text.FastWordpieceTokenizer(
        ["[UNK]", "\x01"], token_out_type=tf.int32
    )

    def words(lines):
        n_bytes = tf.reduce_sum(tf.strings.length(lines))
        lines = tf.strings.unicode_transcode(lines, "UTF-8", "UTF-8")
        lines = normalizer.normalize(lines)
        _, begins, ends = splitter.tokenize_with_offsets(lines)
        per_word = tf.repeat(lines, begins.row_lengths())
        begins, ends = begins.values, ends.values
        found = tf.strings.substr(
            per_word, tf.cast(begins, tf.int32), tf.cast(ends - begins, tf.int32)
        )
        unique, _, count = tf.unique_with_counts(found)
        return n_bytes, unique, count

    counts: collections.Counter = collections.Counter()
    seen = 0
    chunks = streams.sentences(files).batch(streams.LINES_PER_CHUNK)
    for n_bytes, unique, count in chunks.map(words).prefetch(2).as_numpy_iterator():
        counts.update(dict(zip(unique.tolist(), count.tolist(), strict=True)))
        if len(counts) > _MAX_COUNTED_WORDS:
            counts = collections.Counter({w: n for w, n in counts.items() if n > 1})
        seen += int(n_bytes)
        if seen >= max_text_bytes:
            break
    return collections.Counter({w.decode(): n for w, n in counts.items()})


def smooth(
    by_language: Mapping[str, collections.Counter], exponent: float
) -> collections.Counter:
    """Adds up word counts so that language l has a share in proportion to n_l^exponent.

    The largest language keeps its counts, so that the others' are scaled up and no rare
    word rounds to nothing.

    Args:
        by_language: words and how often each occurs.
        exponent: 1 adds the counts as they are.
    """
    sizes = {language: counts.total() for language, counts in by_language.items()}
    largest = max(sizes.values())
    total: collections.Counter = collections.Counter()
    for language, counts in by_language.items():
        if sizes[language]:
            factor = (largest / sizes[language]) ** (1 - exponent)
            total.update(
                {word: round(count * factor) for word, count in counts.items()}
            )
    return total


def learn_from_counts(counts: collections.Counter, size: int) -> list[str]:
    """Learns a vocabulary of `size` tokens from counted words.

    The learner takes a threshold on the count of a piece and looks for the one that
    gives the size by halving. The size falls with the threshold nearly as a power, so
    that the secant on logarithmic axes finds it in about four steps instead of
    seventeen. What is over the size then goes from the end, rarest pieces first;
    single characters stay, as without them a word would be unknown.

    Args:
        counts: words and how often each occurs.
        size: number of tokens; a text with few pieces gives fewer.
    """
    words = counts.most_common(MAX_LEARNER_WORDS)
    max_characters = min(_characters_worth_a_token(words), size // 8)

    def at(threshold: int) -> list[str]:
        return learner.learn(
            words,
            vocab_size=size,
            reserved_tokens=[*SPECIAL_TOKENS, *_ascii_tokens(counts)],
            lower_thresh=threshold,
            upper_thresh=threshold,
            max_token_length=_MAX_WORD_LENGTH,
            max_unique_chars=max_characters,
        )

    # Invariant: `large` gives size tokens or more; a threshold of 1 gives the most.
    threshold = max(1, counts.total() // (7 * size))
    tried: dict[int, list[str]] = {}
    low, high = 1, max(counts.values())
    for _ in range(6):
        tried[threshold] = tokens = at(threshold)
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
        enough = [tried.get(low) or at(low)]
    return _shorten(min(enough, key=len), size)


def _ascii_tokens(counts: collections.Counter) -> list[str]:
    """Every ASCII character, whether the text has it or not, alone and in a word.

    A vocabulary learnt from prose would else read every `$` or `3D` as unknown.
    """
    cased = any(word != word.lower() for word in counts)
    letters = string.ascii_letters if cased else string.ascii_lowercase
    alone = [*string.punctuation, *string.digits, *letters]
    return alone + [f"##{character}" for character in alone if character.isalnum()]


def _characters_worth_a_token(words: list[tuple[str, int]]) -> int:
    """The number of most frequent characters that make up nearly all of a text."""
    counts: collections.Counter = collections.Counter()
    for word, count in words:
        for character in word:
            counts[character] += count
    uncovered = counts.total()
    allowed = _UNCOVERED_CHARACTERS * uncovered
    for number, (_, count) in enumerate(counts.most_common()):
        if uncovered <= allowed:
            return number
        uncovered -= count
    return len(counts)


def _next(tried: dict[int, list[str]], size: int, last: int) -> int:
    """The threshold where the secant through the two nearest tries meets the size."""
    points = sorted(tried.items(), key=lambda item: abs(math.log(len(item[1]) / size)))
    (x0, y0) = math.log(points[0][0]), math.log(len(points[0][1]))
    slope = -0.8  # as measured on English text, for want of a second point
    if len(points) > 1:
        (x1, y1) = math.log(points[1][0]), math.log(len(points[1][1]))
        if x1 != x0 and y1 != y0:
            slope = (y1 - y0) / (x1 - x0)
    aim = math.log(1.02 * size)
    return max(1, round(math.exp(x0 + (aim - y0) / slope)))


def _shorten(tokens: list[str], size: int) -> list[str]:
    """Drops the rarest pieces of more than one character until `size` are left."""
    excess = len(tokens) - size
    kept = []
    for token in reversed(tokens):
        piece = token[2:] if token.startswith("##") and len(token) > 2 else token
        if excess > 0 and len(piece) > 1 and token not in SPECIAL_TOKENS:
            excess -= 1
        else:
            kept.append(token)
    return kept[::-1]


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How a vocabulary fits a text: shares of its words and tokens, and their ratio."""

    words_in_one_piece: float
    tokens_per_word: float
    unknown_tokens: float


def coverage(tokenizer, counts: collections.Counter) -> Coverage:
    """Measures how a tokenizer cuts counted words.

    Args:
        tokenizer: a `tokenization.Tokenizer`.
        counts: words and how often each occurs, from `count_words`.
    """
    pieces = tokenizer.tokenize(tf.constant(list(counts)))
    occurrences = np.array(list(counts.values()), np.float64)
    unknown = tf.reduce_any(pieces == tokenizer.unk_id, axis=1).numpy()
    lengths = pieces.row_lengths().numpy()
    whole = (lengths == 1) & ~unknown
    n_words, n_tokens = occurrences.sum(), (occurrences * lengths).sum()
    return Coverage(
        words_in_one_piece=float(occurrences[whole].sum() / n_words),
        tokens_per_word=float(n_tokens / n_words),
        unknown_tokens=float(occurrences[unknown].sum() / n_tokens),
    )
