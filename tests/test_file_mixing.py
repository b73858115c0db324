"""Large and small files end together, and every line is read once."""

import numpy as np
import pytest
import tensorflow as tf
from texts import write

from cmlm.data import file_mixing, line_files

pytestmark = pytest.mark.usefixtures("unconverted")


def read(paths, seed=None):
    dataset = file_mixing.read_together(
        paths, lambda *file: line_files.read(*file).unbatch(), seed
    )
    return [line.decode() for line in dataset.as_numpy_iterator()]


def test_a_small_file_is_spread_over_the_whole_pass(tmp_path):
    lines = {"large": 2000, "small": 100, "packed.gz": 400}
    paths = [
        write(tmp_path / name, "".join(f"{name} {i:06}\n" for i in range(n)))
        for name, n in lines.items()
    ]
    found = read(paths)
    assert len(set(found)) == len(found) == sum(lines.values())
    for name in ("large", "small"):
        places = [i for i, line in enumerate(found) if line.startswith(name)]
        assert [found[i] for i in places] == sorted(found[i] for i in places)
    # The packed file ends first: these lines pack better than text.
    small = [i for i, line in enumerate(found) if line.startswith("small")]
    assert np.mean(small) / len(found) == pytest.approx(0.5, abs=0.1)
    assert small[-1] > 0.9 * len(found)


def test_more_files_than_lanes_are_all_read_and_the_seed_orders_them(tmp_path):
    paths = [
        write(tmp_path / f"{n}.txt", f"file {n}\n" * (n % 5)) for n in range(3 * 8 + 1)
    ]
    expected = sorted(f"file {n}" for n in range(25) for _ in range(n % 5))
    first, second = read(paths, seed=1), read(paths, seed=2)
    assert sorted(first) == sorted(second) == expected
    assert first != second
    assert first == read(paths, seed=1)


def test_no_file_waits_for_another(tmp_path):
    paths = [write(tmp_path / "empty.txt", ""), write(tmp_path / "a.txt", "a\nb\n")]
    assert read(paths) == ["a", "b"]


@pytest.mark.parametrize("n_files", [1, 5, 8, 9, 100])
def test_lanes_hold_every_file_once_and_are_nearly_equal(n_files):
    sizes = np.random.default_rng(n_files).integers(0, 100, n_files).astype(float)
    lanes = file_mixing.divide(sizes, 8)
    assert len(lanes) == min(8, n_files) and all(lanes)
    assert sorted(file for lane in lanes for file in lane) == list(range(n_files))
    totals = [sizes[lane].sum() for lane in lanes]
    # The bound of this greedy order: no lane exceeds another by more than one file.
    if n_files > 8:
        assert max(totals) - min(totals) <= sizes.max()


def test_draws_are_in_proportion_in_every_part_of_the_cycle():
    sizes = [6.0, 3.0, 1.0, 0.0]
    order = file_mixing.draws(sizes, 1000)
    assert order.dtype == np.int64
    for part in np.array_split(order, 10):
        counts = np.bincount(part, minlength=4)
        np.testing.assert_allclose(counts[:3], [60, 30, 10], atol=2)
    assert (order == 3).sum() == 1


def test_a_dataset_of_empty_files_ends(tmp_path):
    paths = [write(tmp_path / f"{n}.txt", "") for n in range(3)]
    assert read(paths) == []


def test_a_later_pass_orders_the_files_anew(tmp_path):
    paths = [write(tmp_path / f"{n:02}.txt", f"{n}\n") for n in range(40)]
    dataset = file_mixing.read_together(paths, line_files.read, 3).unbatch()
    passes = [tuple(dataset.as_numpy_iterator()) for _ in range(2)]
    assert passes[0] != passes[1]
    both = tf.data.Dataset.repeat(dataset, 2)
    repeated = list(both.as_numpy_iterator())
    assert sorted(repeated[:40]) == sorted(repeated[40:])
    assert repeated[:40] != repeated[40:]
