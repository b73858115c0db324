"""Do CMLM and bitext retrieval help each other, and where translations are few?

    python benchmarks/multilingual_stages.py --output=DIR --data_dir=EVAL \\
        --train_data='en=text/en/*.txt.gz,de=text/de/*.txt.gz' \\
        --bitext_data='en-de=bitext/en-de/*.tsv.gz' --pairs=2000,10000 \\
        --results=docs/results/multilingual_stages.jsonl

The text is in sentences, one a line. One short masked-LM run is the start of every arm
of a seed, since CMLM from scratch learns nothing in its first hundreds of steps. Then,
--steps each, with at most --pairs pairs of each language, drawn from all files (0: all
pairs):

cmlm        CMLM alone                     bitext          bitext retrieval alone
s1          both, from the start           margin_0        the same without margin
s2          half CMLM, then half bitext    two_replicas    the same on two CPU devices
s3          half CMLM, then both           own_replica     negatives of the own one only
s2_staged   bitext, from where cmlm ended  s3_staged       both, from there
nli         --nli_data, for --nli_steps, from where s3_staged ended

(Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 4; Feng et al., 2020,
https://arxiv.org/abs/2007.01852, sections 2 and 5). Each row has Tatoeba's accuracy,
STS in several languages, and the sentiment of reviews in languages that its classifier
was not trained on. Runs go on where they were stopped, and a second start skips the
rows that are there. --table prints mean and deviation over the seeds as Markdown, and
runs nothing.
"""

import functools
import itertools
import os
import random

import claims
from absl import flags

flags.DEFINE_string("train_data", None, "As in cmlm.train.")
flags.DEFINE_string("bitext_data", None, "As in cmlm.train.")
flags.DEFINE_string("nli_data", None, "As in cmlm.train; for the arm nli.")
flags.DEFINE_list(
    "languages", ["de", "es", "fr", "ru", "zh"], "Languages of the test sets."
)
flags.DEFINE_list("pairs", ["0"], "Numbers of pairs of each language; 0: all.")
flags.DEFINE_integer("start_steps", 600, "Steps of masked LM before every arm.")
flags.DEFINE_integer("steps", 600, "Steps of every arm except nli.")
flags.DEFINE_integer("nli_steps", 400, "Steps of the arm nli.")
flags.DEFINE_multi_string(
    "params_override", [], "Settings of every run, as in cmlm.train."
)
claims.define_flags(["bitext", "s1", "s2", "s3"])

FLAGS = flags.FLAGS

_BITEXT = ["task.cmlm.weight=0", "task.bitext.weight=1"]
_HALF = "HALF"
_TWO_REPLICAS = "runtime.distribution_strategy=mirrored"
ARMS = {
    "cmlm": ["task.bitext.weight=0"],
    "bitext": _BITEXT,
    "s1": [],
    "s2": [f"task.cmlm.end_step={_HALF}", f"task.bitext.start_step={_HALF}"],
    "s3": [f"task.bitext.start_step={_HALF}"],
    "margin_0": [*_BITEXT, "task.bitext.margin=0"],
    "two_replicas": [*_BITEXT, _TWO_REPLICAS],
    "own_replica": [
        *_BITEXT,
        _TWO_REPLICAS,
        "task.bitext.cross_replica_negatives=false",
    ],
    "s2_staged": _BITEXT,
    "s3_staged": [],
    "nli": [
        *("task.cmlm.weight=0", "task.bitext.weight=0", "task.nli.weight=1"),
        "task.nli.train_data.global_batch_size=64",
        "task.nli.train_data.seq_length=64",
        "trainer.optimizer.learning_rate=2e-4",
    ],
}
# An arm that starts where another arm ended, with a learning rate that rises anew.
_START = {"s2_staged": "cmlm", "s3_staged": "cmlm", "nli": "s3_staged"}

# cmlm.train on two logical devices of the CPU.
_TWO_DEVICES = """
import runpy, tensorflow as tf
device = tf.config.LogicalDeviceConfiguration()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [device, device])
runpy.run_module("cmlm.train", run_name="__main__", alter_sys=True)
"""


