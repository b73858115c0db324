"""Trains a sentence encoder.

    python -m cmlm.train --flagfile=configs/quickstart.flags
    python -m cmlm.train --flagfile=configs/en_small.flags \\
        --train_data='corpus/*.txt.gz' --model_dir=/tmp/my_encoder

Text has one sentence a line and a blank line between documents. --flagfile names a file
with all flags of a run (`cmlm configs` lists the files); flags after it override its
values. The same command resumes a stopped run. docs/training.md explains a run.
"""

import contextlib
import functools
import gc
import os
import shlex
import sys

from absl import flags

from cmlm import cli
from cmlm.common import choices, path_names
from cmlm.errors import UserError

flags.DEFINE_string(
    "experiment",
    "cmlm/english",
    "The recipe: the settings to start from, such as mirror/sentence. An unknown name "
    "lists all recipes.",
)
flags.DEFINE_string(
    "model_dir", None, "Directory of the run: configuration, vocabulary, checkpoints."
)
flags.DEFINE_enum(
    "mode",
    "train_and_eval",
    ["train", "train_and_eval", "eval"],
    "Train only, train and validate, or validate the latest checkpoint.",
)
flags.DEFINE_string(
    "train_data",
    None,
    "Plain text (.txt, .txt.gz): files, globs, or a comma-separated list of them; or "
    "builtin:python-docs. With languages: en=FILES,de=FILES.",
)
flags.DEFINE_string(
    "bitext_data",
    None,
    "Bitext (.tsv, .tsv.gz), with lines source<TAB>target: files, globs or a list of "
    "them. With languages: en-de=FILES,en-fr=FILES; the first language is the source. "
    "The setting task.NAME.validation_data (NAME: bitext, tlm or distill_bitext) "
    "names held-out bitext; without it, a share of --bitext_data is held out.",
)
flags.DEFINE_string(
    "pair_data",
    None,
    "Queries and passages (.tsv, .tsv.gz), with lines query<TAB>passage: files, globs "
    "or a list. Further columns are hard negatives: passages that do not answer the "
    "query.",
)
flags.DEFINE_string(
    "scored_data",
    None,
    "Scored pairs (.tsv, .tsv.gz), with lines sentence<TAB>sentence<TAB>score: files, "
    "globs or a list.",
)
flags.DEFINE_string(
    "pair_validation_data",
    None,
    "Held-out queries and passages, named as in --pair_data. Without it, a share of "
    "--pair_data is held out.",
)
flags.DEFINE_string(
    "scored_validation_data",
    None,
    "Held-out scored pairs, named as in --scored_data. Without it, a share of "
    "--scored_data is held out.",
)
flags.DEFINE_string(
    "validation_data",
    None,
    "Held-out text, named as in --train_data. Without it, a share of --train_data is "
    "held out.",
)
flags.DEFINE_string(
    "nli_data",
    None,
    "NLI data (.tsv, .tsv.gz) by language: en=FILE,de=FILE. The files are translations "
    "of each other, line by line.",
)
flags.DEFINE_string(
    "nli_validation_data",
    None,
    "Held-out NLI data, named as in --nli_data. Without it, a share of --nli_data is "
    "held out.",
)
flags.DEFINE_string(
    "vocab_file",
    None,
    "WordPiece vocabulary, one token a line, or a tokenizer.json. Default: the "
    "vocabulary of --init_checkpoint, else the run learns one from its text.",
)
flags.DEFINE_string(
    "init_checkpoint",
    None,
    "Weights to start from: a model_dir, a checkpoint, an export, or weights of "
    "another program (BERT checkpoint, TF Hub SavedModel, Hugging Face folder).",
)
flags.DEFINE_string(
    "teacher",
    None,
    "The teacher of distillation: an export, a model_dir, a Hugging Face folder, a "
    "server's address, or vectors:SENTENCES.txt:VECTORS.npy.",
)
flags.DEFINE_string(
    "teacher_cache",
    None,
    "Directory for the teacher's vectors, which runs may share. Default: teacher/ in "
    "--model_dir.",
)
flags.DEFINE_bool(
    "print_config",
    False,
    "Print the resolved configuration as YAML and stop. Needs no data.",
)
flags.DEFINE_multi_string(
    "config_file",
    [],
    "YAML file with settings. The last of these wins: the recipe, --config_file, "
    "--params_override, other flags",
)
flags.DEFINE_multi_string(
    "params_override",
    [],
    "Settings as a.b.c=value, separated by commas. Name a setting once in a flag; of "
    "two flags, the later wins",
)
flags.DEFINE_enum(
    "distribution_strategy",
    None,
    choices.STRATEGIES,
    "The devices of the run: one device, several devices of this machine (mirrored), "
    "several machines (multi_worker_mirrored), or a TPU. one_device and mirrored use "
    "GPUs only with runtime.num_gpus. Default: runtime.distribution_strategy, which is "
    "one_device in every recipe, and tpu with --tpu.",
)
flags.DEFINE_string("tpu", None, "TPU to use: a name, an address or 'local'.")

FLAGS = flags.FLAGS


