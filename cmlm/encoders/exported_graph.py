"""An export: its description, and its graph with the methods of a `SentenceGraph`."""

from __future__ import annotations

import copy
import dataclasses
import os

import tensorflow as tf

from cmlm.common import checksums, json_files, prompts
from cmlm.encoders import locating
from cmlm.encoders.fingerprints import check_fingerprint
from cmlm.encoders.signatures import DEFAULT, of_prompts
from cmlm.errors import UserError
from cmlm.modeling import export_layout
from cmlm.tokenization import rules as rules_lib
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.base import Tokenizer
from cmlm.tokenization.opening import open_tokenizer


@dataclasses.dataclass(frozen=True)
class ExportDescription:
    """The description of an export: what its encoder states, without its graph.

    Attributes:
        info: the content of the file.
        dim: the width of a vector.
        seq_length: the longest sentence in tokens; a longer one is cut.
        prompts: the prompts that may have a signature, by name.
    """

    info: dict
    dim: int
    seq_length: int
    prompts: dict[str, str]

    @classmethod
    def read(cls, path: str) -> ExportDescription:
        """Reads the description of a version of an export.

        Raises:
            UserError: a field is missing, or has a value that is not allowed.
        """
        description = os.path.join(path, export_layout.PROVENANCE)
        info = json_files.read(description)
        dim = json_files.field(info, "dim", int, description)
        seq_length = json_files.field(info, "seq_length", int, description, at_least=3)
        check_fingerprint(
            json_files.field(info, "fingerprint", str, description), description
        )
        stated = json_files.field(info, "prompts", dict, description, {})
        prompts.check(stated, f"prompts in {description}")
        # Other names have no signature, or one that is not the prompt's: `normalized`.
        named = {name: stated[name] for name in of_prompts(stated)}
        return cls(info, dim, seq_length, named)

    def prompted(self, prompt_name: str) -> ExportDescription:
        """The description with another default prompt, a key of `prompts`."""
        info = prompts.describe(self.info, prompt_name, self.prompts[prompt_name])
        return dataclasses.replace(self, info=info)


class ExportedGraph:
    """Turns strings into vectors with the signatures of a version of an export.

    Args:
        path: the folder of the version, whole by its checksums: TensorFlow may crash on
            a damaged graph.
        described: its description.

    Attributes:
        info, seq_length: see `ExportDescription`.
        prompts: the prompts that have a signature, by name.

    Raises:
        UserError: the graph does not load, or does not fit its description.
    """

    def __init__(self, path: str, described: ExportDescription):
        # A signature does not own its variables; `_served` does.
        with locating.loading_graph(path):
            self._served = tf.saved_model.load(path)
            self._signatures = self._served.signatures
            self.lengths = self._served.lengths
            width = self._signatures[DEFAULT].structured_outputs["default"].shape[-1]
        if described.dim != width:
            raise UserError(
                f"{os.path.join(path, export_layout.PROVENANCE)} has "
                f"dim={described.dim}; its graph has {width}"
            )
        named = described.prompts.items()
        self.prompts = {key: text for key, text in named if key in self._signatures}
        self.info, self.seq_length = described.info, described.seq_length
        self._path, self._prompt = path, self.info.get("prompt")
        self._signature = self._signatures[DEFAULT]

    def vectors(self, text: tf.Tensor) -> tf.Tensor:
        """Turns string [n] into vectors, float32 [n, dim]."""
        return self._signature(text=text)["default"]

    def prompted(self, prompt: str, prompt_name: str) -> ExportedGraph:
        """The same graph with another prompt.

        Args:
            prompt, prompt_name: a value of `prompts`, and its key.
        """
        other = copy.copy(self)
        other._signature = self._signatures[prompt_name]
        other._prompt = prompt
        # Of an export with a default prompt and with others.
        plain = getattr(self._served, "plain_lengths", self._served.lengths)
        other.lengths = lambda text: plain(tf.strings.join([prompt, text]))
        return other

    def open_tokenizer(self) -> Tokenizer:
        """Opens the tokenizer, because the graph does not show its tokens.

        Raises:
            UserError: the version is alone, or beside the files of another export.
        """
        whole = os.path.dirname(os.path.dirname(self._path))
        if json_files.optional(whole, export_layout.DESCRIPTION) != self.info:
            raise UserError(
                f"{self._path} lies outside of its export, which has the vocabulary; "
                "allowed: the folder of export.tfhub, whole"
            )
        assets = os.path.join(export_layout.ENCODER, export_layout.ASSETS)
        checksums.check(
            whole, os.path.join(whole, checksums.FILE_NAME), (f"{assets}/",)
        )
        # Exports of early versions state fewer rules.
        rules = {name: self.info[name] for name in rules_lib.NAMES if name in self.info}
        vocabulary = vocabulary_file.find(os.path.join(whole, assets))
        tokenizer = open_tokenizer(vocabulary, rules_lib.Rules(**rules))
        tokenizer.prompt = self._prompt or ""
        return tokenizer
