"""The table of the serving model's signatures.

| signature         | inputs                              | outputs                 |
|-------------------|-------------------------------------|-------------------------|
| `serving_default` | `text`                              | `default`, as trained   |
| name of a prompt  | `text`                              | `default`               |
| `normalized`      | `text`                              | `normalized`, length 1  |
| `tensors`         | the three tensors                   | `default`               |
| `pcr`             | `text`, `language`                  | `pcr`, `language_index` |
| `pcr_tensors`     | the three tensors, `language_index` | `pcr`, `language_index` |

`text` and `language` are strings [n]. The three tensors are the preprocessor's outputs,
`input_word_ids`, `input_mask` and `input_type_ids`, int32 [n, seq]. `language_index` is
int32 [n]. Vectors are float32 [n, dim]. n is any number, 0 included.

A prompt of `model.prompts`, such as `query`, has a signature of its name, which puts
the prompt before each text; `serving_default` adds `model.prompt`, if there is one.

`export/serving.py` builds a signature for each row. `served_model` and `export.client`
request the signatures, and `export/saved_models.py` compares their vectors with the
vectors of the checkpoint.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from cmlm.errors import UserError

TENSORS = ("input_word_ids", "input_mask", "input_type_ids")


@dataclasses.dataclass(frozen=True)
class Signature:
    """One signature of the serving model.

    Attributes:
        inputs: the names of the inputs.
        output: the name of the output with the vectors.
        with_components: whether only an export made with --pcr has the signature.
    """

    inputs: tuple[str, ...]
    output: str
    with_components: bool = False

    @property
    def takes_text(self) -> bool:
        return "text" in self.inputs

    @property
    def takes_language(self) -> bool:
        return "language" in self.inputs


DEFAULT = "serving_default"
SIGNATURES = {
    DEFAULT: Signature(("text",), "default"),
    "normalized": Signature(("text",), "normalized"),
    "tensors": Signature(TENSORS, "default"),
    "pcr": Signature(("text", "language"), "pcr", with_components=True),
    "pcr_tensors": Signature((*TENSORS, "language_index"), "pcr", with_components=True),
}
# The signatures for clients that send strings.
TEXT_SIGNATURES = {name: row for name, row in SIGNATURES.items() if row.takes_text}
_NAME_OF_PROMPT = re.compile(r"[A-Za-z0-9][\w.-]*")


def of_text(name: str, argument: str = "signature") -> Signature:
    """The row of a signature that takes strings; another name is that of a prompt.

    Args:
        name: the name of the signature.
        argument: the argument or flag that has it, for the message.

    Raises:
        UserError: the signature takes tensors.
    """
    if name in SIGNATURES and name not in TEXT_SIGNATURES:
        allowed = f"{', '.join(sorted(TEXT_SIGNATURES))}, or the name of a prompt"
        raise UserError(f"{argument} is {name!r}; allowed: {allowed}")
    return TEXT_SIGNATURES.get(name, SIGNATURES[DEFAULT])


def of_prompts(known: Mapping[str, str]) -> dict[str, Signature]:
    """The signatures of prompts.

    Args:
        known: the prompts by name. A name of another signature, or one that a request
            could not hold, gets no signature. Nor does a placeholder: a client, which
            knows the names alone, would take it for the prompt of documents.
    """
    # Imports TensorFlow, which --help of a client does without.
    from cmlm.common import prompts

    left_out = SIGNATURES.keys() | prompts.placeholders(known)
    return {
        name: SIGNATURES[DEFAULT]
        for name in known
        if name not in left_out and _NAME_OF_PROMPT.fullmatch(name)
    }