def configure():
    """Returns the ExperimentConfig that the flags describe, complete and checked."""
    with cli.quiet_imports():
        from cmlm.config import loading, model_dir
        from cmlm.training import warm_start

    config, given = loading.load_given(
        FLAGS.experiment, FLAGS.config_file, FLAGS.params_override
    )
    _check_data_flags(config.task)
    for objective in config.task.enabled().values():
        for flag, place in objective.named_by_flags().items():
            if FLAGS[flag].value:
                setattr(*place, FLAGS[flag].value)
    if FLAGS.vocab_file:
        config.vocabulary.file = FLAGS.vocab_file
    if FLAGS.init_checkpoint:
        config.init_checkpoint = FLAGS.init_checkpoint
    begun = model_dir.begun_config(FLAGS.model_dir) if FLAGS.model_dir else None
    if begun is not None and not config.init_checkpoint:
        # A resumed run need not name the weights that it started from.
        config.init_checkpoint = begun.init_checkpoint
    warm_start.adopt_vocabulary(config, given, begun, FLAGS.model_dir)
    # In an earlier version, the last stage of stacking did not name the run's weights.
    has_shape = begun is not None and config.trainer.stacking_steps
    if config.init_checkpoint or has_shape:
        warm_start.adopt_for_run(config, given, begun, FLAGS.model_dir)
    elif begun is None and not FLAGS.print_config:
        # Else the run would train a large encoder from random weights.
        warm_start.refuse_missing(config)
    if FLAGS.tpu:
        config.runtime.tpu = FLAGS.tpu
    strategy = FLAGS.distribution_strategy or ("tpu" if FLAGS.tpu else None)
    if strategy:
        config.runtime.distribution_strategy = strategy
    config.validate()
    if config.init_checkpoint and begun is None:
        warm_start.warn_of_prompts(config)
    return config


def _check_data_flags(task) -> None:
    """Checks the flags that name data.

    Raises:
        UserError: a flag is set, and no objective of the run reads its data; or this
            command lacks a flag of an objective.
    """
    from cmlm.objectives import OBJECTIVES

    readers: dict[str, list[str]] = {}
    for name in OBJECTIVES:
        objective = getattr(task, name)
        for flag in objective.named_by_flags():
            if flag not in FLAGS:
                data = type(objective.train_data).__name__
                raise UserError(
                    f"{data} of task.{name} names the flag --{flag}; allowed: the "
                    "flags that cmlm/train.py defines"
                )
            readers.setdefault(flag, []).append(name)
    for flag, names in readers.items():
        if FLAGS[flag].value and not task.enabled().keys() & set(names):
            weights = ", ".join(f"task.{name}.weight" for name in names)
            raise UserError(
                f"--{flag} is {FLAGS[flag].value}, and no objective of the run reads "
                f"it; allowed: with one of these above 0: {weights}"
            )


def main(_) -> int | None:
    cli.tune_for_training()
    with cli.quiet_imports():
        import tensorflow as tf

        from cmlm.common import outputs, workers
        from cmlm.config import overrides
        from cmlm.training import remote_tpu, stages

    if FLAGS.print_config:
        print(overrides.to_yaml(configure()), end="")
        return None
    cli.require(model_dir="a directory, new or old")
    trains = FLAGS.mode != "eval"
    path_names.refuse_pattern(FLAGS.model_dir, "--model_dir", deletes=trains)
    if tf.io.gfile.exists(FLAGS.model_dir) and not tf.io.gfile.isdir(FLAGS.model_dir):
        raise UserError(f"--model_dir={FLAGS.model_dir} is a file, not a directory")
    config = configure()
    config.require_data()
    remote_tpu.refuse(config, FLAGS.model_dir)
    kept = {}
    # A validation may read folders in which the user may not write.
    if trains or not os.path.isdir(FLAGS.teacher_cache or ""):
        kept["--teacher_cache"] = FLAGS.teacher_cache
    if trains:
        config.check_comparison()
        # A resumed run may read the vocabulary and params.yaml of its own model_dir.
        kept["--model_dir"] = FLAGS.model_dir
    outputs.check({}, inputs_of(config), kept=kept)
    strategy = _build_strategy(config)
    _announce(config, strategy)
    planned = stages.plan(config, FLAGS.model_dir)
    if not trains:
        return _evaluate(planned[-1], strategy)
    code = _train_stages(planned, strategy)
    if not code and workers.is_chief(strategy):
        _tell_what_is_where()
    return code


def _build_strategy(config):
    """Returns the devices of the run; waits for the other workers if there are any."""
    from cmlm.common import distributed

    if config.runtime.distribution_strategy == "multi_worker_mirrored":
        print("waiting for the other workers", file=sys.stderr)
    # The server of a worker prints a message when it starts.
    with cli.quiet_imports():
        return distributed.build_strategy(config.runtime)


