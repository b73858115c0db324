"""The identity of vectors: the encoder that made them, and its changes since then."""

from __future__ import annotations

import numpy as np

from cmlm.common import checksums
from cmlm.common.protocols import DescribedEncoder

# The largest difference of numbers in unit vectors that counts as rounding.
_ROUNDING = 5e-4


def of(encoder: DescribedEncoder) -> dict:
    """Returns the part of an encoder's description that identifies its vectors.

    This is the fingerprint with the sequence length and any precision below float32.
    An encoder without a fingerprint has its whole description instead, with its `marks`
    (see `encoders.external`). `difference` compares two identities.
    """
    if "fingerprint" in encoder.info:
        length = getattr(encoder, "seq_length", None)
        found = {"fingerprint": encoder.info["fingerprint"], "seq_length": length}
        if encoder.info.get("precision") == "bfloat16":
            found["precision"] = "bfloat16"
        return found
    return {**encoder.info, **getattr(encoder, "marks", {})}


def revision(encoder: DescribedEncoder) -> str:
    """Names an encoder for programs that compare names: its identity as one word."""
    found = of(encoder)
    if "fingerprint" in found:
        return "-".join(map(str, found.values()))
    return checksums.of_values(found, sort_keys=True)


def difference(there: dict, now: dict) -> str:
    """Names the first difference of two descriptions of vectors.

    Numbers of `probe`, vectors of a server's model, may differ by rounding. Directories
    of version 0.1.0 have no probe; they are compared without it.

    Args:
        there: the description in a directory.
        now: the description of this run.

    Returns:
        "KEY VALUE, now VALUE", or "" for equal descriptions.
    """
    for key in {**now, **there}:
        old, new = there.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = difference(old, new)
            if inner:
                return f"{key}: {inner}"
        elif key == "probe":
            if None not in (old, new) and not _nearly_equal(old, new):
                return "the vectors of its server changed"
        elif old != new:
            return f"{key} {_short(old)}, now {_short(new)}"
    return ""


def _nearly_equal(old, new) -> bool:
    try:
        one, other = (np.asarray(rows, np.float64) for rows in (old, new))
    except (ValueError, TypeError):
        return False
    return one.shape == other.shape and np.allclose(one, other, 0, _ROUNDING)


def _short(value) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
