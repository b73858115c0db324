"""Refuses TensorFlow in a fork of a process in which it has run.

TensorFlow's threads do not survive a fork: the first operation would never return,
and garbage that holds TensorFlow's objects cannot be freed.
`cmlm` imports this module, which imports nothing heavy, so that it sees every fork.
"""

from __future__ import annotations

import gc
import os
import sys

from cmlm.errors import UserError

_threads_are_lost = False


def _note() -> None:
    """Notes in a new fork whether TensorFlow had started its threads before.

    If so, objects of the parent are never collected here: the destructor of an
    iterator of tf.data waits for its threads, and others crash.
    """
    global _threads_are_lost
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module.context_safe()
    if getattr(context, "_context_handle", None) is not None:
        _threads_are_lost = True
        gc.freeze()


os.register_at_fork(after_in_child=_note)


def refuse(name: str) -> None:
    """Raises UserError if TensorFlow would hang in this process.

    Args:
        name: the encoder that would run.
    """
    if _threads_are_lost:
        raise UserError(
            f"{name} needs TensorFlow, which ran before this process forked and does "
            "not work in forks; allowed: threads, or processes started by "
            "multiprocessing.get_context('spawn') that open it themselves"
        )
