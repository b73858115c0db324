"""Does MiSAD lift analogies and paraphrases over masked LM?

    python benchmarks/misad_claims.py --model=DIR/base --train_data='marked/*.txt.gz' \\
        --heldout='heldout/*.txt.gz' --data_dir=EVAL --output=DIR \\
        --results=docs/results/misad_claims.jsonl

--model is a masked LM, such as the `base` of cmlm_claims.py. Both texts have marked
n-grams (`cmlm.ngrams --marked_output`). Arms of Li and Zhao, 2021
(https://arxiv.org/abs/2105.14478, sections 3 and 7), --steps of 64 sentences of 64
tokens from the same weights:

mlm             masked LM alone: the same batches, with weight 0 for MiSAD
misad           MiSAD with its n-grams at weight 1
misad_50        the same at weight 50
spans_50        random spans instead of n-grams at weight 50
mlm_paper       masked LM alone, for the two arms below
misad_paper     the paper's own form
misad_distance  the same, with the squared distance of the vectors as loss; needs a
                --model of cmlm.train

The last three run only if --arms names them.

The first four have the form of the authors' code: E_w + E_R at unit length, a random
n-gram, and masked LM on S and on R, so that weight 1 is half of the weight of masked
LM. They take the pooling of --model and a rate of 1e-4. The paper's form has MSE(E_w +
E_R, E_S) and masked LM on S at equal weights, the n-gram that the model predicts worst,
and 5e-5. It reads [CLS] itself, not BERT's pooler over it, because a masked MiniLM has
no trained pooler. Its text is marked by the defaults of `cmlm.ngrams`.

Each row has the scores of the analogies and of GEOGRANNO by mean pooling, the paper's
for evaluation. `composition` says how well a sentence is the sum of an n-gram and the
rest on held-out text, by the pooling of the training: the mean cosine of E_w + E_R and
E_S, and, as a control against vectors that are all alike, how often the sum finds its
sentence among all sentences.

A second start skips the rows that are there. --table prints mean and deviation over the
seeds as Markdown, and runs nothing.
"""

import functools
import glob
import gzip
import itertools
import os
import re

import claims
import numpy as np
import yaml
from absl import flags

flags.DEFINE_string("model", None, "A masked LM to start from.")
flags.DEFINE_string("train_data", None, "Text with marked n-grams.")
flags.DEFINE_string("heldout", None, "Other text with marked n-grams.")
flags.DEFINE_integer("steps", 300, "Steps of every arm.")
claims.define_flags(["mlm", "misad", "misad_50", "spans_50"])

FLAGS = flags.FLAGS

_WEIGHT = "task.misad.misad_weight"
# In the place of the released code's settings, which come before them.
_PAPER = [
    *("task.misad.form=paper", "task.misad.choice=model", "model.pooling=cls"),
    "trainer.optimizer.learning_rate=5e-5",
]
ARMS = {
    "mlm": [f"{_WEIGHT}=0"],
    "misad": [f"{_WEIGHT}=1"],
    "misad_50": [f"{_WEIGHT}=50"],
    "spans_50": [f"{_WEIGHT}=50", "task.misad.candidates=spans"],
    # Without the choice by the model, which costs most of a step: masked LM here leaves
    # out a random n-gram, and the loss of masked LM is not comparable with misad_paper.
    "mlm_paper": [*_PAPER, f"{_WEIGHT}=0", "task.misad.choice=random"],
    "misad_paper": [*_PAPER, f"{_WEIGHT}=1"],
    "misad_distance": _PAPER,
}
_UNITS = ("accuracy/word", "accuracy/phrase", "accuracy/sentence")
_TASKS = ("ulr-analogy", "geogranno", "stsb-test", "sick-r")
_COMPOSED = 2000


def _width() -> int:
    """The width of the vectors of --model."""
    with open(os.path.join(FLAGS.model, "params.yaml"), encoding="utf-8") as file:
        return yaml.safe_load(file)["model"]["hidden_size"]


