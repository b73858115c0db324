"""Every setting of an experiment with its type, default, allowed values and meaning."""

from __future__ import annotations

import dataclasses
import fnmatch
import inspect
import re
import typing
from collections.abc import Iterator
from typing import Any

from official.core.config_definitions import RuntimeConfig

from cmlm.common import fields
from cmlm.config.experiment import ExperimentConfig
from cmlm.errors import did_you_mean

# An entry of a docstring's list of attributes: "name: text" or "name, other: text".
_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")
# The fields of `RuntimeConfig`, a class of Model Garden, that this project reads.
_RUNTIME = {
    "distribution_strategy": "the devices of the run: `one_device`, `mirrored`, "
    "`multi_worker_mirrored` or `tpu`.",
    "num_gpus": "GPUs of this machine for `one_device` and `mirrored`; 0: the CPU.",
    "tpu": "the TPU of the strategy `tpu`: a name, an address or `local`.",
    "worker_hosts": "the workers of `multi_worker_mirrored`, HOST:PORT,HOST:PORT,..., "
    "if TF_CONFIG does not name them.",
    "task_index": "the place of this worker in `worker_hosts`, from 0.",
    "all_reduce_alg": "how devices add up gradients: `nccl`, `hierarchical_copy` (only "
    "`mirrored`) or `ring` (only `multi_worker_mirrored`); null: TensorFlow chooses. "
    "With `mirrored`, a name sends the vectors of contrastive losses through one GPU.",
    "num_packs": "the number of packs in which `nccl` and `hierarchical_copy` add up "
    "gradients; without effect if `all_reduce_alg` is null.",
    "mixed_precision_dtype": "the precision of the layers: `float32`, also by null; "
    "`bfloat16`; or `auto`: bfloat16 on TPUs and processors that compute in it.",
}
_UNREAD = "without effect: a field of Model Garden that this project does not read."


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: the dotted name, as `--params_override` takes it.
        type: the type, such as `int` or `bool or null`.
        default: the value without any recipe.
        allowed: the allowed values in words; "" for any of the type.
        meaning: the explanation in the docstring of its class.
    """

    name: str
    type: str
    default: Any
    allowed: str
    meaning: str

    def __str__(self) -> str:
        allowed = f"; {self.allowed}" if self.allowed else ""
        default = self.default
        if isinstance(default, tuple):
            default = list(default)
        # As --params_override takes it.
        shown = "null" if default is None else repr(default)
        return f"{self.name} = {shown}  ({self.type}{allowed})\n    {self.meaning}"


def settings(pattern: str = "") -> list[Setting]:
    """Returns the settings whose name has a part that fits a pattern.

    Args:
        pattern: a part of the dotted name, without regard to case, also with the signs
            * and ? of a shell (`task.scored.*`); "" for all.
    """
    found = _walk(ExperimentConfig(), "")
    part = f"*{pattern.lower()}*"
    return [each for each in found if fnmatch.fnmatchcase(each.name.lower(), part)]


def meant(name: str) -> str:
    """Returns "did you mean SETTING? " for an unknown name, or ""."""
    names = [each.name for each in settings()]
    # The last part of a name may stand for the whole, if it is the only one.
    ends = [each.rpartition(".")[2] for each in names]
    spellings = {
        end: each for end, each in zip(ends, names, strict=True) if ends.count(end) == 1
    }
    return did_you_mean(name, spellings | {each: each for each in names})


def fields_of(config: Any) -> list[dataclasses.Field]:
    """The fields of a configuration that are settings."""
    # Model Garden's own, and `stacked_on`, which the run itself sets.
    others = ("default_params", "restrictions", "stacked_on")
    return [
        field
        for field in dataclasses.fields(config)
        if not field.name.startswith("_") and field.name not in others
    ]


def _walk(config: Any, prefix: str) -> Iterator[Setting]:
    hints = typing.get_type_hints(type(config))
    meanings = _meanings(type(config))
    for field in fields_of(config):
        value, name = getattr(config, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from _walk(value, f"{name}.")
            continue
        yield Setting(
            name,
            _type_name(hints[field.name]),
            value,
            fields.range_in_words(field),
            meanings.get(field.name, ""),
        )


def _meanings(config_class: type) -> dict[str, str]:
    """Returns the meanings of fields, from the docstrings of a class and its bases."""
    if config_class is RuntimeConfig:
        names = [field.name for field in dataclasses.fields(config_class)]
        return dict.fromkeys(names, _UNREAD) | _RUNTIME
    found: dict[str, str] = {}
    for each in reversed(config_class.__mro__):
        text = inspect.cleandoc(each.__dict__.get("__doc__") or "")
        _, _, listed = text.partition("Attributes:\n")
        names: list[str] = []
        for line in listed.splitlines():
            entry = _ENTRY.fullmatch(line.removeprefix("    "))
            if entry and line.startswith("    ") and not line.startswith("     "):
                names = entry[1].split(", ")
                found.update(dict.fromkeys(names, entry[2]))
            elif line.startswith("     "):
                for name in names:
                    found[name] += " " + line.strip()
            elif line.strip():
                break
    return found


def _type_name(hint: Any) -> str:
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return f"list of {_type_name(parts[0])}"
    if parts and type(None) in parts:
        others = [_type_name(part) for part in parts if part is not type(None)]
        return " or ".join([*others, "null"])
    return getattr(hint, "__name__", str(hint))
