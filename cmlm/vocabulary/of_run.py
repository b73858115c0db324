"""The vocabulary of a run: an existing file, or one learnt from the training text."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import tensorflow as tf

from cmlm.errors import UserError
from cmlm.tokenization import rules, vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.vocabulary import coverage, learning
from cmlm.vocabulary.settings import VocabularyConfig

logger = logging.getLogger(__name__)

# Larger shares of [UNK] and of cut texts get a warning.
_SUSPICIOUS_SHARE = 0.02
_SUSPICIOUS_CUTS = 0.5
# The run that has made a vocabulary, in the origin of its record.
_RUN = "run"


def prepare(
    config: VocabularyConfig,
    files: Mapping[str, list[str]],
    model_dir: str,
    model_size: int = 0,
    has_weights: bool = True,
    is_new: bool = False,
) -> str:
    """Puts the vocabulary of a run into its model_dir and returns the path.

    The vocabulary is `config.file` if that is set, else the file that the run has
    already, else a new vocabulary learnt from `files`. Its rules lie beside it.

    Args:
        config: file, size and rules; `dotless_i` is decided in place.
        files: text to learn from, by language.
        model_dir: directory of the run.
        model_size: number of tokens that the model is configured for; 0: any number.
        has_weights: whether `model_dir` has weights for the vocabulary in it. Without
            them, only a vocabulary of the same origin stays there.
        is_new: whether `model_dir` may hold a vocabulary of the user's. The run does
            not replace it.

    Raises:
        UserError: the vocabulary is unusable or does not fit the model, or
            `config.file` differs from the vocabulary that the run has already.
    """
    if config.dotless_i is None:
        config.dotless_i = config.lower_case and rules.has_dotless_i(files)
    found = vocabulary_file.find(model_dir)
    own = found if tf.io.gfile.exists(found) else None
    # The name of its run tells a vocabulary of this run from a copy of another one.
    mark = {_RUN: os.path.basename(os.path.abspath(model_dir))}
    if is_new and own:
        _refuse_foreign(config, files, own, mark)
    if config.file:
        _refuse_other_size(config.file, model_size)
        path = _given(config, model_dir, own, has_weights, mark)
    elif own and (has_weights or _is_learnt_from(config, files, own)):
        path = own
    else:
        if own:
            logger.info(
                "%s was learnt with other text or settings: learning a new one", own
            )
        path = os.path.join(model_dir, vocabulary_file.FILE_NAME)
        learning.learn(files, config, path, mark)
        _remove_others(path)
    _refuse_other_size(path, model_size)
    return path


def _given(
    config: VocabularyConfig,
    model_dir: str,
    own: str | None,
    has_weights: bool,
    mark: Mapping[str, str],
) -> str:
    """Copies `config.file` into a model_dir, unless its vocabulary is there already.

    Args:
        config, model_dir, has_weights: as for `prepare`.
        own: the vocabulary in the model_dir, or None.
        mark: see `_refuse_foreign`.

    Raises:
        UserError: the weights have another vocabulary.
    """
    if own and has_weights:
        if not vocabulary_file.same(config.file, own):
            raise UserError(
                f"{config.file} differs from the run's vocabulary, {own}; "
                "allowed: that file, or another --model_dir"
            )
        return own
    if own and _is_given(config, own):
        if not vocabulary_file.is_json(own) and rules.read(own) is None:
            # Without the mark of the run, the vocabulary still counts as the user's.
            rules.write(own, config.rules(), {"file": config.file})
        return own
    path = os.path.join(model_dir, vocabulary_file.name_of(config.file))
    if vocabulary_file.is_json(path):
        vocabulary_file.copy(config.file, model_dir)
    else:
        tokens = vocabulary_file.load(config.file)
        learning.write(tokens, path, config.rules(), {"file": config.file} | mark)
    _remove_others(path)
    return path


def _remove_others(path: str) -> None:
    """Removes the vocabulary of another tokenizer beside that of a run."""
    for name in vocabulary_file.NAMES:
        other = os.path.join(os.path.dirname(path), name)
        if other != path:
            for left in (other, rules.path_of(other)):
                if tf.io.gfile.exists(left):
                    tf.io.gfile.remove(left)


def _refuse_foreign(
    config: VocabularyConfig,
    files: Mapping[str, list[str]],
    path: str,
    mark: Mapping[str, str],
) -> None:
    """Raises UserError if a new run would replace a vocabulary of the user's.

    Args:
        config, files: as for `prepare`.
        path: the vocabulary in the model_dir.
        mark: the entry of a record by which a run knows its own vocabulary again.
    """
    record = rules.read(path)
    if record is not None and mark.items() <= record.origin.items():
        return
    if config.file:
        stays = _is_given(config, path)
    else:
        stays = _is_learnt_from(config, files, path)
    if not stays:
        raise UserError(
            f"{path} was there before the run, which would replace it; allowed: a new "
            f"--model_dir, with --vocab_file={path} to train with this vocabulary"
        )


def _is_given(config: VocabularyConfig, path: str) -> bool:
    """Whether a vocabulary has the tokens and the rules of `config.file`."""
    if not vocabulary_file.same(config.file, path):
        return False
    # A tokenizer.json holds its rules.
    record = None if vocabulary_file.is_json(path) else rules.read(path)
    return record is None or record.rules.items() <= config.rules().as_dict().items()


def _is_learnt_from(
    config: VocabularyConfig, files: Mapping[str, list[str]], path: str
) -> bool:
    """Whether a vocabulary was learnt from this text by these settings."""
    if vocabulary_file.is_json(path):
        return False
    record = rules.read(path)
    return (
        record is not None
        and learning.origin(config, files).items() <= record.origin.items()
        and dict(record.rules) == config.rules().as_dict()
    )


def _refuse_other_size(path: str, model_size: int) -> None:
    """Raises UserError if a vocabulary is unusable, or does not fit the model."""
    tokens = vocabulary_file.load(path)
    if model_size not in (0, len(tokens)):
        raise UserError(
            f"model.vocab_size is {model_size}, {path} has {len(tokens)} entries; "
            f"allowed: a vocabulary of {model_size} entries, or for new weights "
            f"model.vocab_size={len(tokens)}"
        )


def check_coverage(
    config: VocabularyConfig,
    tokenizer: Tokenizer,
    files: Mapping[str, list[str]],
    remedy: str,
    limits: Mapping[str, int],
) -> None:
    """Logs the shares of [UNK] and of cut lines, and refuses text of [UNK]s.

    Args:
        config: the largest share, and the rules for the message.
        tokenizer: the tokenizer of the run.
        files: the training data by language, see `coverage.shares`.
        remedy: what to take for a text of [UNK]s, for the message.
        limits: the length in tokens at which the run cuts the texts of a file, by path.

    Raises:
        UserError: a language has more than `config.max_unknown_share`.
    """
    shares = coverage.shares(tokenizer, files, limits)
    unknown = {name: share.unknown for name, share in shares.items()}
    logger.info("[UNK]: %s of the tokens (%s)", _listed(unknown, 2), tokenizer.rules)
    cut = {name: part.cut for name, part in shares.items() if part.cut is not None}
    if cut:
        logger.log(
            logging.WARNING if max(cut.values()) > _SUSPICIOUS_CUTS else logging.INFO,
            "cut at %s tokens: %s of the lines; seq_length sets this limit",
            " or ".join(map(str, sorted(set(limits.values())))),
            _listed(cut, 1),
        )
    for language, share in unknown.items():
        of = f"{share:.1%} of the {language} tokens".replace("  ", " ")
        if share > config.max_unknown_share:
            raise UserError(
                f"{of} are [UNK] with {tokenizer.vocab_file} ({tokenizer.rules}); "
                f"allowed: at most {config.max_unknown_share:.0%} ({remedy}, or "
                "vocabulary.max_unknown_share=1)"
            )
        if share > _SUSPICIOUS_SHARE:
            cause = "the vocabulary comes from other text, or differs in case"
            if _is_learnt_from(config, files, tokenizer.vocab_file):
                cause = (
                    f"rare characters lack a token at vocabulary.size={config.size}; a "
                    "larger size gives them one"
                )
            logger.warning("%s are [UNK]: %s", of, cause)


def _listed(shares: Mapping[str, float], digits: int) -> str:
    """Formats shares by language in percent."""
    alone = "" if len(shares) == 1 else "unnamed"
    parts = (f"{name or alone} {share:.{digits}%}" for name, share in shares.items())
    return ", ".join(parts).lstrip()
