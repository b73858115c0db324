"""Arrays and tensors share memory where TensorFlow can, and never change each other."""

import numpy as np
import pytest
import tensorflow as tf

from cmlm.common import shared_memory


def test_a_tensor_shares_the_memory_of_an_array_made_for_it():
    array = shared_memory.empty_array([3, 5])
    array[:] = np.arange(15).reshape(3, 5)
    variable = tf.Variable(tf.zeros([3, 5]))
    variable.assign(shared_memory.as_tensor(array))
    np.testing.assert_array_equal(variable.numpy(), array)
    start = np.asarray(memoryview(shared_memory.as_tensor(array))).ctypes.data
    assert start == array.ctypes.data


@pytest.mark.parametrize("kind", ["not aligned", "read-only", "transposed"])
def test_other_arrays_are_copied(kind):
    array = shared_memory.empty_array([4, 4])
    array[:] = np.arange(16).reshape(4, 4)
    if kind == "not aligned":
        array = array.ravel()[1:]
    elif kind == "read-only":
        array.flags.writeable = False
    else:
        array = array.T
    tensor = shared_memory.as_tensor(array)
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert np.asarray(memoryview(tensor)).ctypes.data != array.ctypes.data


@pytest.mark.parametrize("is_gathered", [False, True])
def test_an_array_of_a_variable_does_not_change_with_it(is_gathered):
    variable = tf.Variable(tf.ones([3, 2]))
    if is_gathered:
        tf.gather(variable, [0])
    array = shared_memory.as_array(variable)
    variable.assign_add(tf.ones([3, 2]))
    variable.scatter_add(tf.IndexedSlices(tf.ones([1, 2]), [1]))
    np.testing.assert_array_equal(array, np.ones([3, 2]))
    assert not array.flags.writeable
