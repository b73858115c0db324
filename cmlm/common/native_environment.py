"""The environment variables that TensorFlow reads when it is imported."""

from __future__ import annotations

import os

from cmlm.common import machine

# Level 3 hides TensorFlow's ERROR lines too. Important ones reach Python as exceptions;
# the others say "no GPU driver here" and the like.
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "ERROR"}
# By itself, TensorFlow uses oneDNN's layers only on processors with AVX-512's or AMX's
# instructions for neural networks. They are faster with AVX2, too.
_FAST = {"TF_ENABLE_ONEDNN_OPTS": "1"}


def prepare() -> None:
    """Sets variables of TensorFlow and gRPC, unless the user has set them.

    Without effect on the speed in a process that has imported TensorFlow.
    """
    fast = _FAST if "avx2" in machine.cpu_flags() else {}
    for name, value in (_QUIET | fast).items():
        os.environ.setdefault(name, value)
