"""Memory of training BERT-base with LaBSE's vocabulary of 501,153 tokens, by part.

    python benchmarks/large_vocabulary.py
    python benchmarks/large_vocabulary.py --vocab_size=30522 --preset=tiny

Two steps of masked LM with LAMB on random tokens, through the trainer. After each part
comes a row with what its tensors take, the memory that the process has now, and the
most it had on the way there. Needs Linux; 16 GB for the first command.
"""

import time

from absl import flags

from cmlm import cli

flags.DEFINE_integer("vocab_size", 501_153, "Tokens.")
flags.DEFINE_string("preset", "base", "Shape of the encoder.")
flags.DEFINE_integer("batch", 8, "Sentences of a step.")
flags.DEFINE_integer("length", 64, "Tokens of a sentence.")
flags.DEFINE_integer("predictions", 10, "Masked tokens of a sentence.")
flags.DEFINE_integer("micro_batch", 0, "Sentences at a time; 0: all.")

FLAGS = flags.FLAGS
_GB = 2**30


def memory() -> tuple[float, float]:
    """GB that the process has, and the most it had since the last call."""
    with open("/proc/self/status", encoding="ascii") as file:
        found = dict(line.split(":", 1) for line in file)
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")  # forgets the peak
    now, most = (int(found[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now / _GB, most / _GB


class Table:
    """Prints a row for each part, as it is reached."""

    def __init__(self):
        print(f"{'GB':28}{'tensors':>9}{'now':>9}{'most':>9}{'seconds':>9}")
        self._began = time.monotonic()

    def row(self, part: str, values=()) -> None:
        """`values` are the tensors that the part added."""
        size = sum(value.shape.num_elements() * value.dtype.size for value in values)
        now, most = memory()
        seconds = time.monotonic() - self._began
        print(
            f"{part:28}{size / _GB:9.2f}{now:9.2f}{most:9.2f}{seconds:9.1f}", flush=True
        )
        self._began = time.monotonic()


def main(_) -> None:
    table = Table()
    with cli.quiet_imports():
        import tensorflow as tf

        from cmlm.common.keras import keras
        from cmlm.config import loading
        from cmlm.modeling import optimization
        from cmlm.modeling.model import SentenceModel
        from cmlm.objectives import OBJECTIVES
        from cmlm.training.trainer import Trainer

    keras.backend.experimental.enable_tf_random_generator()
    config = loading.load(
        "cmlm/english",
        (),
        [
            f"model.preset={FLAGS.preset},model.vocab_size={FLAGS.vocab_size}",
            "trainer.optimizer.warmup_steps=0",
            f"trainer.micro_batch_size={FLAGS.micro_batch}",
        ],
    )
    config.validate()
    settings = config.task.mlm
    settings.weight, settings.train_data.global_batch_size = 1.0, FLAGS.batch
    table.row("imports")

    def tokens(columns):
        shape = [FLAGS.batch, columns]
        return tf.random.uniform(shape, 5, FLAGS.vocab_size, tf.int32)

    positions = tf.range(1, FLAGS.predictions + 1)[tf.newaxis]
    batch = {
        "input_word_ids": tokens(FLAGS.length),
        "input_mask": tf.ones([FLAGS.batch, FLAGS.length], tf.int32),
        "masked_lm_positions": tf.tile(positions, [FLAGS.batch, 1]),
        "masked_lm_ids": tokens(FLAGS.predictions),
        "masked_lm_weights": tf.ones([FLAGS.batch, FLAGS.predictions]),
    }
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = SentenceModel(config.model)
        objective = OBJECTIVES["mlm"]("mlm", settings, model, tokenizer=None, data=None)
        repeated = tf.data.Dataset.from_tensors(batch).repeat()
        objective.train_dataset = lambda _, skip_batches: repeated
        variables = {
            variable.ref(): variable
            for part in model.parts.values()
            for variable in part.trainable_variables
        }.values()
        count = sum(variable.shape.num_elements() for variable in variables)
        table.row(f"weights, {count / 1e6:.1f} M", variables)
        optimizer = optimization.build_optimizer(config.trainer.optimizer, 1000)
        trainer = Trainer(
            model, {"mlm": objective}, optimizer, strategy, config.trainer
        )
    table.row("slots of LAMB", optimizer.variables()[1:])
    for step in (1, 2):
        metrics = trainer.train(1)
        table.row(f"step {step}, its gradient", variables)
        print(f"    loss {metrics['mlm/loss']:.3f}")


if __name__ == "__main__":
    cli.run(main)