def _announce(config, strategy) -> None:
    """Tells what runs where, before the first stage."""
    from cmlm.common import workers
    from cmlm.data import builtin

    print(f"recipe {FLAGS.experiment} -> {FLAGS.model_dir}", file=sys.stderr)
    objectives = config.task.enabled().values()
    texts = {objective.train_data.input_path for objective in objectives}
    if builtin.PYTHON_DOCS in texts:
        print(
            f"training on {builtin.PYTHON_DOCS}, the English texts in this Python "
            "installation; --train_data=FILES names your own",
            file=sys.stderr,
        )
    number, of = workers.cluster(strategy)
    if number:
        print(f"worker {number} of {of}: worker 0 reports", file=sys.stderr)


def _tell_what_is_where() -> None:
    """Prints the outputs of the run, and the commands that read them."""
    from cmlm.config import model_dir
    from cmlm.modeling import latest

    print(f"checkpoint   {latest.find(FLAGS.model_dir)}")
    print(f"metrics      {os.path.join(FLAGS.model_dir, 'metrics.jsonl')}")
    print(f"TensorBoard  tensorboard --logdir={shlex.quote(FLAGS.model_dir)}")
    print(f"export       {model_dir.export_command(FLAGS.model_dir)}")


def inputs_of(config) -> dict[str, list[str]]:
    """The data and weights that a run reads, by the names of their settings."""
    found = {"--init_checkpoint": [config.init_checkpoint]}
    if config.trainer.evals:
        found["trainer.evals_data_dir"] = [config.trainer.evals_data_dir]
    for objective in config.task.enabled().values():
        for flag, place in objective.named_by_flags().items():
            if flag != "teacher_cache":
                found.setdefault(f"--{flag}", []).append(getattr(*place))
    return found


def _train_stages(planned, strategy) -> int | None:
    """Trains all stages. Returns the exit code if a signal stopped one."""
    from cmlm.common import locks, workers
    from cmlm.training import unfinished

    with contextlib.ExitStack() as stack:
        # Worker 0 holds the lock, and the others hear whether it got it.
        lock = locks.held(FLAGS.model_dir)
        workers.on_chief(strategy, lambda: stack.enter_context(lock))
        workers.on_chief(strategy, lambda: unfinished.remove(FLAGS.model_dir))
        for stage in _stages_to_train(planned, strategy):
            code = _train(stage, strategy)
            if code:
                return code
            # Keras' layers form cycles, so they would stay in memory beside the next
            # stage.
            gc.collect()
    return None


def _stages_to_train(planned, strategy):
    """Yields the stages that are not done, and the last one in any case.

    The last stage is always built, so that the command can describe the run.
    """
    from cmlm.common import workers
    from cmlm.training import agreement, stages

    validates = FLAGS.mode == "train_and_eval"
    number_done = workers.on_chief(
        strategy, lambda: stages.count_done(planned, validates)
    )
    for place, stage in enumerate(planned, 1):
        is_done = place <= number_done and stage is not planned[-1]
        if len(planned) > 1:
            done = ", already done" if is_done else ""
            print(
                f"stage {place} of {len(planned)}: {stage.directory}{done}",
                file=sys.stderr,
            )
        if is_done:
            workers.on_chief(strategy, functools.partial(agreement.check_done, stage))
        else:
            yield stage


def _build(stage, strategy, writes: bool = True):
    """Builds the run of a stage and describes it."""
    with cli.quiet_imports():
        from cmlm.training import building, reporting

    run = building.build(stage, strategy=strategy, writes=writes)
    print(reporting.describe(run), file=sys.stderr)
    return run


def _evaluate(stage, strategy) -> None:
    """Validates the latest checkpoint and prints the metrics.

    It writes no checkpoint and no metrics, so it may go beside a run that trains. Text
    that is new to the run may add files to `text/` and `teacher/`.
    """
    with cli.quiet_imports():
        from cmlm.common import workers
        from cmlm.modeling import latest
        from cmlm.training import engine

    if latest.find(stage.directory) is None:
        raise UserError(
            f"--model_dir={FLAGS.model_dir} holds no checkpoint; allowed: the "
            "model_dir of a run that has saved a checkpoint"
        )
    run = _build(stage, strategy, writes=False)
    metrics = engine.evaluate(run)
    if workers.is_chief(strategy):
        for name, value in metrics.items():
            print(f"{name}\t{value:.4f}")


def _train(stage, strategy) -> int | None:
    """Trains to the end of a stage. Returns the exit code if a signal stopped it."""
    with cli.quiet_imports():
        from cmlm.training import engine, reporting
        from cmlm.training.finite import NonFiniteError

    run = _build(stage, strategy)
    if remark := reporting.remark(run, stage):
        print(remark, file=sys.stderr)
    try:
        engine.train(run, validate=FLAGS.mode == "train_and_eval")
    except engine.Stopped as stopped:
        print(f"{stopped}; the same command resumes there", file=sys.stderr)
        return 128 + stopped.signum
    except NonFiniteError as error:
        last = run.manager.latest_checkpoint
        saved = f"The last checkpoint is {last}" if last else "There is no checkpoint"
        raise UserError(
            f"{error}; the run has stopped. {saved}. A lower "
            "trainer.optimizer.learning_rate or a longer warm-up may help"
        ) from error
    return None


if __name__ == "__main__":
    cli.run(main)
