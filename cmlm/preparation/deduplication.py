"""Arrays of fingerprints of documents and lines, and the search for repeated ones.

Workers exchange arrays and no text: a line costs 26 bytes. The document with the
smallest number stays, so the result does not depend on the distribution of the work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from cmlm.preparation import documents, filters

# A line of a document, or the document itself (line 0): its fingerprint, its owner, the
# index of its language and its number of sentences.
_OWNER = [("number", "<u8"), ("language", "<u2")]
ROWS = np.dtype([("print", "<u8"), *_OWNER, ("line", "<u4"), ("sentences", "<u4")])
# The least size of a batch of rows.
_BATCH_BYTES = 4 << 20

# Near-duplicates: MinHash (Broder, 1997) of runs of words, in bands (LSH). Documents
# that share a part s of their runs meet with probability 1 - (1 - s^8)^16: 0.95 at 0.8.
PERMUTATIONS = 128
BANDS = 16
RUN = 5
# Two documents are near duplicates if this share of the 128 values is equal.
SIMILARITY = 0.8
# In each band, a document is compared with at most this many others.
_MAX_COMPARED = 64
SIGNATURES = np.dtype([("print", "<u8"), *_OWNER, ("values", "<u2", PERMUTATIONS)])


def join(blocks: Iterable[bytes], dtype: np.dtype) -> np.ndarray:
    """Joins blocks into one array."""
    joined = bytearray()
    for block in blocks:
        joined += block
    return np.frombuffer(joined, dtype)


def batches(blocks: Iterable[bytes], dtype: np.dtype) -> Iterator[np.ndarray]:
    """Joins blocks into arrays of at least 4 MB; the last may be smaller."""
    gathered = bytearray()
    for block in blocks:
        gathered += block
        if len(gathered) >= _BATCH_BYTES:
            yield np.frombuffer(gathered, dtype)
            gathered = bytearray()
    if gathered:
        yield np.frombuffer(gathered, dtype)


def repeated(rows: np.ndarray) -> np.ndarray:
    """Finds the rows whose fingerprint occurs in an earlier row.

    Args:
        rows: ROWS, with all rows of each fingerprint.

    Returns:
        ROWS, without the first row of each fingerprint by (number, line).
    """
    ordered = rows[np.lexsort((rows["line"], rows["number"], rows["print"]))]
    again = np.zeros(len(ordered), bool)
    again[1:] = ordered["print"][1:] == ordered["print"][:-1]
    return ordered[again]


def are_among(rows: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """Whether each row is in `lines`, compared by number and line.

    Args:
        rows: ROWS [n].
        lines: ROWS [m].

    Returns:
        bool [n].
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
    """Groups lines by document: ROWS to {number: line indices, uint32 [n]}."""
    lines = lines[np.argsort(lines["number"], kind="stable")]
    numbers, starts = np.unique(lines["number"], return_index=True)
    places = lines["line"].copy()  # a view would keep all fields in memory
    return dict(zip(numbers.tolist(), np.split(places, starts[1:]), strict=False))


def signature(text: str) -> tuple[list[int], np.ndarray] | None:
    """The MinHash of a document.

    Args:
        text: the whole document. In scripts without spaces a character is a word.

    Returns:
        The fingerprints of the BANDS bands and the values, uint16 [PERMUTATIONS]; None
        for a text with fewer than RUN words.
    """
    from datasketch import MinHash

    words = filters.separated(text)
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
    # 16 bits of each value suffice: two values agree by chance with 2^-16.
    return bands, values.astype("<u2")


def near(rows: np.ndarray) -> np.ndarray:
    """Finds near duplicates of documents with smaller numbers.

    Args:
        rows: SIGNATURES, with all rows of each band.

    Returns:
        SIGNATURES, one or more rows for each near duplicate. Inside a band, documents
        are compared only with documents that stay.
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
