"""Damage to a file: every function takes its bytes and a seeded `random.Random`."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable

import numpy as np

Mutation = Callable[[bytes, random.Random], bytes]

# Values that programs forget: types, ranges, encodings, sizes.
NUMBERS = (
    *("0", "-1", "1", "true", "null", "1e5", "100000", "1000000000", "-5", "0.5"),
    *("NaN", "Infinity", "-Infinity", "1e400", "2147483648", "18446744073709551616"),
    "9" * 5000,
)
VALUES = (
    *NUMBERS,
    *('""', '"x"', '"\\ud800"', '"../../evil"', '"/elsewhere/evil"', "[]", "{}"),
    *("[1]", '{"a": 1}', '"' + "y" * 100_000 + '"', "[" * 3000 + "]" * 3000),
)
YAML_VALUES = (
    *("0", "-1", "1e5", "1000000000", ".nan", ".inf", "-.inf", "true", "~", "''"),
    *("2024-01-01", "2024-13-45", "!!int x", "!!float xyz", "!!python/object:os.x {}"),
    *("9" * 5000, "0x" + "f" * 5000, "[1, 2]", "{a: 1}", "&a [*a]", "*a", "!!binary x"),
    *("'../../evil'", "[" * 3000, "{a: " * 3000, '"\\ud800"', "0o9", "1:60:99", "? x"),
)
BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
)
_INSERTED = (
    *(b"\0", b"\xff\xfe", b"\r", b"\r\n", b"\n\n\n", b"\t", b"\t\t", b"\xef\xbb\xbf"),
    *("\u2028".encode(), b"\xed\xa0\x80", b"\x1a", b"x" * 70_000, b"\t" * 5000),
    b"\n" * 5000,
)


# ---------------------------------------------------------------------- bytes


def flip_bit(content: bytes, draw: random.Random) -> bytes:
    if not content:
        return b"\0"
    changed = bytearray(content)
    changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def flip_bytes(content: bytes, draw: random.Random) -> bytes:
    for _ in range(20):
        content = flip_bit(content, draw)
    return content


def truncate(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def empty(content: bytes, draw: random.Random) -> bytes:
    del content, draw
    return b""


def zeros(content: bytes, draw: random.Random) -> bytes:
    """Zeros a part, as a crash of the machine may."""
    start = draw.randrange(len(content) + 1)
    stop = min(len(content), start + draw.choice((1, 64, 4096)))
    return content[:start] + bytes(stop - start) + content[stop:]


def insert(content: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.choice(_INSERTED) + content[place:]


def append(content: bytes, draw: random.Random) -> bytes:
    return content + draw.choice((*_INSERTED, bytes(512)))


def remove(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    return content[:start] + content[start + draw.choice((1, 10, 1000)) :]


def double(content: bytes, draw: random.Random) -> bytes:
    del draw
    return content + content


def noise(content: bytes, draw: random.Random) -> bytes:
    return draw.randbytes(min(len(content), 5000))


BYTES = (
    *(flip_bit, flip_bit, flip_bytes, truncate, truncate, empty, zeros),
    *(insert, insert, append, remove, double, noise),
)


# ---------------------------------------------------------------------- text


def _lines(change) -> Mutation:
    def mutated(content: bytes, draw: random.Random) -> bytes:
        lines = content.split(b"\n")
        return b"\n".join(change(lines, draw))

    return mutated


def _swap_lines(lines, draw):
    a, b = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return lines


def _repeat_line(lines, draw):
    place = draw.randrange(len(lines))
    return lines[:place] + [lines[place]] * 3 + lines[place:]


def _drop_line(lines, draw):
    del lines[draw.randrange(len(lines))]
    return lines


def _long_line(lines, draw):
    lines[draw.randrange(len(lines))] = b"z" * draw.choice((20_000, 900_000, 1_500_000))
    return lines


def _column(lines, draw):
    place = draw.randrange(len(lines))
    cells = lines[place].split(b"\t")
    column = draw.randrange(len(cells))
    new = draw.choice((b"", b" ", b"nan", b"1e999", b"-1", b"a\tb", b"\0", b'"'))
    cells[column : column + 1] = draw.choice(([], [new], [new, new]))
    lines[place] = b"\t".join(cells)
    return lines


TEXT = (
    *BYTES,
    *map(_lines, (_swap_lines, _repeat_line, _drop_line, _long_line)),
    *map(_lines, (_column, _column, _column)),
)


def packed(mutation: Mutation) -> Mutation:
    """The same damage inside a gzip file."""

    def mutated(content: bytes, draw: random.Random) -> bytes:
        return gzip.compress(mutation(gzip.decompress(content), draw), mtime=0)

    return mutated


def packed_bzip2(mutation: Mutation) -> Mutation:
    """The same damage inside a bzip2 file."""

    def mutated(content: bytes, draw: random.Random) -> bytes:
        return bz2.compress(mutation(bz2.decompress(content), draw))

    return mutated


def _zeros_behind(content: bytes, draw: random.Random) -> bytes:
    # Padding of tapes and block devices; gzip accepts it.
    return content + bytes(draw.choice((1, 512, 4096)))


def _two_members(content: bytes, draw: random.Random) -> bytes:
    return content + draw.choice((content, content[:-4], b"\x1f\x8b", b"PK"))


GZIP = (*BYTES, *map(packed, TEXT), _zeros_behind, _zeros_behind, _two_members)


# -------------------------------------------------------------- JSON and YAML


def _json_places(values, found=()):
    if isinstance(values, dict):
        for key in values:
            yield (*found, key)
            yield from _json_places(values[key], (*found, key))
    elif isinstance(values, list):
        for index, value in enumerate(values[:50]):
            yield (*found, index)
            yield from _json_places(value, (*found, index))


def json_value(content: bytes, draw: random.Random) -> bytes:
    """Replaces one value, wherever it is."""
    values = json.loads(content)
    places = list(_json_places(values))
    # Values near the root decide more; long lists would take most of the draws.
    places = [place for place in places if len(place) < 3] * 5 + places
    if not places:
        return b"[]"
    *above, last = draw.choice(places)
    node = values
    for key in above:
        node = node[key]
    if draw.random() < 0.15:
        del node[last]
        return json.dumps(values).encode()
    node[last] = "@@@"
    return json.dumps(values).replace('"@@@"', draw.choice(VALUES)).encode()


def json_root(content: bytes, draw: random.Random) -> bytes:
    del content
    return draw.choice((*VALUES, "[" * 100_000, '{"a":' * 100_000)).encode()


def json_row(content: bytes, draw: random.Random) -> bytes:
    """Replaces a value in one line of JSON lines."""
    lines = content.split(b"\n")
    place = draw.randrange(len(lines))
    try:
        lines[place] = draw.choice((json_value, json_root))(lines[place], draw)
    except ValueError:
        lines[place] = draw.choice(VALUES).encode()
    return b"\n".join(lines)


JSON = (*BYTES, *[json_value] * 12, json_root)
JSON_LINES = (*BYTES, *TEXT[len(BYTES) :], *[json_row] * 8)
BZIP2 = (*BYTES, *map(packed_bzip2, JSON_LINES))


def yaml_value(content: bytes, draw: random.Random) -> bytes:
    lines = content.decode().split("\n")
    places = [i for i, line in enumerate(lines) if re.search(r":\s*\S*$", line)]
    place = draw.choice(places)
    key = lines[place].partition(":")[0]
    lines[place] = f"{key}: {draw.choice(YAML_VALUES)}"
    return "\n".join(lines).encode()


def yaml_key(content: bytes, draw: random.Random) -> bytes:
    lines = content.decode().split("\n")
    place = draw.randrange(len(lines))
    new = draw.choice(("evil: 1", "? [a]\n: 1", "1: 2", "~: 1", "<<: {a: 1}", "- a"))
    return "\n".join([*lines[:place], new, *lines[place:]]).encode()


def yaml_root(content: bytes, draw: random.Random) -> bytes:
    del content
    return draw.choice((*YAML_VALUES, BOMB)).encode()


YAML = (*BYTES, *[yaml_value] * 12, yaml_key, yaml_key, yaml_root, yaml_root)


# --------------------------------------------------------------------- arrays


def npy_values(content: bytes, draw: random.Random) -> bytes:
    """Writes numbers that a vector cannot have, or another type or shape."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    kind = draw.randrange(6)
    if kind == 0:
        array = array.copy()
        array.flat[draw.randrange(array.size)] = draw.choice((np.nan, np.inf, -np.inf))
    elif kind == 1:
        array = array[: draw.randrange(len(array) + 1)]
    elif kind == 2:
        array = array.astype(
            draw.choice(("<f8", "<f2", "<i4", "<c8", "U3", "?", ">f4"))
        )
    elif kind == 3:
        array = draw.choice((array[..., :-1], array.ravel(), array[..., None], array.T))
    elif kind == 4:
        array = array * np.float32(draw.choice((0, 1e30, 1e-40)))
    else:
        # A header that promises more than memory holds.
        rows = draw.choice((10**6, 10**9, 10**12))
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header,
            {"descr": "<f4", "fortran_order": False, "shape": (rows, array.shape[-1])},
        )
        return header.getvalue() + array.tobytes()
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def npz_member(content: bytes, draw: random.Random) -> bytes:
    """Damages one array of an archive, whose checksums fit again."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(sorted(members))
    kind = draw.randrange(8)
    if kind == 0:
        del members[name]
    elif kind == 1:
        members["evil.npy"] = members[name]
    elif kind == 2:
        # 6 GB of zeros in some MB.
        return _zeros_npz(
            name.removesuffix(".npy"), draw.choice((5 << 28, 5 << 28, 6 << 30))
        )
    elif kind < 6 and not name.startswith("header"):
        members[name] = npy_values(members[name], draw)
    elif name.startswith("header"):
        text = str(np.load(io.BytesIO(members[name]), allow_pickle=False))
        damaged = json_value(text.encode(), draw).decode()
        stream = io.BytesIO()
        np.save(stream, np.array(damaged), allow_pickle=False)
        members[name] = stream.getvalue()
    else:
        members[name] = draw.choice(BYTES)(members[name], draw)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for each, data in members.items():
            archive.writestr(each, data)
    return stream.getvalue()


_BOMBS: dict = {}


def _zeros_npz(name: str, size: int) -> bytes:
    if (name, size) not in _BOMBS:
        stream = io.BytesIO()
        with zipfile.ZipFile(
            stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1
        ) as made:
            with made.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array_header_1_0(
                    member,
                    {
                        "descr": "<f4",
                        "fortran_order": False,
                        "shape": (1, 1, size // 4),
                    },
                )
                block = bytes(1 << 24)
                for _ in range(size >> 24):
                    member.write(block)
        _BOMBS[name, size] = stream.getvalue()
    return _BOMBS[name, size]


NPY = (*BYTES, *[npy_values] * 10)
NPZ = (*BYTES, *[npz_member] * 10)


def safetensors_header(content: bytes, draw: random.Random) -> bytes:
    """Damages the JSON at the front, whose length fits again."""
    size = struct.unpack("<Q", content[:8])[0]
    header = json_value(content[8 : 8 + size], draw)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


def safetensors_size(content: bytes, draw: random.Random) -> bytes:
    size = draw.choice((0, 1, 2**31, 2**63 - 1, 2**64 - 1, len(content)))
    return struct.pack("<Q", size) + content[8:]


def safetensors_name(content: bytes, draw: random.Random) -> bytes:
    """Renames a tensor."""
    size = struct.unpack("<Q", content[:8])[0]
    values = json.loads(content[8 : 8 + size])
    name = draw.choice(sorted(values))
    row = values.pop(name)
    number = draw.choice(("10000000", "9" * 5000, "-1", "01", "\u0663"))
    new = re.sub(r"\.\d+\.", f".{number}.", name)
    values[draw.choice((new, f"encoder.layer.{number}.output.dense.bias"))] = row
    header = json.dumps(values).encode()
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


SAFETENSORS = (
    *BYTES,
    *[safetensors_header] * 5,
    *[safetensors_name] * 4,
    safetensors_size,
)


# ---------------------------------------------------------------------- flags


def flag_line(content: bytes, draw: random.Random) -> bytes:
    lines = content.decode().split("\n")
    new = draw.choice(
        (
            *("--evil=1", "evil", "--", "--flagfile=f.flags", "--flagfile=/nowhere"),
            *("--noexperiment", "--mode=x", "--experiment=", "--params_override=a"),
            *(f"--params_override=model.num_layers={v}" for v in YAML_VALUES),
            *(f"--params_override=trainer.seed={v}" for v in YAML_VALUES),
            *(f"--params_override=model.hidden_size={v}" for v in YAML_VALUES),
            "--params_override=trainer.optimizer.learning_rate=nan",
            f"--params_override={BOMB}",
            "--params_override=model=5",
            "--params_override=a[b]=1,,=",
        )
    )
    place = draw.randrange(len(lines) + 1)
    return "\n".join([*lines[:place], new, *lines[place:]]).encode()


FLAGS = (*BYTES, *[flag_line] * 14)
