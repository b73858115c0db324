"""TensorFlow as toys need it; commands have threads and optimise their graphs."""

import tensorflow as tf


def configure() -> None:
    """Gives TensorFlow one thread, and switches the optimisation of graphs off.

    Every core has a process of tests, and a toy's graph runs faster than its
    optimisation. The first operation of the process freezes the number of threads.
    """
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    optimize_graphs(False)


def optimize_graphs(optimize: bool) -> None:
    tf.config.optimizer.set_experimental_options(
        {"disable_meta_optimizer": not optimize}
    )
