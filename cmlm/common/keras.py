"""The one module that chooses Keras: `from cmlm.common.keras import keras`.

Model Garden and TF Hub need Keras 2. Before TensorFlow 2.16, `tf.keras` is Keras 2.
From 2.16 on, `tf.keras` is Keras 3, and the package `tf_keras` is Keras 2. Layers of
Keras 2 and Keras 3 do not mix, so no other module imports either package directly.
"""

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterator

import tensorflow as tf

if tuple(int(part) for part in tf.__version__.split(".")[:2]) < (2, 16):
    keras = tf.keras
else:
    import tf_keras as keras

__all__ = ["building", "keras", "undrawn"]

# Holds the generator that gives every initializer its seed.
_SEEDS = inspect.getmodule(keras.utils.set_random_seed).backend._SEED_GENERATOR


@contextlib.contextmanager
def building(seed: int) -> Iterator[None]:
    """Makes layers float32, with the initial weights of a seed, in the block.

    The caller's policy comes back at the end. The weights are those after
    `keras.utils.set_random_seed`, which would also replace the caller's random states
    of Python, numpy and TensorFlow.
    """
    policy = keras.mixed_precision.global_policy()
    generator = getattr(_SEEDS, "generator", None)
    keras.mixed_precision.set_global_policy("float32")
    _SEEDS.generator = random.Random(seed)
    try:
        yield
    finally:
        keras.mixed_precision.set_global_policy(policy)
        _SEEDS.generator = generator


@contextlib.contextmanager
def undrawn() -> Iterator[Callable[[tf.Variable], None]]:
    """Leaves the weights of layers that are made in the block at zero.

    Weights that a file replaces need no initial values. The random values of a large
    vocabulary take more time and memory than its weights.

    Yields:
        A function that draws the initial values of such a weight after all. They are
        the same as without this block.
    """
    draws = {}

    def create(next_creator, **settings):
        initial = settings["initial_value"]
        if not isinstance(initial, functools.partial):
            return next_creator(**settings)
        # An initializer takes its seed from `building` at its first use.
        generator = getattr(initial.func, "_random_generator", None)
        if generator is not None:
            generator.make_seed_for_stateless_op()
        shape, dtype = settings["shape"], settings["dtype"]
        settings["initial_value"] = lambda: tf.zeros(shape, dtype)
        variable = next_creator(**settings)
        draws[variable.ref()] = initial
        return variable

    with tf.variable_creator_scope(create):
        yield lambda variable: variable.assign(draws[variable.ref()]())
