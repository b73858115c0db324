"""The graph of an export, with the methods of a `SentenceGraph`."""

from __future__ import annotations

import copy
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


class ExportedGraph:
    """Turns strings into vectors with the signatures of a version of an export.

    Args:
        path: the folder of the version.

    Attributes:
        info: the description of the export.
        seq_length: the longest sentence in tokens; a longer one is cut.
        prompts: the prompts that have a signature, by name.

    Raises:
        UserError: the version is damaged, or does not fit its description.
    """

    def __init__(self, path: str):
        # The checksums come first: TensorFlow may crash on a damaged graph.
        description = os.path.join(path, export_layout.PROVENANCE)
        locating.check_version(path)
        info = json_files.read(description)
        dim = json_files.field(info, "dim", int, description)
        seq_length = json_files.field(info, "seq_length", int, description, at_least=3)
        check_fingerprint(
            json_files.field(info, "fingerprint", str, description), description
        )
        # A signature does not own its variables; `_served` does.
        with locating.loading_graph(path):
            self._served = tf.saved_model.load(path)
            self._signatures = self._served.signatures
            self.lengths = self._served.lengths
            width = self._signatures[DEFAULT].structured_outputs["default"].shape[-1]
        if dim != width:
            raise UserError(f"{description} has dim={dim}; its graph has {width}")
        stated = json_files.field(info, "prompts", dict, description, {})
        prompts.check(stated, f"prompts in {description}")
        # Other names have no signature, or one that is not the prompt's: `normalized`.
        named = of_prompts(stated).keys() & self._signatures.keys()
        self.prompts = {key: text for key, text in stated.items() if key in named}
        self.info, self.seq_length = info, seq_length
        self._path, self._prompt = path, info.get("prompt")
        self._signature = self._signatures[DEFAULT]

    def vectors(self, text: tf.Tensor) -> tf.Tensor:
        """Turns string [n] into vectors, float32 [n, dim]."""
        return self._signature(text=text)["default"]

    def prompted(self, prompt: str) -> ExportedGraph:
        """The same graph with another prompt.

        Args:
            prompt: a value of `prompts`.
        """
        name = next(name for name, text in self.prompts.items() if text == prompt)
        other = copy.copy(self)
        other._signature = self._signatures[name]
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
