"""--workers and --beam_options, for commands whose work Beam can spread."""

from __future__ import annotations

from absl import flags

FLAGS = flags.FLAGS
# The flags belong to the command that defines them, so its --help lists them.
flags.disclaim_key_flags()


def define(workers: int | None, about_workers: str) -> None:
    """Defines the flags.

    Args:
        workers: the default of --workers.
        about_workers: the help of --workers.
    """
    flags.DEFINE_integer("workers", workers, about_workers, lower_bound=0)
    flags.DEFINE_string(
        "beam_options",
        "",
        "Beam's options, such as '--runner=FlinkRunner --flink_master=HOST:8081'. "
        "Default: Beam runs on this machine.",
    )


def define_for_tasks() -> None:
    """Defines the flags for a command that calls `workers`."""
    define(
        1,
        "Processes on this machine. 1: this process only. More than 1: Beam "
        "runs them. 0: one per CPU core.",
    )


def workers():
    """The `Workers` that the flags of `define_for_tasks` describe."""
    from cmlm.common.numbered_tasks import Workers

    return Workers(FLAGS.beam_options, FLAGS.workers)
