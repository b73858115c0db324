"""An encoder that Beam's workers open by its name, and that may die once."""

import os
import signal

import numpy as np


class Encoder:
    """Vectors drawn by the text.

    Args:
        grave: the first process that encodes "line 777" writes this file and kills
            itself; None: none does.
    """

    def __init__(self, grave=None):
        self.dim, self.info, self._grave = 8, {"fingerprint": "a"}, grave

    def encode(self, sentences, progress):
        if self._grave and "line 777" in sentences and not os.path.exists(self._grave):
            open(self._grave, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        seeds = (int.from_bytes(text.encode(), "little") for text in sentences)
        return np.array([np.random.default_rng(s).normal(size=self.dim) for s in seeds])