def _train(
    name: str,
    steps: int,
    seed: int,
    bitext: str,
    overrides: list[str],
    start: str = "",
) -> str:
    """Runs cmlm.train to its end; returns its model_dir."""
    overrides = [
        "task.mlm.train_data.raw_layout=",
        "task.cmlm.train_data.raw_layout=",
        f"trainer.seed={seed}",
        *(
            f"task.{objective}.train_data.seed={seed}"
            for objective in ("mlm", "cmlm", "bitext", "nli")
        ),
        f"trainer.train_steps={steps}",
        f"trainer.checkpoint_interval={max(1, steps // 2)}",
        f"trainer.validation_interval={steps}",
        "trainer.best_checkpoint_metric=",
        *FLAGS.params_override,
        *(value.replace(_HALF, str(steps // 2)) for value in overrides),
    ]
    arguments = [
        f"--flagfile={os.path.join(claims.CONFIGS, 'multilingual_small.flags')}"
    ]
    if start:
        arguments += [f"--init_checkpoint={start}", f"--vocab_file={start}/vocab.txt"]
    # A run refuses data that none of its objectives reads.
    if not {"task.mlm.weight=0", "task.cmlm.weight=0"} <= set(overrides):
        arguments.append(f"--train_data={FLAGS.train_data}")
    if "task.bitext.weight=0" not in overrides:
        arguments.append(f"--bitext_data={bitext}")
    if "task.nli.weight=1" in overrides:
        arguments.append(f"--nli_data={FLAGS.nli_data}")
    program = (
        ("-c", _TWO_DEVICES) if _TWO_REPLICAS in overrides else ("-m", "cmlm.train")
    )
    return claims.train(name, overrides, *arguments, program=program)


def _bitext(pairs: int) -> str:
    """--bitext_data with `pairs` pairs of each language, drawn from all its files."""
    if not pairs:
        return FLAGS.bitext_data
    from cmlm.common import atomic, files
    from cmlm.data import languages

    folder = os.path.join(FLAGS.output, f"bitext-{pairs}")
    os.makedirs(folder, exist_ok=True)
    entries = []
    for pair, patterns in languages.split(FLAGS.bitext_data).items():
        path = os.path.join(folder, f"{pair}.tsv.gz")
        entries.append(f"{pair}={path}" if pair else path)
        if os.path.exists(path):
            continue
        lines = []
        for source in files.expand(patterns):
            with files.open_text(source) as file:
                lines += file.readlines()
        chosen = random.Random(0).sample(lines, min(pairs, len(lines)))
        with atomic.text(path) as file:
            file.writelines(chosen)
    return ",".join(entries)


def _start(seed: int) -> str:
    overrides = ["task.cmlm.weight=0", "task.bitext.weight=0", "task.mlm.end_step=null"]
    # All arms need the vocabulary of all languages, which the bitext belongs to.
    name = f"mlm-{seed}-{FLAGS.start_steps}"
    return _train(name, FLAGS.start_steps, seed, FLAGS.bitext_data, overrides)


def _steps(arm: str) -> int:
    return FLAGS.nli_steps if arm == "nli" else FLAGS.steps


def _arm(arm: str, seed: int, pairs: int) -> str:
    steps = _steps(arm)
    begin = _arm(_START[arm], seed, pairs) if arm in _START else _start(seed)
    overrides = ["task.mlm.weight=0", "task.cmlm.start_step=0", *ARMS[arm]]
    # CMLM alone sees no pair, so its run serves all numbers of pairs.
    seen = 0 if arm == "cmlm" else pairs
    name = f"{arm}-{seed}-{seen}-{steps}"
    return _train(name, steps, seed, _bitext(pairs), overrides, begin)


def _score(name: str, model: str) -> dict[str, float]:
    # By language: the mean of a whole task depends on the languages of the folder.
    tasks = [
        f"{task}-{language}"
        for task in ("tatoeba", "stsb-multilingual")
        for language in FLAGS.languages
    ]
    return claims.scores(name, model, [*tasks, "amazon"])


def _run() -> None:
    for seed in map(int, FLAGS.seeds):
        claims.run_start(
            {"arm": "mlm", "seed": seed, "steps": FLAGS.start_steps},
            lambda seed=seed: _score(f"mlm-{seed}", _start(seed)),
        )
        for pairs, arm in itertools.product(map(int, FLAGS.pairs), FLAGS.arms):
            claims.run_arm(
                {"arm": arm, "seed": seed, "pairs": pairs, "steps": _steps(arm)},
                functools.partial(_arm, arm, seed, pairs),
                functools.partial(_score, f"{arm}-{seed}-{pairs}"),
            )


def _with_means(row: dict) -> dict:
    # Older rows have the mean of STS-B as `stsb-multilingual`.
    groups = {
        task: [name for name in row if name.startswith(f"{task}-")]
        for task in ("tatoeba", "stsb")
    }
    return claims.with_means(row, groups)


def _table() -> None:
    found = [_with_means(row) for row in claims.rows(FLAGS.results)]
    shown = dict.fromkeys(name for row in found for name in row if "-" in name)
    claims.print_table(
        found,
        ("arm", "pairs", "steps"),
        ("tatoeba", "stsb", "amazon", *shown, "train_cpu_seconds"),
    )


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "train_data", "bitext_data")
