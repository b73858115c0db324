"""Files that a model server reads beside a SavedModel.

    OUT/serving/models.config            --model_config_file
    OUT/serving/batching_parameters.txt  --batching_parameters_file

Reference: https://www.tensorflow.org/tfx/serving/serving_config.
"""

from __future__ import annotations

import os

import tensorflow as tf

from cmlm.common import atomic
from cmlm.encoders.model_server import DEFAULT_MODEL

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


def write_configuration(directory: str) -> None:
    """Writes `models.config` and `batching_parameters.txt`.

    Args:
        directory: the folder `serving` of an export, which holds the versions.
    """
    for name, content in ((MODELS_CONFIG, _MODELS_CONFIG), (BATCHING, _BATCHING)):
        with atomic.text(os.path.join(directory, name)) as file:
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
