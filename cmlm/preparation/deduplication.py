"""Fingerprints of documents and lines as arrays, and which of them repeat.

Only arrays travel between workers, never text: a line costs 24 bytes. Which copy stays
is decided by number, so the result does not depend on who computed what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cmlm.preparation import documents

# A line of a document, or the document itself (line 0): its fingerprint, how many
# sentences it has, and the language as an index.
_OWNER = [("number", "<u8"), ("language", "<u2")]
ROWS = np.dtype([("print", "<u8"), *_OWNER, ("line", "<u4"), ("sentences", "<u2")])

# Near-duplicates: MinHash (Broder, 1997) of runs of words, in bands (LSH). Documents
# that share a part s of their runs meet with probability 1 - (1 - s^8)^16: 0.95 at 0.8.
PERMUTATIONS = 128
BANDS = 16
RUN = 5
# A meeting counts if so large a part of the 128 values is equal.
SIMILARITY = 0.8
# With more different documents in one band than this, the later are not compared.
_MAX_COMPARED = 64
SIGNATURES = np.dtype([("print", "<u8"), *_OWNER, ("values", "<u2", PERMUTATIONS)])


def join(blocks: Iterable[bytes], dtype: np.dtype) -> np.ndarray:
    """One array of the blocks that arrived."""
    joined = bytearray()
    for block in blocks:
        joined += block
    return np.frombuffer(joined, dtype)


def batches(
    blocks: Iterable[bytes], dtype: np.dtype, size: int = 4 << 20
) -> Iterator[np.ndarray]:
    """Arrays of a few blocks each, together at least `size` bytes but for the last."""
    gathered = bytearray()
    for block in blocks:
        gathered += block
        if len(gathered) >= size:
            yield np.frombuffer(gathered, dtype)
            gathered = bytearray()
    if gathered:
        yield np.frombuffer(gathered, dtype)


def repeated(rows: np.ndarray) -> np.ndarray:
    """The rows whose fingerprint an earlier line of these rows has too.

    Args:
        rows: ROWS, all that share fingerprints among them.

    Returns:
        ROWS, without the first of each fingerprint by (number, line).
    """
    ordered = rows[np.lexsort((rows["line"], rows["number"], rows["print"]))]
    again = np.zeros(len(ordered), bool)
    again[1:] = ordered["print"][1:] == ordered["print"][:-1]
    return ordered[again]


def are_among(rows: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Whether the line of each row is one of these: ROWS [n] and ROWS [m] to bool [n].

    Lines are the same where number and line are.
    """
    owners, places = np.unique(lines["number"], return_inverse=True)
    if not len(owners):
        return np.zeros(len(rows), bool)
    own = np.searchsorted(owners, rows["number"])
    own = np.minimum(own, len(owners) - 1)
    known = owners[own] == rows["number"]
    return known & np.isin(
        own << 32 | rows["line"].astype(np.int64),
        places << 32 | lines["line"].astype(np.int64),
    )


def by_document(lines: np.ndarray) -> dict[int, np.ndarray]:
    """The places of lines in their documents: ROWS to {number: uint32 [n]}."""
    lines = lines[np.argsort(lines["number"], kind="stable")]
    numbers, starts = np.unique(lines["number"], return_index=True)
    places = lines["line"].copy()  # and not what stands between them
    return dict(zip(numbers.tolist(), np.split(places, starts[1:]), strict=False))


def signature(text: str) -> tuple[list[int], np.ndarray] | None:
    """The MinHash of a document.

    Args:
        text: all of it.

    Returns:
        The fingerprints of its BANDS bands, and its values, uint16 [PERMUTATIONS];
        None for a text of fewer words than a run.
    """
    from datasketch import MinHash

    words = text.split()
    if len(words) == 1:  # a script without spaces
        words = list(text)
    if len(words) < RUN:
        return None
    sketch = MinHash(num_perm=PERMUTATIONS, seed=1)
    runs = {" ".join(words[i : i + RUN]) for i in range(len(words) - RUN + 1)}
    sketch.update_batch([run.encode() for run in sorted(runs)])
    values = sketch.digest().astype("<u8")
    bands = [
        documents.fingerprint(f"{index} {band.tobytes().hex()}")
        for index, band in enumerate(np.split(values, BANDS))
    ]
    # 16 bits of each value are enough to compare by: chance equality is 2^-16.
    return bands, values.astype("<u2")


def near(rows: np.ndarray) -> np.ndarray:
    """The rows of documents that are near one with a smaller number.

    Args:
        rows: SIGNATURES; of a band that is among them, all.

    Returns:
        SIGNATURES, one row or more for each such document. In one band, a document
        that was dropped is no longer the one that another is near to.
    """
    order = np.lexsort((rows["number"], rows["print"]))  # rows are large: no copy
    prints = rows["print"][order]
    again = []
    for group in np.split(order, np.flatnonzero(prints[1:] != prints[:-1]) + 1):
        stay = rows["values"][group[:1]]
        for index in group[1:]:
            values = rows["values"][index]
            if (stay == values).mean(axis=1).max() >= SIMILARITY:
                again.append(index)
            elif len(stay) < _MAX_COMPARED:
                stay = np.concatenate([stay, values[None]])
    return rows[np.array(again, np.int64)]
