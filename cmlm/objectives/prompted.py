"""Prompts for the two texts of a pair, such as E5's for queries and passages."""

from __future__ import annotations

import dataclasses
import itertools
import logging

from cmlm.common import fields
from cmlm.data import bitext
from cmlm.errors import UserError, shown
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives.base import Data, ObjectiveConfig

logger = logging.getLogger(__name__)

# So many lines at the start of a file show whether the texts have prompts already.
_ROWS_TO_INSPECT = 100


@dataclasses.dataclass
class PromptedConfig(ObjectiveConfig):
    """An objective on pairs of texts, each of which may follow a prompt.

    Attributes:
        prompts: names of the encoder's prompts (`model.prompts`), such as `[query,
            passage]`: of the first and of the second text, or one name for both. A hard
            negative gets the prompt of the second text. Empty: the texts get none.
    """

    prompts: tuple[str, ...] = ()

    def prompt_texts(self, model: EncoderConfig) -> tuple[str, str]:
        """The prompts of the first and of the second text; "" for none."""
        known = model.named_prompts
        first, second = (self.prompts * 2)[:2] or ("", "")
        return known.get(first, ""), known.get(second, "")

    def check_model(self, prefix: str, model: EncoderConfig) -> None:
        super().check_model(prefix, model)
        known = model.named_prompts
        if len(self.prompts) > 2 or not known.keys() >= {*self.prompts}:
            allowed = f"one or two of {', '.join(known)}, the names of model.prompts"
            if not known:
                allowed = "none, because model.prompts is empty"
            raise fields.refused(f"{prefix}prompts", self.prompts, allowed)

    def check_data(self, data: Data, model: EncoderConfig) -> None:
        super().check_data(data, model)
        if not self.prompts:
            return
        first, second = map(shown, self.prompt_texts(model))
        logger.info(
            "prompts: %s before the first text, %s before the second", first, second
        )
        for corpus in data.corpora:
            for path in [path for paths in corpus.files.values() for path in paths]:
                self._refuse_doubled(path, model)

    def _refuse_doubled(self, path: str, model: EncoderConfig) -> None:
        """Raises UserError if the texts of a column begin with its prompt."""
        rows = [*itertools.islice(bitext.first_rows(path), _ROWS_TO_INSPECT)]
        for column, prompt in enumerate(self.prompt_texts(model)):
            # A prompt of spaces would be lost in the file.
            begins = prompt.strip()
            if begins and rows and all(row[column].startswith(begins) for row in rows):
                raise UserError(
                    f"column {column + 1} of {path} begins with {shown(begins)}, which "
                    f"the setting prompts={list(self.prompts)} adds; allowed: texts "
                    "without the prompt, or prompts=[]"
                )
