"""Blocks that wait on disk come back whole, and few are in memory at a time."""

import os
import random
import tracemalloc

import apache_beam as beam
import pytest

from cmlm.common import beam_files, beam_runner
from cmlm.preparation import spilling


def _grouped(element):
    key, values = element
    assert all(isinstance(value, str) for value in values)
    return f"{key} {b','.join(sorted(spilling.read(values))).decode()}"


@pytest.mark.parametrize("gathered", [10, 1 << 20])
def test_groups_hold_what_was_sent(tmp_path, monkeypatch, gathered):
    monkeypatch.setattr(spilling, "_GATHERED", gathered)
    sent = [(n % 7, f"block {n:03d}".encode()) for n in range(100)]
    scratch, output = tmp_path / "scratch", tmp_path / "output.txt"
    scratch.mkdir()

    def write(lines):
        with beam_files.atomic_text(str(output)) as file:
            file.write("\n".join(sorted(lines)))

    def build(pipeline):
        (
            pipeline
            | beam.Create(sent)
            | spilling.Spill(str(scratch))
            | beam.GroupByKey()
            | beam.Map(_grouped)
            | beam.combiners.ToList()
            | beam.Map(write)
        )

    beam_runner.run(build, workers=1)
    expected = [
        f"{key} {','.join(f'block {n:03d}' for n in range(key, 100, 7))}"
        for key in range(7)
    ]
    assert output.read_text().split("\n") == expected
    assert len(os.listdir(scratch)) == 7


def _spilled(directory, blocks):
    """The paths of one bundle with these blocks, all of one key."""
    append = spilling._Append(str(directory))
    append.start_bundle()
    for block in blocks:
        append.process((5, block))
    return [item.value[1] for item in append.finish_bundle()]


def test_numbers_decide_the_order_over_files_and_blocks(tmp_path):
    numbers = random.Random(1).sample(range(1 << 60), 50)
    blocks = [spilling.numbered(n, str(n).encode()) for n in numbers]
    values = [
        *_spilled(tmp_path, blocks[:20]),
        *blocks[20:30],
        *_spilled(tmp_path, blocks[30:]),
    ]
    found = list(spilling.read_in_order(iter(values)))
    assert found == [(n, str(n).encode()) for n in sorted(numbers)]
    assert len(set(values)) == 12


def test_a_full_disk_is_named(tmp_path):
    append = spilling._Append(str(tmp_path))
    append.start_bundle()
    append.process((5, b"block"))
    path = tmp_path / f"5-{append._bundle}"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as error:
        append._write()
    assert error.value.filename == str(path)


def test_memory_does_not_follow_the_size(tmp_path, monkeypatch):
    """30 times what is gathered, written and read: little more than that at a time."""
    monkeypatch.setattr(spilling, "_GATHERED", 1 << 20)
    block, blocks = os.urandom(50_000), 600
    tracemalloc.start()
    numbered = (spilling.numbered(n, block) for n in range(blocks))
    (path,) = _spilled(tmp_path, numbered)
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
    tracemalloc.reset_peak()
    for count, (number, content) in enumerate(spilling.read_in_order([path]), 1):
        assert number == count - 1 and content == block
    assert count == blocks
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
