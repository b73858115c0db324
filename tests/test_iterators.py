"""No iterator of a training run is tuned: a tuned one takes up to a minute to end."""

import pytest
import tensorflow as tf
import toys
from tensorflow.python.data.ops import iterator_ops

from cmlm.common import iterators
from cmlm.training import building, engine
from cmlm.training.stages import Stage


@pytest.fixture
def tuned(monkeypatch):
    """Whether each dataset that an iterator is made of from now on is tuned."""
    found = []
    create = iterator_ops.OwnedIterator.__init__

    def note(self, dataset=None, *args, **kwargs):
        if dataset is not None:
            found.append(dataset.options().autotune.enabled)
        create(self, dataset, *args, **kwargs)

    monkeypatch.setattr(iterator_ops.OwnedIterator, "__init__", note)
    return found


@pytest.mark.usefixtures("eager")
@pytest.mark.large
@pytest.mark.parametrize("strategy", ["one_device", "mirrored"])
def test_a_run_has_no_tuned_iterator(tmp_path, tuned, strategy):
    text = toys.write_corpus(tmp_path / "corpus.txt")
    config = toys.run_config(text, **{"trainer.train_steps": 2})
    config.runtime.distribution_strategy = strategy
    engine.train(building.build(Stage(config, str(tmp_path / "model"))))
    assert len(tuned) >= 3
    # None: never said, which is TensorFlow's default, tuned.
    assert set(tuned) == {False}


def test_what_is_built_on_an_untuned_dataset_is_untuned(tuned):
    dataset = iterators.untuned(tf.data.Dataset.range(4)).map(lambda x: x + 1)
    assert list(dataset.batch(3).as_numpy_iterator())[1].tolist() == [4]
    assert tuned == [False]
