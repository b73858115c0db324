"""Files that a model server reads beside a SavedModel, and the inputs of its warm-up.

    OUT/serving/models.config            --model_config_file
    OUT/serving/batching_parameters.txt  --batching_parameters_file

Reference: https://www.tensorflow.org/tfx/serving/serving_config.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import tensorflow as tf

from cmlm.common import files, json_files
from cmlm.encoders import warm_up
from cmlm.encoders.components_file import PrincipalComponents
from cmlm.encoders.model_server import DEFAULT_MODEL
from cmlm.encoders.signatures import SIGNATURES
from cmlm.errors import UserError
from cmlm.modeling import export_layout

MODELS_CONFIG = "models.config"
BATCHING = "batching_parameters.txt"

_MODELS_CONFIG = f"""\
# For the folder of this file, mounted or linked as /models/{DEFAULT_MODEL}.
model_config_list {{
  config {{
    name: "{DEFAULT_MODEL}"
    base_path: "/models/{DEFAULT_MODEL}"
    model_platform: "tensorflow"
  }}
}}
"""
_BATCHING = """\
# Requests that wait while all threads are busy are computed together. With a timeout of
# 0 no request waits for a later one.
batch_timeout_micros { value: 0 }
# Strings in a batch. A longer request is refused ("Task size ... is larger than
# maximum batch size"). Memory does not depend on it: the graph works in small portions.
max_batch_size { value: 16384 }
max_enqueued_batches { value: 100 }
# Batches that are computed at a time. Without the line: one on each core.
# num_batch_threads { value: 2 }
# Must stay off: the server pads with a tensor's first element, so the mask of the
# signatures `tensors` and `pcr_tensors` would be 1 at positions without a token.
pad_variable_length_inputs: false
"""

# The values that a description leaves out, see `fingerprints.describe`.
_LEFT_OUT = {"prompt": "", "prompts": {}, "dimensions": 0}


def write_configuration(directory: str) -> None:
    """Writes `models.config` and `batching_parameters.txt`.

    Args:
        directory: the folder `serving` of an export, which holds the versions.
    """
    for name, content in ((MODELS_CONFIG, _MODELS_CONFIG), (BATCHING, _BATCHING)):
        with files.atomic_text(os.path.join(directory, name)) as file:
            file.write(content)


def keep_configuration(former: str, directory: str) -> None:
    """Copies `models.config` and `batching_parameters.txt`, which operators change.

    Args:
        former: the folder `serving` of the export that is replaced; it may not exist.
        directory: the folder `serving` of its successor.
    """
    for name in (MODELS_CONFIG, BATCHING):
        kept = os.path.join(former, name)
        if tf.io.gfile.exists(kept):
            tf.io.gfile.copy(kept, os.path.join(directory, name), overwrite=True)


def describe_components(components: PrincipalComponents | None) -> dict | None:
    """Describes PCR for clients: the languages in the order of `language_index`."""
    if components is None:
        return None
    return {
        "languages": list(components.languages),
        "components": components.table.shape[1],
        "unknown_language": "language_index -1, the vector as it is",
    }


def changes(
    former: str,
    described: Mapping[str, object],
    components: PrincipalComponents | None,
) -> list[str]:
    """Names what clients of a server will miss or see changed.

    Args:
        former: the folder `serving` of the export that is replaced; it may not exist.
        described: values of its successor's description, each by the name of its flag.
        components: those of its successor.

    Returns:
        "KEY VALUE, now VALUE" for each change from the newest version in `former`.
    """
    newest = next(iter(export_layout.versions(former)), "")
    try:
        before = json_files.optional(former, newest, export_layout.PROVENANCE)
    except UserError:
        # It is damaged, and --overwrite replaces it.
        return []
    if not before:
        return []
    found = []
    old, new = before.get("pcr"), describe_components(components)
    if old and not new:
        lost = [name for name, row in SIGNATURES.items() if row.with_components]
        found.append(f"the signatures {' and '.join(lost)}, now without (--pcr)")
    elif old:
        for name in ("languages", "components"):
            was, now = old.get(name, new[name]), new[name]
            if was != now:
                found.append(f"PCR {name} {was}, now {now} (--pcr)")
    for name, now in described.items():
        # Early versions lack other values, too.
        was = before.get(name, _LEFT_OUT.get(name, now))
        if was != now:
            texts = (was, now)
            if name == "prompt":
                texts = tuple(map(repr, texts))
            elif name == "prompts":
                texts = (_lacking(was, now), _lacking(now, was))
            found.append(f"{name} {texts[0]}, now {texts[1]} (--{name})")
    return found


def _lacking(prompts: Mapping[str, str], there: Mapping[str, str]) -> str:
    """The prompts that others lack, for messages: "query 'query: '"."""
    found = [
        f"{name} {text!r}" for name, text in prompts.items() if there.get(name) != text
    ]
    return ", ".join(found) or "none"


def refuse_other_versions(directory: str, version: int) -> None:
    """Refuses to write into an export that holds versions besides the one to write.

    Args:
        directory: the folder `serving` of the export; it may not exist.
        version: the version to write.

    Raises:
        UserError: there are other versions.
    """
    versions = sorted(map(int, export_layout.versions(directory)))
    others = ", ".join(str(found) for found in versions if found != version)
    if others:
        raise UserError(
            f"--version is {version}; {directory} holds {others}, and an export holds "
            f"one version; allowed: another --export_dir, whose serving/{version} is "
            "then copied to the server's folder"
        )


def warm_up_inputs(graph, components) -> dict[str, tf.Tensor]:
    """Returns example values of every input of the signatures, by name.

    Args:
        graph: the SentenceGraph that is served.
        components: PrincipalComponents or None.
    """
    text = tf.constant(warm_up.SENTENCES)
    tokens = graph.tokenizer.encode(text, graph.seq_length)
    ids = tokens.to_tensor(graph.tokenizer.pad_id)
    languages = list(components.languages) if components else [""]
    return {
        "text": text,
        "input_word_ids": ids,
        "input_mask": tf.ones_like(tokens).to_tensor(),
        "input_type_ids": tf.zeros_like(ids),
        "language": tf.repeat(tf.constant(languages[:1]), len(warm_up.SENTENCES)),
        "language_index": tf.zeros([len(warm_up.SENTENCES)], tf.int32),
    }
