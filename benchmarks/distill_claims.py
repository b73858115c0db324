"""Does a student keep its teacher, and does an English teacher become multilingual?

    python benchmarks/distill_claims.py --teacher=MINILM --data_dir=EVAL --output=DIR \\
        --train_data='corpus/*.txt.gz' --results=docs/results/distill_claims.jsonl
    python benchmarks/distill_claims.py --arms=teacher,bitext,both --teacher=MINILM \\
        --bitext_data='en-de=bitext/en-de/*.tsv.gz,en-fr=...' --data_dir=EVAL \\
        --output=DIR --results=docs/results/distill_claims.jsonl

small      configs/distill_small.flags: English text, two layers of 192
layers     configs/distill_layers.flags: the same text, three layers of MiniLM
two_layers MiniLM's first and last layer, on the same text
aligned    three layers of --student learn another teacher's vectors, turned to its own
adapt      configs/adapt_distill.flags: all layers of --student, likewise
adapt_pca  the same, with vectors that are not turned
teacher    configs/distill_multilingual.flags without bitext retrieval
bitext     the same without the teacher
both       configs/distill_multilingual.flags as it is
two        the same, with batches of its own for bitext retrieval

The text of the arms above `teacher` is in sentences, one a line. Of each file of
--train_data, at most --sentences sentences of 6 to 25 words take part, drawn at random,
each a document of its own; a sentence of a test set does not. The teacher computes in
bfloat16 with --precision=bfloat16. These arms are scored on the seven STS sets, the
other arms on English STS-B, on STS-B in the five other languages, and on Tatoeba. Runs
go on where they were stopped, and a second start skips the rows that are there. --table
prints mean and deviation over the seeds as Markdown, and runs nothing.
"""

import functools
import glob
import gzip
import itertools
import os
import random

import claims
from absl import flags

from cmlm.errors import UserError

flags.DEFINE_string("teacher", None, "As in cmlm.train: MiniLM's folder.")
flags.DEFINE_string(
    "student",
    "",
    "The encoder whose layers learn, in English arms but small; empty: the teacher.",
)
flags.DEFINE_string("train_data", None, "Files of sentences, for English arms.")
flags.DEFINE_integer("sentences", 40_000, "Sentences of each file of --train_data.")
flags.DEFINE_string("bitext_data", None, "As in cmlm.train; for the other arms.")
flags.DEFINE_list(
    "languages", ["de", "es", "fr", "ru", "zh", "tr"], "Languages of Tatoeba."
)
flags.DEFINE_multi_string(
    "params_override", [], "Settings of every run, as in cmlm.train."
)
claims.define_flags(["small"])

FLAGS = flags.FLAGS

_TEACHER_ALONE = "task.distill_bitext.retrieval_weight=0"
# The objective `bitext` with the batches of the flagfile.
_BITEXT = [
    "task.bitext.similarity=cosine,task.bitext.scale=20",
    "task.bitext.train_data.global_batch_size=256,task.bitext.train_data.seq_length=48",
]
ARMS = {
    "small": [],
    "layers": [],
    "two_layers": ["init_layers=[0,5]"],
    "aligned": ["task.distill.projection=aligned"],
    "adapt": [],
    "adapt_pca": ["task.distill.projection=pca"],
    "teacher": [_TEACHER_ALONE],
    "bitext": ["task.distill_bitext.weight=0", "task.bitext.weight=1", *_BITEXT],
    "both": [],
    "two": [_TEACHER_ALONE, "task.bitext.weight=0.03", *_BITEXT],
}
# The arms with English text, and their flagfiles.
_ENGLISH = {
    "small": "distill_small",
    "layers": "distill_layers",
    "two_layers": "distill_layers",
    "aligned": "distill_layers",
    "adapt": "adapt_distill",
    "adapt_pca": "adapt_distill",
}
# Named: the mean of the whole task depends on the languages of the folder.
_STSB_LANGUAGES = ("de", "es", "fr", "ru", "zh")
_STS = (*(f"sts{year}" for year in range(12, 17)), "stsb-test", "sick-r")


def _teacher() -> str:
    """An export of the teacher that computes in --precision."""
    export = os.path.join(FLAGS.output, f"teacher-{FLAGS.precision}")
    if not os.path.exists(export):
        claims.run(
            "export.tfhub",
            f"--from={FLAGS.teacher}",
            f"--export_dir={export}",
            f"--precision={FLAGS.precision}",
        )
    return export


