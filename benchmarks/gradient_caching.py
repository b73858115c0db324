"""Time and memory of a bitext step whose batch does not fit into memory.

python benchmarks/gradient_caching.py --global_batch=2048 --micro_batch=64 --length=64
python benchmarks/gradient_caching.py --global_batch=256 --peer=/path/to/venv/bin/python
python benchmarks/gradient_caching.py --arms=cached --nowarm_up

Three arms on the same random tokens of full length, each in a process of its own:

cached     one step of the whole batch, in micro-batches, with gradient caching
uncached   the same pairs as steps of one micro-batch each: fewer candidates a text
peer       sentence-transformers' CachedMultipleNegativesRankingLoss on a BERT of the
           same shape, by an interpreter that has torch and sentence-transformers

Prints the seconds for the pairs of one global batch (median of --repeats, after one
that is not counted), the ratio to the first arm, and the peak RSS. With --nowarm_up
the first batch is counted, with what it takes to build the graph: at BERT-base and 2048
pairs that is a small part of half an hour.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

from absl import flags

from cmlm import cli

flags.DEFINE_string("preset", "base", "Shape of the encoder.")
flags.DEFINE_integer("global_batch", 2048, "Pairs a step.")
flags.DEFINE_integer("micro_batch", 64, "Pairs held in memory at a time.")
flags.DEFINE_integer("length", 64, "Tokens of each text.")
flags.DEFINE_integer("vocab_size", 30522, "Entries of the vocabulary.")
flags.DEFINE_integer("repeats", 1, "Timed repetitions.")
flags.DEFINE_bool("warm_up", True, "Whether a first repetition is not counted.")
flags.DEFINE_list("arms", ["uncached", "cached"], "Arms of cmlm to time.")
flags.DEFINE_integer("threads", 2, "Threads of the peer; TensorFlow takes all cores.")
flags.DEFINE_string("peer", "", "Interpreter with sentence-transformers; empty: none.")
flags.DEFINE_string("arm", "", "Used by the benchmark itself.")

FLAGS = flags.FLAGS

_PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cached_mnrl_peer.py")


def _measure(arm: str) -> dict:
    """Times one of our arms in this process."""
    with cli.quiet_imports():
        import numpy as np
        import tensorflow as tf

        from cmlm.common import fields
        from cmlm.common.keras import keras
        from cmlm.config import loading
        from cmlm.modeling import optimization
        from cmlm.modeling.model import SentenceModel
        from cmlm.objectives import OBJECTIVES
        from cmlm.training.trainer import Trainer

    keras.backend.experimental.enable_tf_random_generator()
    config = loading.load("labse/dual_encoder", (), [f"model.preset={FLAGS.preset}"])
    config.model.vocab_size = FLAGS.vocab_size
    fields.check(config.model, "model.")
    settings = config.task.bitext
    is_cached = arm == "cached"
    size = FLAGS.global_batch if is_cached else FLAGS.micro_batch
    settings.train_data.global_batch_size = size
    config.trainer.micro_batch_size = FLAGS.micro_batch if is_cached else 0

    random = np.random.default_rng(0)
    batch = {}
    for side in ("source", "target"):
        ids = random.integers(5, FLAGS.vocab_size, [size, FLAGS.length])
        batch[f"{side}_word_ids"] = tf.constant(ids, tf.int32)
        batch[f"{side}_mask"] = tf.ones([size, FLAGS.length], tf.int32)
        batch[f"{side}_hash"] = tf.constant(random.integers(1, 1 << 60, size))
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = SentenceModel(config.model)
        objective = OBJECTIVES["bitext"](
            "bitext", settings, model, tokenizer=None, data=None
        )
        repeated = tf.data.Dataset.from_tensors(batch).repeat()
        objective.train_dataset = lambda _, skip_batches: repeated
        trainer = Trainer(
            model,
            {"bitext": objective},
            optimization.build_optimizer(config.trainer.optimizer, 1000),
            strategy,
            config.trainer,
        )
    steps = 1 if is_cached else FLAGS.global_batch // FLAGS.micro_batch
    if FLAGS.warm_up:
        # The uncached graph needs no whole global batch for that.
        trainer.train(1)
    seconds = []
    for _ in range(FLAGS.repeats):
        start = time.monotonic()
        trainer.train(steps)
        seconds.append(time.monotonic() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": statistics.median(seconds), "peak_gb": peak}


def main(_) -> None:
    if FLAGS.arm:
        print(json.dumps(_measure(FLAGS.arm)))
        return
    given = [
        f"--{name}={getattr(FLAGS, name)}"
        for name in ("global_batch", "micro_batch", "length", "vocab_size", "repeats")
    ]
    given += [f"--preset={FLAGS.preset}", f"--warm_up={FLAGS.warm_up}"]
    commands = {
        arm: [sys.executable, __file__, *given, f"--arm={arm}"] for arm in FLAGS.arms
    }
    if FLAGS.peer:
        commands["peer"] = [FLAGS.peer, _PEER, *given, f"--threads={FLAGS.threads}"]
    base = None
    for arm, command in commands.items():
        output = subprocess.check_output(command)
        result = json.loads(output.splitlines()[-1])
        base = base or result["seconds"]
        print(
            f"{arm:9} {result['seconds']:8.1f} s  {result['seconds'] / base:.2f}x  "
            f"peak RSS {result['peak_gb']:.2f} GB",
            flush=True,
        )


if __name__ == "__main__":
    cli.run(main)
