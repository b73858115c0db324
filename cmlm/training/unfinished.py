"""Removes the unfinished files of a killed run from its model_dir."""

from __future__ import annotations

import contextlib
import os
import re

from cmlm.common import leftovers, path_names
from cmlm.config import model_dir
from cmlm.errors import UserError
from cmlm.modeling import latest
from cmlm.tokenization import rules, vocabulary_file

# TensorFlow writes the parts of a checkpoint to `ckpt-N_temp/`.
_PARTS = re.compile(r"ckpt-\d+_temp.*")
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
    if not path_names.is_local(directory):
        return
    is_run = model_dir.is_model_dir(directory)
    _remove_from(directory, is_run)
    bases = os.path.join(directory, model_dir.BASES)
    if os.path.isdir(bases):
        # The name of a basis is the beginning of a hash.
        leftovers.tidy_within(bases, ["[0-9a-f]" * 16])
    earlier = os.path.join(directory, model_dir.STAGES)
    names = sorted(os.listdir(earlier)) if os.path.isdir(earlier) else ()
    for run in (os.path.join(earlier, name) for name in names):
        # A stage before a begun one may be lost; `stages.count_done` refuses others.
        with contextlib.suppress(UserError):
            _remove_from(run, is_run or model_dir.is_model_dir(run))


def _remove_from(run: str, is_run: bool) -> None:
    """Removes the unfinished files of a run, or of a stage.

    Raises:
        UserError: its checkpoints have all lost their index.
    """
    if not is_run:
        for name in _FIRST_FILES:
            leftovers.tidy(os.path.join(run, name))
        return
    for folder in (run, os.path.join(run, model_dir.BEST)):
        if os.path.isdir(folder):
            latest.repair(folder)
            leftovers.remove(_unfinished(folder))


def _unfinished(folder: str) -> list[str]:
    found = []
    names = set(os.listdir(folder))
    for name in sorted(names):
        data = _DATA.fullmatch(name)
        lacks_index = data and f"{data[1]}.index" not in names
        if path_names.is_temporary(name) or _PARTS.fullmatch(name) or lacks_index:
            found.append(os.path.join(folder, name))
    return found
