"""Configurations as text: YAML files, and settings of the form `a.b.c=value`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
import yaml
from official.modeling.hyperparams import params_dict

from cmlm.common import fields
from cmlm.config import listing
from cmlm.config.experiment import ExperimentConfig
from cmlm.errors import UserError, did_you_mean, naming


def override(
    config: ExperimentConfig,
    config_files: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> set[str]:
    """Changes a configuration in place; later values win.

    Args:
        config: the configuration to change.
        config_files: YAML files with any part of the configuration.
        overrides: `a.b.c=value`, several separated by commas, or YAML.

    Returns:
        The names of all settings given, such as `model.num_layers`.

    Raises:
        UserError: an unknown key or file, a value that does not fit, or steps beside
            epochs in one override.
    """
    given: set[str] = set()
    for values, source in _read(config_files, overrides):
        _apply(config, values, source)
        named = {name for name, _ in flat(values)}
        # The steps of a later source win over the epochs of an earlier one.
        if "trainer.train_steps" in named and "trainer.epochs" not in named:
            config.trainer.epochs = 0
        given |= named
    return given


def from_yaml(path: str) -> ExperimentConfig:
    """Reads a whole configuration, as `to_yaml` wrote it.

    Pruned weights of another program have a configuration without an objective.
    """
    config = ExperimentConfig()
    _apply(config, _read_file(path), path)
    fields.check(config)
    return config


def to_yaml(config: ExperimentConfig) -> str:
    """The whole configuration as text; `from_yaml` reads it back equal."""
    return yaml.safe_dump(config.as_dict(), sort_keys=False)


# ------------------------------------------------------------------ reading


class _Loader(yaml.SafeLoader):
    """Reads numbers, texts, lists and mappings.

    A date stays text. Aliases are refused: a short file of them could fill the memory.
    A name that stands twice in a mapping is refused: YAML's own rule, which PyYAML
    leaves out, and the first value would be lost.
    """

    yaml_implicit_resolvers = {
        first: [(tag, regex) for tag, regex in found if not tag.endswith(":timestamp")]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.YAMLError(
                f"line {mark.line + 1} has an alias (*); allowed: plain values"
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        first: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in first:
                places = f"lines {first[key.value]} and {line} both set {key.value!r}"
                if first[key.value] == line:
                    places = f"line {line} sets {key.value!r} twice"
                raise yaml.YAMLError(f"{places}; allowed: once")
            first[key.value] = line
        return node


def _read(
    config_files: Sequence[str], overrides: Sequence[str]
) -> Iterator[tuple[dict, str]]:
    """Yields the values of every file and override, with the flag that gave them."""
    for path in config_files:
        with naming("--config_file"):
            values = _read_file(path)
        yield values, f"--config_file={path}"
    for text in overrides:
        source = f"--params_override={text}"
        yield _read_override(text, source), source


def _read_file(path: str) -> dict:
    try:
        with tf.io.gfile.GFile(path) as file:
            values = _load(file.read())
    except tf.errors.OpError as error:
        raise UserError(f"{path} cannot be read: {error.message}") from error
    except ValueError as error:
        raise UserError(f"{path} is not YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(
            f"{path} does not hold a YAML mapping; allowed: settings, such as trainer: "
            "{train_steps: 100}"
        )
    return values


def _read_override(text: str, source: str) -> dict:
    try:
        as_yaml = params_dict.nested_csv_str_to_json_str(text)
    except (ValueError, IndexError):
        as_yaml = text
    try:
        # Model Garden's own loader of YAML can build Python objects.
        values = _load(as_yaml)
    except ValueError as error:
        raise UserError(f"{source} has a value that is not YAML: {error}") from error
    if not isinstance(values, dict):
        is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        advice = "; remove the quotes, which only a shell removes by itself"
        raise UserError(
            f"{source} is not of the form a.b.c=value{advice if is_quoted else ''}"
        )
    # A file may hold both: a run writes the steps of its epochs beside them.
    given = dict(flat(values))
    if "trainer.train_steps" in given and given.get("trainer.epochs"):
        raise UserError(
            f"{source} sets trainer.train_steps and trainer.epochs; allowed: one of "
            "them"
        )
    return values


def _load(text: str) -> Any:
    """Raises ValueError, in one line, for text that is not YAML."""
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except Exception as error:
        # `!!bool x`, `!!timestamp x` and "\\UFFFFFFFF" raise whatever PyYAML runs into.
        raise ValueError(" ".join(f"{error}".split())) from error


# ----------------------------------------------------------------- changing


def _apply(config: ExperimentConfig, values: Mapping, source: str) -> None:
    fields.check_sections(config, values)
    try:
        config.override(values, is_strict=True)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{source}: {_explain(error, config, values)}") from error


def _explain(error: Exception, config: ExperimentConfig, values: Mapping) -> str:
    """Names the unknown key and the known ones."""
    for path, _ in flat(values):
        node, walked = config, []
        for key in path.split("."):
            if key not in [field.name for field in dataclasses.fields(node)]:
                where = ".".join(walked) or "the configuration"
                names = [field.name for field in listing.fields_of(node)]
                full = {name: ".".join([*walked, name]) for name in names}
                meant = did_you_mean(key, full) or listing.meant(key)
                found = listing.settings(key) if key else ()
                see = f"; see `cmlm settings {key}`" if found else ""
                return f"{where} has no {key!r}; {meant}it has: {', '.join(full)}{see}"
            walked.append(key)
            node = getattr(node, key)
            if not dataclasses.is_dataclass(node):
                break
    return " ".join(str(error).split())


def flat(settings: Mapping, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) of each setting."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            # YAML knows no tuples.
            yield f"{prefix}{key}", list(value) if isinstance(value, tuple) else value
