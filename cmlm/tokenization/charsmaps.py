"""SentencePiece's precompiled normalisation: a trie of texts, then their replacements.

The trie is a double array of Darts: the children of a node lie at its base, xor their
byte. SentencePiece follows it without looking where its arrays end.

Reference: https://github.com/s-yata/darts-clone, `DoubleArrayUnit`.
"""

from __future__ import annotations

import numpy as np

from cmlm.errors import UserError

# SentencePiece takes tries of whole blocks: 256 nodes of 4 bytes each.
_BLOCK = 1024


def check(blob: bytes, path: str) -> None:
    """Refuses a charsmap that leads outside of itself: SentencePiece would crash.

    Args:
        blob: the charsmap; an empty one stands for none.
        path: its file, for the message.

    Raises:
        UserError: the charsmap is damaged.
    """
    if blob and not _is_closed(blob):
        raise UserError(f"{path} has a damaged precompiled_charsmap")


def _is_closed(blob: bytes) -> bool:
    """Whether each node leads to nodes of the trie, or to a text that ends."""
    size = int.from_bytes(blob[:4], "little")
    if len(blob) <= 4 or not size or size % _BLOCK or 4 + size >= len(blob):
        return False
    texts = blob[4 + size :]
    units = np.frombuffer(blob, "<u4", size // 4, 4).astype(np.int64)
    # Bits 10 to 30 of a node are its offset, bit 9 says that they count 256 times.
    bases = np.arange(len(units)) ^ ((units >> 10) << ((units & 512) >> 6))
    # A node with bit 31 is a place in the texts. The root is never looked at so.
    is_node = units < 1 << 31
    is_node[0] = True
    if not texts.endswith(b"\0") or ((bases[is_node] | 255) >= len(units)).any():
        return False
    # Bit 8: a text ends here, and the node at the base is the place of its replacement.
    places = units[bases[is_node & (units & 256 > 0)]] & 0x7FFFFFFF
    return bool((places < len(texts)).all())