def _train(name: str, arm: str, seed: int) -> str:
    overrides = [
        *("model.pooling=source", "task.misad.form=released"),
        "task.misad.choice=random",
        "task.misad.train_data.seq_length=64",
        *(f"trainer.train_steps={FLAGS.steps}", f"trainer.seed={seed}"),
        f"task.misad.train_data.seed={seed}",
        f"trainer.optimizer.warmup_steps={FLAGS.steps // 10}",
        *("trainer.optimizer.type=adamw", "trainer.optimizer.learning_rate=1e-4"),
        *("trainer.summary_interval=25", "trainer.validation_interval=100"),
        *("trainer.checkpoint_interval=100", "trainer.best_checkpoint_metric="),
        "trainer.validation_examples=1024",
        "trainer.micro_batch_size=16",
        *ARMS[arm],
    ]
    if arm == "misad_distance":
        # Section 3.2 does not say over which axes its MSE is a mean. Ours is over rows
        # and dimensions; the width as weight makes it the squared distance of vectors.
        overrides.append(f"{_WEIGHT}={_width()}")
    return claims.train(
        name,
        overrides,
        "--experiment=ulr/misad",
        f"--init_checkpoint={FLAGS.model}",
        f"--train_data={FLAGS.train_data}",
    )


def _composed() -> str:
    """Writes triples of lines: a held-out sentence, its longest n-gram, the rest."""
    path = os.path.join(FLAGS.output, "composed.txt")
    if os.path.exists(path):
        return path
    triples = []
    for source in sorted(glob.glob(FLAGS.heldout)):
        with gzip.open(source, "rt", encoding="utf-8") as file:
            for line in file:
                sentence, *ngrams = line.rstrip("\n").lower().split("\t")
                if ngrams and 8 <= len(sentence.split()) <= 40:
                    ngram = max(ngrams, key=len)
                    # Whole words: "art is" is not in "the cart is".
                    whole = rf"\b{re.escape(ngram)}\b"
                    parts = re.split(whole, sentence, maxsplit=1)
                    rest = " ".join(part.strip() for part in parts).strip()
                    if len(parts) == 2 and rest:
                        triples.append((sentence, ngram, rest))
    # Every n-th, so that all documents take part.
    chosen = triples[:: max(1, len(triples) // _COMPOSED)][:_COMPOSED]
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.writelines(f"{text}\n" for triple in chosen for text in triple)
    os.rename(f"{path}.new", path)
    return path


def _composition(name: str, model: str) -> dict[str, float]:
    path = os.path.join(FLAGS.output, f"{name}-composed.npy")
    claims.run(
        "cmlm.encode",
        *(f"--model={model}", f"--input={_composed()}", f"--output={path}"),
        *("--normalize", "--overwrite"),
    )
    vectors = np.load(path)
    sentence, ngram, rest = vectors[::3], vectors[1::3], vectors[2::3]
    total = ngram + rest
    total /= np.linalg.norm(total, axis=1, keepdims=True)
    cosines = total @ sentence.T
    found = cosines.argmax(axis=1) == np.arange(len(cosines))
    return {
        "composition_cosine": round(float(np.diag(cosines).mean()), 4),
        "composition_found": round(100 * float(found.mean()), 2),
    }


def _score(name: str, model: str) -> dict[str, float]:
    also = {"ulr-analogy": _UNITS}
    found = claims.scores(name, model, _TASKS, "--pooling=mean", also=also)
    return found | _composition(name, model)


def _run() -> None:
    claims.run_start(
        {"arm": "before", "seed": 0},
        functools.partial(_score, "misad-before", FLAGS.model),
    )
    for seed, arm in itertools.product(map(int, FLAGS.seeds), FLAGS.arms):
        name = f"misad-{arm}-{seed}-{FLAGS.steps}"
        claims.run_arm(
            {"arm": arm, "seed": seed, "steps": FLAGS.steps},
            functools.partial(_train, name, arm, seed),
            functools.partial(_score, name),
        )


def _table() -> None:
    composition = ("composition_cosine", "composition_found")
    claims.print_table(
        claims.rows(FLAGS.results),
        ("arm", "steps"),
        (*_UNITS, *_TASKS, *composition, "train_cpu_seconds"),
    )


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "model", "train_data", "heldout")
