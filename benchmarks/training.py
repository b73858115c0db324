"""Tokens per second of CMLM's training step against PyTorch, same shapes, in turn.

    python benchmarks/training.py --torch_python=ENV/bin/python --threads=1
    python benchmarks/training.py --torch_python=ENV/bin/python --threads=2 --step=base

ENV has torch and transformers. The step is the forward pass of both sentences, the
gradient, clipping and AdamW, on random tokens. In each round every arm runs one step.
Prints medians, and the median of the rounds' ratios to PyTorch: of wall time, and of
processor time, which other programs on the machine disturb less.
"""

import json
import os
import statistics
import sys

import workers
from absl import flags

from cmlm import cli

flags.DEFINE_string("torch_python", None, "Python with torch and transformers.")
flags.DEFINE_enum("step", "small", ["small", "base"], "The row of STEPS.")
flags.DEFINE_list("precisions", ["float32", "bfloat16"], "Precisions of the layers.")
flags.DEFINE_float("dropout", 0.1, "Dropout of embeddings, sub-layers and attention.")
flags.DEFINE_integer("threads", 1, "Processors for each arm.")
flags.DEFINE_integer("rounds", 5, "Timed rounds of each arm.")
flags.DEFINE_integer("vocab_size", 8000, "Entries of the vocabulary.")
flags.DEFINE_multi_string(
    "params_override", [], "Settings of a further arm of ours, beside the default."
)
flags.DEFINE_string("output", None, "The .json file to write.")

FLAGS = flags.FLAGS
STEPS = {
    "small": {
        "batch": 256,
        "length": 32,
        "predictions": 10,
        "views": 5,
        "layers": 2,
        "hidden": 256,
        "heads": 4,
        "inner": 1024,
    },
    "base": {
        "batch": 16,
        "length": 64,
        "predictions": 20,
        "views": 15,
        "layers": 12,
        "hidden": 768,
        "heads": 12,
        "inner": 3072,
    },
}
MODEL = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "views": "num_views",
}


def processor() -> str:
    """The processor's name, and which narrow products it has."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        lines = [line.partition(":") for line in file]
    found = {name.strip(): value.strip() for name, _, value in lines}
    narrow = {"amx_bf16", "avx512_bf16"} & set(found.get("flags", "").split())
    return f"{found.get('model name')} ({', '.join(sorted(narrow)) or 'no bfloat16'})"


def commands(step: dict[str, int], precision: str) -> dict[str, list[str]]:
    """The command of each arm."""
    here = os.path.dirname(os.path.abspath(__file__))
    threads, size = f"--threads={FLAGS.threads}", f"--vocab_size={FLAGS.vocab_size}"
    shape = [f"--{name}={step[name]}" for name in ("batch", "length", "predictions")]
    settings = [f"model.{MODEL[name]}={step[name]}" for name in MODEL]
    settings += [
        f"model.dropout_rate={FLAGS.dropout}",
        f"model.attention_dropout_rate={FLAGS.dropout}",
        "trainer.optimizer.type=adamw",
    ]
    ours = [
        *(sys.executable, os.path.join(here, "step_pace.py"), "--worker", threads),
        *(*shape, size, f"--precision={precision}"),
        f"--params_override={','.join(settings)}",
    ]
    arms = {
        "torch": [
            *(FLAGS.torch_python, os.path.join(here, "training_torch.py"), threads),
            *(*shape, size, f"--precision={precision}", f"--dropout={FLAGS.dropout}"),
            *(f"--{name}={step[name]}" for name in MODEL),
        ],
        "cmlm": ours,
    }
    for override in FLAGS.params_override:
        arms[f"cmlm {override}"] = [*ours, f"--params_override={override}"]
    return arms


def main(_) -> None:
    cli.require(torch_python="a Python with torch and transformers")
    step = STEPS[FLAGS.step]
    tokens = 2 * step["batch"] * step["length"]
    print(processor())
    print(f"{FLAGS.step}, {FLAGS.threads} threads, dropout {FLAGS.dropout}")
    print(
        f"{'arm':40}{'seconds':>9}{'tokens/s':>10}{'ratio':>7}"
        f"{'processor':>11}{'ratio':>7}{'first step':>12}"
    )
    results = []
    for precision in FLAGS.precisions:
        running = {
            name: workers.Worker(command, FLAGS.threads)
            for name, command in commands(step, precision).items()
        }
        # The first step builds the graph.
        first = {name: worker.ask("run")["wall"] for name, worker in running.items()}
        for worker in running.values():
            worker.ask("run")
        taken = {name: [] for name in running}
        for _ in range(FLAGS.rounds):
            for name, worker in running.items():
                taken[name].append(worker.ask("run"))
        for worker in running.values():
            worker.close()
        for name, times in taken.items():
            medians, ratios = {}, {}
            for clock in ("wall", "processor"):
                medians[clock] = statistics.median(time[clock] for time in times)
                ratios[clock] = statistics.median(
                    peer[clock] / own[clock]
                    for peer, own in zip(taken["torch"], times, strict=True)
                )
            print(
                f"{f'{name} {precision}':40}{medians['wall']:9.3f}"
                f"{tokens / medians['wall']:10,.0f}{ratios['wall']:7.2f}"
                f"{medians['processor']:11.3f}{ratios['processor']:7.2f}"
                f"{first[name]:12.1f}",
                flush=True,
            )
            results.append(
                {
                    "arm": name,
                    "precision": precision,
                    "seconds": times,
                    "first_step": first[name],
                    "ratios_to_torch": ratios,
                }
            )
    if FLAGS.output:
        about = {"processor": processor(), "step": FLAGS.step, **step}
        about |= {"threads": FLAGS.threads, "dropout": FLAGS.dropout}
        with open(FLAGS.output, "w", encoding="utf-8") as file:
            json.dump({**about, "results": results}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    cli.run(main)
