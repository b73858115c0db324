"""Do CMLM and bitext retrieval help each other? The papers' arms at one small budget.

    python benchmarks/multilingual_stages.py --output=DIR --eval_dir=EVAL \\
        --train_data='en=text/en/*.txt.gz,de=text/de/*.txt.gz' \\
        --bitext_data='en-de=bitext/en-de/*.tsv.gz'

One short masked-LM run is the start of every arm, since CMLM from scratch learns
nothing in its first hundreds of steps. Then, --steps each:

cmlm        CMLM alone                     bitext          bitext retrieval alone
s1          both, from the start           margin_0        the same without margin
s2          half CMLM, then half bitext    two_replicas    the same on two CPU devices
s3          half CMLM, then both           own_replica     negatives of the own one only
s2_staged   bitext, from where cmlm ended  s3_staged       both, from there

(Yang et al., 2020, https://arxiv.org/abs/2012.14388, section 3.2; Feng et al., 2020,
https://arxiv.org/abs/2007.01852, sections 2 and 5). Runs go on where they were stopped.
Prints Tatoeba's accuracy of every arm, from English / into English, as Markdown.
"""

import json
import os
import subprocess
import sys
import time

from absl import flags

flags.DEFINE_string("output", None, "Directory of all runs.", required=True)
flags.DEFINE_string("train_data", None, "As in cmlm.train.", required=True)
flags.DEFINE_string("bitext_data", None, "As in cmlm.train.", required=True)
flags.DEFINE_string("eval_dir", None, "Where tatoeba/ is.", required=True)
flags.DEFINE_list("languages", ["de", "es", "fr", "ru", "zh"], "Of Tatoeba.")
flags.DEFINE_list("arms", [], "Which; all without it.")
flags.DEFINE_integer("start_steps", 600, "Of masked LM, before every arm.")
flags.DEFINE_integer("steps", 600, "Of every arm.")
flags.DEFINE_integer("seed", 0, "Of initial weights and dropout.")
flags.DEFINE_multi_string("params_override", [], "For every run, as in cmlm.train.")

FLAGS = flags.FLAGS

_RECIPE = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))),
    "configs",
    "multilingual_small.flags",
)
_BITEXT = ["task.cmlm.weight=0", "task.bitext.weight=1"]
_HALF = "HALF"
ARMS = {
    "cmlm": ["task.bitext.weight=0"],
    "bitext": _BITEXT,
    "s1": [],
    "s2": [f"task.cmlm.end_step={_HALF}", f"task.bitext.start_step={_HALF}"],
    "s3": [f"task.bitext.start_step={_HALF}"],
    "margin_0": [*_BITEXT, "task.bitext.margin=0"],
    "two_replicas": [*_BITEXT, "runtime.distribution_strategy=mirrored"],
    "own_replica": [
        *_BITEXT,
        "runtime.distribution_strategy=mirrored",
        "task.bitext.cross_replica_negatives=false",
    ],
}

# From the last checkpoint of the arm cmlm, with a learning rate that rises anew.
STAGED = {"s2_staged": _BITEXT, "s3_staged": []}

# cmlm.train on two logical devices of the CPU.
_TWO_DEVICES = """
import runpy, tensorflow as tf
device = tf.config.LogicalDeviceConfiguration()
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [device, device])
runpy.run_module("cmlm.train", run_name="__main__", alter_sys=True)
"""


def _train(name: str, steps: int, overrides: list[str], start: str = "") -> str:
    """Runs cmlm.train to its end; returns its model_dir."""
    model_dir = os.path.join(FLAGS.output, name)
    overrides = [
        f"trainer.seed={FLAGS.seed}",
        f"trainer.train_steps={steps}",
        f"trainer.checkpoint_interval={max(1, steps // 2)}",
        f"trainer.validation_interval={steps}",
        "trainer.best_checkpoint_metric=",
        *FLAGS.params_override,
        *(value.replace(_HALF, str(steps // 2)) for value in overrides),
    ]
    two = any(value.endswith("=mirrored") for value in overrides)
    command = ["-c", _TWO_DEVICES] if two else ["-m", "cmlm.train"]
    command += [
        f"--flagfile={_RECIPE}",
        f"--model_dir={model_dir}",
        f"--train_data={FLAGS.train_data}",
        f"--bitext_data={FLAGS.bitext_data}",
        *(f"--params_override={value}" for value in overrides),
    ]
    if start:
        command += [f"--init_checkpoint={start}", f"--vocab_file={start}/vocab.txt"]
    if os.path.exists(os.path.join(model_dir, f"ckpt-{steps}.index")):
        return model_dir
    began = time.monotonic()
    subprocess.run([sys.executable, *command], check=True)
    _minutes(**{name: (time.monotonic() - began) / 60})
    return model_dir


def _minutes(**more: float) -> dict[str, float]:
    """Minutes of each run so far, all its starts together; `more` is added."""
    path = os.path.join(FLAGS.output, "minutes.json")
    minutes = {}
    if os.path.exists(path):
        with open(path) as file:
            minutes = json.load(file)
    for name, value in more.items():
        minutes[name] = minutes.get(name, 0) + value
    with open(path, "w") as file:
        json.dump(minutes, file)
    return minutes


def main() -> None:
    FLAGS(sys.argv)
    start = _train(
        "mlm",
        FLAGS.start_steps,
        ["task.cmlm.weight=0", "task.bitext.weight=0", "task.mlm.end_step=null"],
    )
    runs = {"mlm": start}
    from_mlm = ["task.mlm.weight=0", "task.cmlm.start_step=0"]
    for arm in FLAGS.arms or [*ARMS, *STAGED]:
        begin = start
        if arm in STAGED:
            begin = _train("cmlm", FLAGS.steps, from_mlm + ARMS["cmlm"], start)
        overrides = from_mlm + {**ARMS, **STAGED}[arm]
        runs[arm] = _train(arm, FLAGS.steps, overrides, begin)

    results = os.path.join(FLAGS.output, "tatoeba.json")
    tasks = ",".join(f"tatoeba-{language}" for language in FLAGS.languages)
    subprocess.run(
        [
            *(sys.executable, "-m", "cmlm.evaluate", f"--data_dir={FLAGS.eval_dir}"),
            *(f"--model={name}" for name in [f"untrained:{start}", *runs.values()]),
            *(f"--tasks={tasks}", f"--output={results}", "--overwrite"),
        ],
        check=True,
    )
    with open(results) as file:
        models = json.load(file)["models"]
    print(f"| arm | minutes | {' | '.join(FLAGS.languages)} | mean |")
    print("|---" * (3 + len(FLAGS.languages)) + "|")
    for name, path in {"untrained": f"untrained:{start}", **runs}.items():
        scores = models[path]["scores"]
        scores = [scores[f"tatoeba-{language}"] for language in FLAGS.languages]
        cells = [
            f"{score['accuracy_backward']:.1f} / {score['accuracy_forward']:.1f}"
            for score in scores
        ]
        mean = sum(score["accuracy"] for score in scores) / len(scores)
        minutes = f"{_minutes()[name]:.0f}" if name in runs else ""
        print(f"| {name} | {minutes} | {' | '.join(cells)} | {mean:.1f} |")


if __name__ == "__main__":
    main()
