"""Tokens per second of a training step, on batches of random tokens.

python benchmarks/step_pace.py --params_override=model.preset=mini,model.num_layers=2
python benchmarks/step_pace.py --precision=bfloat16 --batch=256 --length=32

Prints the median of some steps for masked LM and for CMLM, whose tokens are those of
both sentences. Random tokens cost what real ones do. --padding is the share of padding,
about 0.2 in batches of sentences of similar length; the pace counts real tokens.
"""

import functools
import statistics
import time

import workers
from absl import flags

from cmlm import cli

flags.DEFINE_integer("batch", 256, "Sentences or pairs a step.")
flags.DEFINE_integer("length", 32, "Tokens of a sentence.")
flags.DEFINE_integer("predictions", 10, "Masked tokens of a sentence.")
flags.DEFINE_float("padding", 0.0, "Share of padding in a batch.", 0.0, 0.5)
flags.DEFINE_integer("vocab_size", 8000, "Entries of the vocabulary.")
flags.DEFINE_integer("steps", 5, "Timed steps.")
flags.DEFINE_string("precision", "float32", "float32 or bfloat16.")
flags.DEFINE_multi_string("params_override", [], "As in cmlm.train.")
flags.DEFINE_integer("threads", 0, "Processors; 0: all.")
flags.DEFINE_bool("worker", False, "Internal: training.py asks for steps of CMLM.")

FLAGS = flags.FLAGS


def main(_) -> None:
    with cli.quiet_imports():
        import tensorflow as tf

        from cmlm.common import distributed
        from cmlm.common.keras import keras
        from cmlm.config import loading
        from cmlm.modeling import optimization
        from cmlm.modeling.model import SentenceModel
        from cmlm.objectives import OBJECTIVES
        from cmlm.training.trainer import Trainer

    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    keras.backend.experimental.enable_tf_random_generator()
    distributed.set_precision(FLAGS.precision)
    size = f"model.vocab_size={FLAGS.vocab_size}"
    config = loading.load("cmlm/english", (), [*FLAGS.params_override, size])
    config.validate()

    def tokens(columns):
        shape = [FLAGS.batch, columns]
        return tf.random.uniform(shape, 5, FLAGS.vocab_size, tf.int32)

    least = round((1 - 2 * FLAGS.padding) * FLAGS.length)
    lengths = tf.linspace(float(least), float(FLAGS.length), FLAGS.batch)
    mask = tf.sequence_mask(tf.random.shuffle(tf.round(lengths)), FLAGS.length)
    mask = tf.cast(mask, tf.int32)
    positions = tf.range(1, FLAGS.predictions + 1)[tf.newaxis]
    batch = {
        "context_word_ids": tokens(FLAGS.length),
        "context_mask": mask,
        "input_word_ids": tokens(FLAGS.length),
        "input_mask": mask,
        "masked_lm_positions": tf.tile(positions, [FLAGS.batch, 1]),
        "masked_lm_ids": tokens(FLAGS.predictions),
        "masked_lm_weights": tf.ones([FLAGS.batch, FLAGS.predictions]),
    }
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    for name, sentences in (("mlm", 1), ("cmlm", 2)):
        if FLAGS.worker and name == "mlm":
            continue
        settings = getattr(config.task, name)
        settings.weight, settings.train_data.global_batch_size = 1.0, FLAGS.batch
        with strategy.scope():
            model = SentenceModel(config.model)
            objective = OBJECTIVES[name](
                name, settings, model, tokenizer=None, data=None
            )
            repeated = tf.data.Dataset.from_tensors(batch).repeat()
            objective.train_dataset = lambda _, skip_batches, data=repeated: data
            optimizer = optimization.build_optimizer(config.trainer.optimizer, 1000)
            trainer = Trainer(
                model, {name: objective}, optimizer, strategy, config.trainer
            )
        if FLAGS.worker:
            step = functools.partial(trainer.train, 1)
            workers.serve(run=functools.partial(workers.seconds, step))
            return
        trainer.train(2)
        seconds = []
        for _ in range(FLAGS.steps):
            start = time.monotonic()
            trainer.train(1)
            seconds.append(time.monotonic() - start)
        median = statistics.median(seconds)
        pace = sentences * int(tf.reduce_sum(mask)) / median
        print(f"{name}  {median:.3f} s a step  {pace:,.0f} tokens/s")


if __name__ == "__main__":
    cli.run(main)
