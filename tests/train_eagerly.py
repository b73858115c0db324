"""`python -m cmlm.train` as the tests compute: eagerly, with one thread."""

import runpy

from cmlm import cli

with cli.quiet_imports():
    import quick
    import tensorflow as tf

if __name__ == "__main__":
    quick.configure()
    tf.config.run_functions_eagerly(True)
    runpy.run_module("cmlm.train", run_name="__main__", alter_sys=True)