def _tested() -> set[str]:
    """Every field of every line of the STS sets, in lower case."""
    fields: set[str] = set()
    for path in glob.glob(
        os.path.join(FLAGS.data_dir, "senteval", "**"), recursive=True
    ):
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                for line in file:
                    fields.update(part.strip().lower() for part in line.split("\t"))
    if not fields:
        raise UserError(
            f"--data_dir={FLAGS.data_dir} has no text below senteval/; allowed: a "
            "folder with SentEval's test sets, whose sentences stay out of the training"
        )
    return fields


def _sentences() -> str:
    """The sampled sentences of --train_data, in a file of --output."""
    path = os.path.join(FLAGS.output, f"sentences-{FLAGS.sentences}.txt.gz")
    if os.path.exists(path):
        return path
    seen = _tested()
    chosen: list[str] = []
    for source in sorted(glob.glob(FLAGS.train_data)):
        found = []
        with gzip.open(source, "rt", encoding="utf-8") as file:
            for line in map(str.strip, file):
                if 6 <= len(line.split()) <= 25 and line.lower() not in seen:
                    seen.add(line.lower())
                    found.append(line)
        chosen += random.Random(0).sample(found, min(FLAGS.sentences, len(found)))
    with gzip.open(f"{path}.new", "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n\n" for line in chosen)
    os.rename(f"{path}.new", path)
    return path


def _train(arm: str, seed: int) -> str:
    name = _ENGLISH.get(arm, "distill_multilingual")
    arguments = [f"--flagfile={os.path.join(claims.CONFIGS, name)}.flags"]
    if arm in _ENGLISH:
        arguments.append(f"--train_data={_sentences()}")
    if arm == "small":
        vocabulary = os.path.join(FLAGS.teacher, "vocab.txt")
        arguments.append(f"--vocab_file={vocabulary}")
    elif arm in _ENGLISH:
        arguments.append(f"--init_checkpoint={FLAGS.student or FLAGS.teacher}")
    else:
        arguments.append(f"--bitext_data={FLAGS.bitext_data}")
    overrides = [
        *ARMS[arm],
        f"trainer.seed={seed}",
        *(
            f"task.{objective}.train_data.seed={seed}"
            for objective in ("distill", "distill_bitext", "bitext")
        ),
        *FLAGS.params_override,
    ]
    if arm != "bitext":
        arguments.append(f"--teacher={_teacher()}")
        objective = "distill" if arm in _ENGLISH else "distill_bitext"
        cache = os.path.join(FLAGS.output, f"vectors-{objective}")
        # The teacher reads the texts once for all seeds and arms.
        overrides.append(f"task.{objective}.teacher_cache={cache}")
    return claims.train(f"{arm}-{seed}", overrides, *arguments)


def _score(arm: str, seed: int, model: str) -> dict[str, float]:
    tasks = _STS
    if arm not in _ENGLISH:
        stsb = (f"stsb-multilingual-{language}" for language in _STSB_LANGUAGES)
        tatoeba = (f"tatoeba-{language}" for language in FLAGS.languages)
        tasks = ("stsb-test", *stsb, *tatoeba)
    return claims.scores(f"{arm}-{seed}", model, tasks)


def _run() -> None:
    for seed, arm in itertools.product(map(int, FLAGS.seeds), FLAGS.arms):
        claims.run_arm(
            {"arm": arm, "seed": seed},
            functools.partial(_train, arm, seed),
            functools.partial(_score, arm, seed),
        )


def _with_means(row: dict) -> dict:
    # Older rows have the mean of the other languages as `stsb-multilingual`.
    groups = {
        "sts": _STS,
        "stsb, other languages": [
            n for n in row if n.startswith("stsb-") and n != "stsb-test"
        ],
        "tatoeba": [n for n in row if n.startswith("tatoeba-")],
    }
    return claims.with_means(row, groups)


def _table() -> None:
    found = [_with_means(row) for row in claims.rows(FLAGS.results)]
    shown = ("stsb-test", "sick-r", "sts", "stsb, other languages", "tatoeba")
    claims.print_table(found, ("arm",), (*shown, "train_cpu_seconds"))


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "teacher")
