"""Removes the unfinished files of a killed run from its model_dir."""

from __future__ import annotations

import os
import re

from cmlm.common import locks, outputs
from cmlm.encoders import model_dir
from cmlm.modeling import latest
from cmlm.tokenization import rules, vocabulary_file

# TensorFlow writes `ckpt-N_temp/` and `checkpoint.tmpHEX`, this project `NAME.tmp-HEX`.
_UNFINISHED = re.compile(r"ckpt-\d+_temp.*|.+\.tmp-?[0-9a-f]{8,32}")
_DATA = re.compile(r"(ckpt-\d+)\.data-\d{5}-of-\d{5}(\.tempstate\d+)?")
# What a run writes until params.yaml marks its folder.
_FIRST_FILES = (
    *vocabulary_file.NAMES,
    rules.path_of(vocabulary_file.FILE_NAME),
    model_dir.PARAMS,
)


def remove(directory: str) -> None:
    """Removes and names unfinished files of a model_dir, which must be locked.

    These are temporary files, and data of checkpoints that have no index: TensorFlow
    writes the index last and deletes it first. A folder without params.yaml may be the
    user's, so only parts of the first files of a run go there.
    """
    if not locks.is_local(directory):
        return
    runs = [directory]
    earlier = os.path.join(directory, model_dir.STAGES)
    if os.path.isdir(earlier):
        runs += [os.path.join(earlier, name) for name in sorted(os.listdir(earlier))]
    for run in runs:
        if not (model_dir.is_model_dir(directory) or model_dir.is_model_dir(run)):
            for name in _FIRST_FILES:
                outputs.tidy(os.path.join(run, name))
            continue
        for folder in (run, os.path.join(run, model_dir.BEST)):
            if os.path.isdir(folder):
                # It refuses a directory whose checkpoints have all lost their index.
                latest.repair(folder)
                outputs.remove(_unfinished(folder))


def _unfinished(folder: str) -> list[str]:
    found = []
    names = set(os.listdir(folder))
    for name in sorted(names):
        data = _DATA.fullmatch(name)
        if _UNFINISHED.fullmatch(name) or (data and f"{data[1]}.index" not in names):
            found.append(os.path.join(folder, name))
    return found
