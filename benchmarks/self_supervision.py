"""What Mirror-BERT and MiSAD do to an encoder: the papers' arms, before and after.

    python benchmarks/self_supervision.py mirror --model=en_small --eval_dir=EVAL \\
        --strings=10k_sentences.txt --output=DIR
    python benchmarks/self_supervision.py misad --model=en_small --eval_dir=EVAL \\
        --text='text/*/*.txt.gz' --output=DIR

mirror: configs/mirror_sentence.flags with a span masked, dropout, both, drophead, or
neither (the two views are equal then), by mean and by [CLS], scored on STS, SimLex-999
and isotropy. The paper's learning rate is for BERT-base; a small encoder hardly moves
with it, hence --learning_rate.

misad: MiSAD with n-grams chosen by the model, with random spans, and masked LM alone,
the same steps from the same start; scored on the universal analogies, GEOGRANNO, and on
RTE and CoLA, fine-tuned with three seeds.

Runs go on where they were stopped; the tables are Markdown.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

_CONFIGS = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "configs"
)
_NO_DROPOUT = ["model.dropout_rate=0", "model.attention_dropout_rate=0"]
_NO_SPAN = ["task.mirror.span.length=0"]
_MIRROR_ARMS = {
    "span and dropout": [],
    "dropout": _NO_SPAN,
    "span": _NO_DROPOUT,
    "span and drophead": [*_NO_DROPOUT, "model.drophead_rate=0.2"],
    "neither": [*_NO_SPAN, *_NO_DROPOUT],
}
_MIRROR_TASKS = "sts12 sts13 sts14 sts15 sts16 stsb-test sick-r simlex999 geometry"
_MISAD_ARMS = {
    "masked LM": [
        "task.misad.weight=0",
        "task.mlm.weight=1",
        "task.mlm.masking.rate=0.15",
        "task.mlm.train_data.seq_length=64",
    ],
    "MiSAD, n-grams": [],
    "MiSAD, random spans": ["task.misad.candidates=spans"],
}
_MISAD_TASKS = "ulr-analogy geogranno"
_GLUE = ("rte", "cola")


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def _train(
    options, recipe: str, name: str, text: str, steps: int, overrides: list[str]
) -> str:
    """Runs cmlm.train to its end; returns its model_dir."""
    directory = os.path.join(options.output, name.replace(", ", "_").replace(" ", "_"))
    overrides = [
        "model.pooling=mean",
        f"trainer.train_steps={steps}",
        f"trainer.optimizer.learning_rate={options.learning_rate}",
        "trainer.best_checkpoint_metric=",
        *overrides,
    ]
    if not os.path.exists(os.path.join(directory, f"ckpt-{steps}.index")):
        _run(
            "cmlm.train",
            f"--flagfile={os.path.join(_CONFIGS, recipe)}",
            "--mode=train",
            f"--init_checkpoint={options.model}",
            f"--train_data={text}",
            f"--model_dir={directory}",
            *(f"--params_override={value}" for value in overrides),
        )
    return directory


def _evaluate(options, tasks: str, models: dict[str, str]) -> None:
    """Scores the models and prints the main figure of every task."""
    results = os.path.join(options.output, f"{options.part}.json")
    _run(
        "cmlm.evaluate",
        f"--data_dir={options.eval_dir}",
        f"--tasks={tasks.replace(' ', ',')}",
        *(f"--model={path}" for path in models.values()),
        f"--output={results}",
        "--overwrite",
    )
    with open(results) as file:
        found = json.load(file)
    names = list(found["tasks"])
    print(f"| | {' | '.join(names)} |")
    print("|---" * (len(names) + 1) + "|")
    for title, path in models.items():
        scores = found["models"][path]["scores"]
        main = {name: found["tasks"][name]["main_metric"] for name in names}
        cells = [f"{scores[name][main[name]]:.3g}" for name in names]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


def _mirror(options) -> None:
    models = {"before": options.model, "untrained": f"untrained:{options.model}"}
    arms = {(name, "mean"): overrides for name, overrides in _MIRROR_ARMS.items()}
    for name in ("span and dropout", "neither"):
        arms[name, "cls"] = _MIRROR_ARMS[name]
    # The weights it starts from, but for a step too small to be seen.
    still = [
        f"trainer.optimizer.{name}" for name in ("learning_rate=1e-12", "type=adamw")
    ]
    arms["before", "cls"] = still
    for (name, pooling), overrides in arms.items():
        models[f"{name}, {pooling}"] = _train(
            options,
            "mirror_sentence.flags",
            f"{name}, {pooling}",
            options.strings,
            1 if overrides is still else options.steps or 50,
            [f"model.pooling={pooling}", *overrides],
        )
    _evaluate(options, _MIRROR_TASKS, models)


def _misad(options) -> None:
    ngrams = os.path.join(options.output, "ngrams.tsv")
    if not os.path.exists(ngrams):
        os.makedirs(options.output, exist_ok=True)
        _run("cmlm.ngrams", f"--input={options.text}", f"--output={ngrams}")
    steps = options.steps or 1000
    models = {"before": options.model}
    for name, overrides in _MISAD_ARMS.items():
        common = [
            f"task.misad.ngrams_file={ngrams}",
            f"trainer.optimizer.warmup_steps={steps // 10}",
        ]
        models[name] = _train(
            options, "ulr_small.flags", name, options.text, steps, common + overrides
        )
    _evaluate(options, _MISAD_TASKS, models)
    for task in _GLUE:
        for title, path in models.items():
            output = os.path.join(options.output, f"{task}-{title.replace(' ', '_')}")
            if not os.path.exists(output):
                _run(
                    "cmlm.finetune",
                    *(f"--model={path}", f"--task={task}", "--seeds=0,1,2"),
                    *(f"--data_dir={options.eval_dir}", f"--output={output}"),
                )
            with open(os.path.join(output, "results.json")) as file:
                results = json.load(file)
            scores = [seed["score"] for seed in results["seeds"].values()]
            print(
                f"{task}: {title}: {statistics.fmean(scores):.1f} "
                f"(deviation {statistics.stdev(scores):.1f}), most frequent label "
                f"{results['constant']['score']:.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=["mirror", "misad"])
    parser.add_argument("--model", required=True, help="A model_dir to start from.")
    parser.add_argument("--eval_dir", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--strings", help="For mirror: one string a line.")
    parser.add_argument("--text", help="For misad: text in the training format.")
    parser.add_argument("--steps", type=int, help="Of every arm.")
    parser.add_argument("--learning_rate", default="2e-4")
    options = parser.parse_args()
    if not (options.strings if options.part == "mirror" else options.text):
        parser.error("mirror needs --strings, misad --text")
    {"mirror": _mirror, "misad": _misad}[options.part](options)


if __name__ == "__main__":
    main()
