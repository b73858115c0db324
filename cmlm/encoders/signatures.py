"""The table of the serving model's signatures.

| signature         | inputs                              | outputs                 |
|-------------------|-------------------------------------|-------------------------|
| `serving_default` | `text`                              | `default`, as trained   |
| `normalized`      | `text`                              | `normalized`, length 1  |
| `tensors`         | the three tensors                   | `default`               |
| `pcr`             | `text`, `language`                  | `pcr`, `language_index` |
| `pcr_tensors`     | the three tensors, `language_index` | `pcr`, `language_index` |

`text` and `language` are strings [n]. The three tensors are the preprocessor's outputs,
`input_word_ids`, `input_mask` and `input_type_ids`, int32 [n, seq]. `language_index` is
int32 [n]. Vectors are float32 [n, dim]. n is any number, 0 included.

`export/serving.py` builds a signature for each row. `served_model` and `export.client`
request the signatures, and `export/saved_models.py` compares their vectors with the
vectors of the checkpoint.
"""

from __future__ import annotations

import dataclasses

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
