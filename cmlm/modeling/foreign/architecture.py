"""One architecture of Hugging Face folders, read as BERT: names, settings, arrays."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from cmlm.common import json_files
from cmlm.common.counts import counted
from cmlm.errors import UserError, shown
from cmlm.modeling import weights
from cmlm.modeling.foreign import base

# By the stored name of a module: our name, and our names of its parts.
_Modules = Mapping[str, tuple[str, Mapping[str, str]]]
# transformers' default for the architectures with a projection.
_EMBEDDING_SIZE = 128
# Buffers, and layers after the encoder.
_NEVER_USED = r"(^|\.)(position_ids|token_type_ids)$|^(classifier|qa_outputs)\."


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How one architecture is stored.

    Attributes:
        prefix: the prefix of the encoder's names in models with a head.
        layers: the prefix of a layer's number.
        inside: the modules of a layer.
        outside: the other modules.
        head_bias: the bias of the masked-LM head's output; "" without such a head.
        decoder: the masked-LM head's output layer, usually tied to the word embeddings.
        fields: the fields of EncoderConfig: key in config.json, type and default (None:
            required).
        unused: a regular expression for the names of weights that this project ignores.
        has_types: whether the weights have a table of segments.
        positions_follow_padding: whether the first token has the position after the
            padding id, as in fairseq; the rows before it are never used.
        relative_positions: the name of the table of relative positions; "" without.
        needs_tokenizer_file: whether a vocab.txt alone does not describe the tokenizer.
        added_to_types: a table whose first row is added to every token; "" without one.
        projects: whether a layer stands between embeddings and encoder, which may
            differ in width.
        always_projects: whether embeddings as wide as the encoder have this layer too.
        shares_layers: whether one stored layer stands for all.
    """

    prefix: str
    layers: str
    inside: _Modules
    outside: _Modules
    head_bias: str
    decoder: str
    fields: Mapping[str, tuple[str, type, Any]]
    unused: str
    has_types: bool = True
    positions_follow_padding: bool = False
    added_to_types: str = ""
    relative_positions: str = ""
    needs_tokenizer_file: bool = False
    projects: bool = False
    always_projects: bool = False
    shares_layers: bool = False

    def names(self, num_layers: int) -> dict[str, str]:
        """Returns the stored name, without `prefix`, of every weight by our name."""
        table = {
            weights.WORDS: "embeddings.word_embeddings.weight",
            weights.POSITIONS: "embeddings.position_embeddings.weight",
        }
        if self.has_types:
            table[weights.TYPES] = "embeddings.token_type_embeddings.weight"
        if self.relative_positions:
            table[weights.RELATIVE] = self.relative_positions
        if self.head_bias:
            table[weights.OUTPUT_BIAS] = self.head_bias
        modules = dict(self.outside)
        for number in range(num_layers):
            for there, (here, parts) in self.inside.items():
                name = weights.layer(number, here)
                modules[f"{self.layers}.{number}.{there}"] = (name, parts)
        for there, (here, parts) in modules.items():
            for part_there, part_here in parts.items():
                table[f"{here}/{part_here}"] = f"{there}.{part_there}"
        return table

    def find(
        self, stored, path: str, config: Mapping[str, Any]
    ) -> tuple[dict[str, str], list[str]]:
        """Returns the stored names by our names, and the unused stored names.

        Args:
            stored: the names.
            path: where they are stored, for messages.
            config: the content of config.json.

        Raises:
            UserError: an unknown name, or two names for one weight.
        """
        number = re.compile(rf"(?:^|\.){re.escape(self.layers)}\.(\d+)\.")
        # Their count, not the largest: a name may hold any number.
        layers = {match[1] for name in stored if (match := number.search(name))}
        here_by_there = {there: here for here, there in self.names(len(layers)).items()}

        def translate(name):
            name = name.removeprefix(self.prefix)
            # The first conversions from TensorFlow kept these names.
            name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
            name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
            return here_by_there.get(name)

        unused = [_NEVER_USED, self.unused]
        if self.decoder:
            unused.append(rf"^{re.escape(self.decoder)}\.")
        if self.added_to_types:
            unused.append(re.escape(self.added_to_types))
        found, left = base.rename(
            stored, translate, re.compile("|".join(filter(None, unused))), path
        )
        # `complete` reads these beside the named weights.
        tasks = self._tables_of_tasks(left, config)
        return found, [name for name in left if name not in tasks]

    def tie(
        self, found: dict[str, str], unused: list[str], config: Mapping[str, Any]
    ) -> list[str]:
        """Takes a tied output layer for the word table, or leaves out an untied head.

        Args:
            found: the stored names by our names; changed.
            unused: the unused stored names; changed.
            config: the content of config.json.

        Returns:
            A note, or nothing.
        """
        decoder = f"{self.decoder}.weight"
        if decoder not in unused:
            return []
        if config.get("tie_word_embeddings") is not False:
            if weights.WORDS not in found:
                # save_model of safetensors stores a shared table under one name.
                found[weights.WORDS] = decoder
                unused.remove(decoder)
            return []
        for name in [name for name in found if name.startswith(weights.MASKED_LM)]:
            unused.append(found.pop(name))
        return [
            "left out: the masked-LM head, whose output layer is not the table of the "
            "word embeddings"
        ]

    def skipped_positions(self, config: Mapping[str, Any], path: str) -> int:
        """The number of rows in the position table before the first token's row."""
        if not self.positions_follow_padding:
            return 0
        if self.relative_positions:
            # MPNet's code has the padding id 1, whatever the configuration says.
            return 2
        return json_files.field(config, "pad_token_id", int, path, 1, at_least=0) + 1

    def settings(self, config: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Reads fields of EncoderConfig; the activation keeps its name in config.json.

        Raises:
            UserError: a value is missing or cannot be represented.
        """
        for name, allowed in (
            ("position_embedding_type", "absolute"),
            ("is_decoder", False),
            ("add_cross_attention", False),
            # ALBERT's.
            ("num_hidden_groups", 1),
            ("inner_group_num", 1),
        ):
            value = config.get(name, allowed)
            if value != allowed:
                raise UserError(
                    f"{path} has {name}={shown(value)}; allowed: {allowed!r}"
                )
        found = {
            name: json_files.field(
                config, key, kind, path, default, at_least=1 if kind is int else None
            )
            for name, (key, kind, default) in self.fields.items()
        }
        found["embedding_size"] = self._embedding_size(
            found["hidden_size"], config, path
        )
        found["relative_positions"] = bool(self.relative_positions)
        found["max_position_embeddings"] -= self.skipped_positions(config, path)
        # Pairs of texts need two segments.
        found["type_vocab_size"] = max(found["type_vocab_size"], 2)
        return found

    def _embedding_size(self, hidden: int, config: Mapping[str, Any], path: str) -> int:
        """Reads `embedding_size` of EncoderConfig: 0 if it is the hidden size."""
        embedding, allowed = config.get("embedding_size"), ""
        if self.projects:
            embedding = json_files.field(
                config, "embedding_size", int, path, _EMBEDDING_SIZE, at_least=1
            )
            if self.always_projects and embedding == hidden:
                allowed = "different widths"
        elif embedding not in (None, hidden):
            allowed = "both equal, because this encoder has no layer between them"
        if allowed:
            raise UserError(
                f"{path} has embedding_size={shown(embedding)}, hidden_size={hidden}; "
                f"allowed: {allowed}"
            )
        return 0 if embedding in (None, hidden) else embedding

    def check_shapes(
        self, found: Mapping[str, str], stored, model: Mapping, config: Mapping, path
    ) -> None:
        """Compares the configuration with the weights before anything is built.

        Args:
            found: the stored names by our names.
            stored: the stored weights.
            model: the fields that `settings` returned.
            config: the content of config.json.
            path: its path, for messages.

        Raises:
            UserError: they differ.
        """
        for name in (weights.WORDS, weights.POSITIONS):
            if name not in found:
                needed = self.names(0)[name]
                raise UserError(f"{path} needs {needed}; the weights do not hold it")
        layers = len(weights.layer_numbers(found))
        if layers < model["num_layers"] and not self.shares_layers:
            raise UserError(
                f"{path} has {self.fields['num_layers'][0]}={model['num_layers']}; "
                f"the weights beside it have {counted(layers, 'layer')}"
            )
        width = model["hidden_size"]
        narrow = model["embedding_size"] or width
        rows = model["max_position_embeddings"] + self.skipped_positions(config, path)
        for name, shape in {
            weights.WORDS: [model["vocab_size"], narrow],
            weights.POSITIONS: [rows, narrow],
            weights.layer(0, "intermediate/kernel"): [
                model["intermediate_size"],
                width,
            ],
        }.items():
            if name in found and stored.shape(found[name]) != shape:
                raise UserError(
                    f"{path} expects {found[name]} of shape {shape}; it has shape "
                    f"{stored.shape(found[name])}"
                )
        if weights.TYPES in found:
            # `settings` counts at least two segments.
            rows = max(stored.shape(found[weights.TYPES])[0], 2)
            if model["type_vocab_size"] != rows:
                raise UserError(
                    f"{path} expects {model['type_vocab_size']} segments; "
                    f"{found[weights.TYPES]} has shape "
                    f"{stored.shape(found[weights.TYPES])}"
                )

    def complete(self, arrays: dict, stored, config: Mapping, path: str) -> dict:
        """Brings arrays by our names into BERT's layout."""
        arrays = dict(arrays)
        if self.shares_layers:
            first = weights.layer(0, "")
            shared = {n: a for n, a in arrays.items() if n.startswith(first)}
            for number in range(1, config[self.fields["num_layers"][0]]):
                for name, array in shared.items():
                    name = weights.layer(number, name.removeprefix(first))
                    arrays[name] = array
        skipped = self.skipped_positions(config, path)
        arrays[weights.POSITIONS] = arrays[weights.POSITIONS][skipped:]
        width = arrays[weights.WORDS].shape[1]
        types = arrays.get(weights.TYPES, np.zeros([1, width], np.float32))
        for name in self._tables_of_tasks(stored, config):
            types = types + stored.read(name)[:1]
        if len(types) == 1:
            # The source has at most one segment, so both texts of a pair share its row.
            types = np.repeat(types, 2, axis=0)
        arrays[weights.TYPES] = types
        return arrays

    def _tables_of_tasks(self, stored, config: Mapping[str, Any]) -> list[str]:
        """The stored names of `added_to_types`, if the configuration uses it."""
        # transformers' default is false, whatever is stored.
        if not self.added_to_types or config.get("use_task_id") is not True:
            return []
        return [name for name in stored if name.endswith(self.added_to_types)]
