"""The settings of a vocabulary, `vocabulary.*`."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Collection, Mapping
from typing import Any, Optional

from official.modeling import hyperparams

from cmlm.common import choices, fields
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization import tokenizer_file, vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.opening import open_tokenizer
from cmlm.tokenization.rules import Rules

logger = logging.getLogger(__name__)


@dataclasses.dataclass
class VocabularyConfig(hyperparams.Config):
    """The vocabulary: WordPiece, or the tokenizer of a `tokenizer.json`.

    Attributes:
        file: an existing vocabulary, one token a line, or a `tokenizer.json`; empty to
            learn a WordPiece vocabulary. The rules in a `tokenizer.json`, or in the
            file beside a vocabulary of this project, replace the defaults below, and
            a stated setting must agree with them. Without rules, the vocabulary is of
            lower-cased text if no token has a capital, unless `lower_case` is stated.
        size: tokens of a learnt vocabulary, special ones included. A small text gives
            fewer, because a piece must occur twice.
        lower_case: lower-case the text.
        strip_accents: drop accents, so that é is e; null: if `lower_case` is set, as in
            BERT.
        dotless_i: with `lower_case`, I becomes ı and İ becomes i; null: if all text is
            named as Turkish or Azerbaijani (`tr`, `az`).
        normalization: Unicode normalization form of the text: `nfc`, `nfkc`, or empty
            for the text as it is.
        style: `tf-text`, or `hugging-face` for the ids of Hugging Face's BertTokenizer:
            ß stays, and no word ends at a control character.
        max_text_bytes: most bytes to learn from, of a language's text and of each
            column of its bitext. The run reads several files at once.
        sampling_exponent: with several languages, the words of language l count in
            proportion to n_l^sampling_exponent, where n_l is the number of words of
            language l, estimated by the sizes of its files if max_text_bytes leaves out
            a part of its text. LaBSE (section 3.2) and CMLM (section 4.4) use 0.3.
        max_word_bytes: words of more bytes are [UNK]. Weights from other programs have
            their own limit: tf-text's is 100 bytes.
        max_word_characters: words of more characters are [UNK]; 0: no such limit. The
            limit is 100 characters in Hugging Face and 200 in BERT's own code.
        max_unknown_share: the largest share of [UNK] among the tokens of the training
            text, for each language. A run with a larger share stops before its first
            step.
    """

    file: str = ""
    size: int = fields.ranged(30_522, at_least=200)
    lower_case: bool = True
    strip_accents: Optional[bool] = None
    dotless_i: Optional[bool] = None
    normalization: str = fields.one_of("", choices.NORMALIZATIONS)
    style: str = fields.one_of("tf-text", choices.TOKENIZER_STYLES)
    max_text_bytes: int = fields.ranged(256 * 2**20, at_least=1)
    sampling_exponent: float = fields.ranged(0.3, at_least=0, at_most=1)
    max_word_bytes: int = fields.ranged(rules_lib.MAX_WORD_BYTES, at_least=1)
    max_word_characters: int = fields.ranged(0, at_least=0)
    max_unknown_share: float = fields.ranged(0.2, at_least=0, at_most=1)

    def rules(self) -> Rules:
        """Returns the rules of the vocabulary."""
        values = {name: getattr(self, name) for name in rules_lib.NAMES}
        return Rules(**values | {"dotless_i": bool(self.dotless_i)})

    def tokenizer(self, path: str) -> Tokenizer:
        """Returns the tokenizer of a vocabulary file with these settings."""
        return open_tokenizer(path, self.rules())

    def adopt_rules(
        self,
        found: Mapping[str, Any],
        path: str = "",
        given: Collection[str] = (),
        prefix: str = "vocabulary.",
    ) -> None:
        """Takes over the rules that belong to a vocabulary.

        Args:
            found: values by name, see `Rules`.
            path: where they come from, for messages.
            given: the settings that the user has set, such as `vocabulary.lower_case`.
            prefix: begins the names in `given` and in messages; `--` for flags.

        Raises:
            UserError: a given setting differs.
        """
        for name, value in found.items():
            stated = getattr(self, name)
            if f"{prefix}{name}" in given and stated not in (None, value):
                raise fields.refused(
                    f"{prefix}{name}", stated, f"{value}, as {path} says"
                )
        for name, value in found.items():
            setattr(self, name, value)

    def adopt_file(
        self, given: Collection[str] = (), prefix: str = "vocabulary."
    ) -> None:
        """Takes over the rules of `file`.

        They stand beside it (see `cmlm.tokenization.rules`). Without them, a vocabulary
        without any capital is lower-cased, and one with capitals is not, unless the
        user says.

        Args:
            given, prefix: see `adopt_rules`.

        Raises:
            UserError: a given setting differs, or the file is unusable.
        """
        if vocabulary_file.is_json(self.file):
            found = tokenizer_file.read(self.file).rules
            self.adopt_rules(found.as_dict(), self.file, given, prefix)
            return
        record = rules_lib.read(self.file)
        if record is not None:
            self.adopt_rules(record.rules, record.path, given, prefix)
            return
        judged = f"{prefix}lower_case" not in given
        if judged:
            tokens = vocabulary_file.load(self.file)
            self.lower_case = rules_lib.looks_lower_case(tokens)
        logger.info(
            "%s has no %s beside it: %s%s",
            self.file,
            os.path.basename(rules_lib.path_of(self.file)),
            self.rules(),
            ", judged by its capitals" if judged else "",
        )
