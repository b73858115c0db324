"""One of two workers, with TF_CONFIG set: `python -m worker DIRECTORY`.

What it finds goes to DIRECTORY/worker-N.json (and .npz), which test_workers.py reads.
"""

import json
import os
import signal
import sys
from pathlib import Path

from cmlm import cli

with cli.quiet_imports():
    import numpy as np
    import quick
    import tensorflow as tf
    import toys

    from cmlm.common import distributed, workers
    from cmlm.common.keras import keras
    from cmlm.config import overrides
    from cmlm.errors import UserError
    from cmlm.modeling import optimization
    from cmlm.training import building, engine
    from cmlm.training.finite import NonFiniteError
    from cmlm.training.stages import Stage
    from cmlm.training.trainer import Trainer


def toy_trainer(strategy) -> Trainer:
    """Dropout on; eight batches of two, dealt out to the replicas in turn."""
    keras.backend.experimental.enable_tf_random_generator()
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = toys.model(num_layers=1, dropout_rate=0.2, attention_dropout_rate=0.2)
        text = [toys.pair_batch(2, seed=i) for i in range(8)]
        # Its negatives are those of both workers.
        bitext = [toys.bitext_batch(2, seed=i) for i in range(8)]
        objectives = {
            "cmlm": toys.objective("cmlm", model, text),
            "bitext": toys.objective("bitext", model, bitext),
        }
        config = toys.trainer_config(seed=5)
        config.optimizer = optimization.OptimizerConfig(
            learning_rate=0.01, warmup_steps=1
        )
        optimizer = optimization.build_optimizer(config.optimizer, 10)
        return Trainer(model, objectives, optimizer, strategy, config)


def weights(trainer: Trainer) -> dict[str, np.ndarray]:
    """Every weight of the model, by its place."""
    return {
        f"{name}/{number}": value
        for name, part in trainer.model.parts.items()
        for number, value in enumerate(part.get_weights())
    }


def dropout_mask(trainer: Trainer, step: int) -> list[float]:
    """What this worker's first dropout layer lets through."""
    layers = trainer.model.encoder._flatten_layers()
    layer = next(item for item in layers if isinstance(item, keras.layers.Dropout))

    @tf.function
    def draw():
        trainer.model.reset_dropout(tf.constant(step, tf.int64))
        return trainer.strategy.run(lambda: layer(tf.ones([1, 8, 16]), training=True))

    (mask,) = trainer.strategy.experimental_local_results(draw())
    return mask.numpy().ravel().tolist()


def refusal(function, *arguments) -> str:
    """The message of the UserError that the call ends with, on this worker."""
    try:
        function(*arguments)
    except UserError as error:
        return str(error)
    return ""


def agree(strategy, directory: Path) -> dict:
    """Steps, validation, masks, refusals, a non-finite loss."""
    # As in the process that compares.
    quick.optimize_graphs(False)
    number, _ = workers.cluster(strategy)
    trainer = toy_trainer(strategy)
    metrics = trainer.train(4)
    validation = trainer.evaluate(-1)
    np.savez(directory / f"worker-{number}.npz", **weights(trainer))
    text = str(directory / "corpus.txt")

    def other_seed():
        config = toys.run_config(text, **{"trainer.seed": number})
        building.build(Stage(config, str(directory / "refused")), strategy=strategy)

    def no_text():
        config = toys.run_config(str(directory / "nothing.txt"))
        building.build(Stage(config, str(directory / "refused")), strategy=strategy)

    found = {
        "metrics": metrics,
        "validation": validation,
        "masks": [dropout_mask(trainer, step) for step in (1, 2, 1)],
        "exchanged": workers.exchange(
            strategy, {"number": number, "long": "ä" * number}
        ),
        "other seed": refusal(other_seed),
        "no text": refusal(no_text),
    }
    if number == 1:
        # Only its own copy: the other worker learns of it from the gradient.
        kernel = trainer.model.projection().weights[4]
        kernel.assign(tf.fill(kernel.shape, np.nan))
    try:
        trainer.train(1)
    except NonFiniteError as error:
        found["non-finite"] = str(error)
    return found


def signal_after(run, step: int) -> None:
    """Sends this process a SIGTERM in the loop that goes past `step`."""
    train = run.trainer.train

    def train_and_signal(num_steps):
        metrics = train(num_steps)
        if run.trainer.step >= step:
            os.kill(os.getpid(), signal.SIGTERM)
        return metrics

    run.trainer.train = train_and_signal


def finish(strategy, directory: Path) -> dict:
    """Resumes the run that was killed, and makes another; a signal stops both.

    Returns:
        For each run, where it began, its last words and its last checkpoint.
    """
    found = {}
    for name in ("killed", "straight"):
        config = overrides.from_yaml(str(directory / "killed.yaml"))
        config.runtime.distribution_strategy = "multi_worker_mirrored"
        config.trainer.validation_interval = config.trainer.checkpoint_interval
        run = building.build(Stage(config, str(directory / name)), strategy=strategy)
        begun = run.trainer.step
        if name == "killed":
            # A loop of steps ends at each checkpoint.
            last = begun + 2 * config.trainer.checkpoint_interval
        if workers.cluster(strategy)[0] == 1:
            signal_after(run, step=last)
        try:
            engine.train(run, validate=name == "killed")
        except engine.Stopped as stopped:
            found[name] = [begun, str(stopped), run.manager.latest_checkpoint]
    return found


if __name__ == "__main__":
    where = Path(sys.argv[1])
    runtime = toys.run_config("unused").runtime
    runtime.distribution_strategy = "multi_worker_mirrored"
    this = distributed.build_strategy(runtime)
    # `agree` switches the optimisation of graphs off, the killed run had it.
    result = {"finish": finish(this, where), "agree": agree(this, where)}
    path = where / f"worker-{workers.cluster(this)[0]}.json"
    path.write_text(json.dumps(result))
