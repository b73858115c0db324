"""Does the gain of CMLM grow with its text, and does masked LM gain as much?

    python benchmarks/cmlm_scaling.py --train_data='text/*/*.txt.gz' \\
        --data_dir=EVAL --output=DIR --results=docs/results/cmlm_scaling.jsonl

The text is in sentences, one a line, with an empty line between documents. One run for
each arm and seed starts from nothing: 2 layers of 256, AdamW at a constant rate. The
arm `cmlm` trains masked LM for --masked_lm tokens and CMLM from there on (Yang et al.,
2020, https://arxiv.org/abs/2012.14388); the arm `masked_lm` trains masked LM alone. At
each of --budgets the run stops, the conditioning gain of its held-out pairs and its
scores become a JSON line of --results, and the run goes on: a line stands for a run of
that length. Its seconds alone count from the budget before. A second start skips the
lines that are there. --table prints mean and deviation over the seeds as Markdown, and
runs nothing.

The arms `then_masked_lm`, `then_cmlm` and `then_both` ask which objective to go on with
after long masked LM. They start from the weights of the run `masked_lm`, which must be
there, and their budgets count the tokens from that start. `then_both` trains the two
objectives side by side, each with half of the sentences.

Tokens are those of sentences as trained on: cut at 64, [CLS] and [SEP] included.
"""

import functools
import glob
import itertools
import os

import claims
from absl import flags

flags.DEFINE_string("train_data", None, "Text in sentences.")
flags.DEFINE_list("budgets", ["2", "5", "10", "25"], "Millions of tokens to stop at.")
flags.DEFINE_float("masked_lm", 2, "Millions of tokens before CMLM begins.")
claims.define_flags(["cmlm", "masked_lm"])

FLAGS = flags.FLAGS

ARMS = ("cmlm", "masked_lm", "then_masked_lm", "then_cmlm", "then_both")
_STS = ("stsb-test", "sick-r")
_SENTEVAL = ("mr", "mpqa", "trec", "sick-e")
_VOCABULARY = 16_000
_SENTENCES = 256
_SEQ_LENGTH = 64
# Validations come at multiples of this, and so do the ends of the budgets.
_INTERVAL = 50


def _vocabulary() -> str:
    path = os.path.join(FLAGS.output, "vocab.txt")
    if not os.path.exists(path):
        claims.run(
            "cmlm.vocab",
            f"--input={FLAGS.train_data}",
            f"--output={path}",
            f"--size={_VOCABULARY}",
        )
    return path


def _tokens_of_a_sentence(vocabulary: str) -> float:
    """The mean over 500 sentences from each file."""
    import tensorflow as tf

    from cmlm.common import files
    from cmlm.tokenization.word_pieces import WordPiece

    lengths = []
    tokenizer = WordPiece(vocabulary)
    for path in sorted(glob.glob(FLAGS.train_data)):
        with files.open_text(path) as file:
            lines = (line.strip() for line in file)
            some = list(itertools.islice(filter(None, lines), 500))
        pieces = tokenizer.tokenize(tf.constant(some)).row_lengths()
        lengths += tf.minimum(pieces + 2, _SEQ_LENGTH).numpy().tolist()
    return sum(lengths) / len(lengths)


def _objectives(arm: str, first: int) -> list[str]:
    """The weights, stages and batches of masked LM and CMLM in an arm."""
    mlm, cmlm = "task.mlm", "task.cmlm"
    share = 2 if arm == "then_both" else 1
    settings = [
        f"{mlm}.weight=1",
        f"{mlm}.train_data.global_batch_size={_SENTENCES // share}",
        f"{cmlm}.train_data.global_batch_size={_SENTENCES // 2 // share}",
    ]
    if arm == "cmlm":
        settings += [f"{mlm}.end_step={first}", f"{cmlm}.start_step={first}"]
    elif arm.endswith("masked_lm"):
        settings += [f"{cmlm}.weight=0"]
    elif arm == "then_cmlm":
        settings += [f"{mlm}.weight=0"]
    return settings


def _train(arm: str, seed: int, steps: int, first: int, vocabulary: str) -> str:
    mlm, cmlm = "task.mlm", "task.cmlm"
    overrides = [
        *("model.num_layers=2", "model.hidden_size=256", "model.num_attention_heads=4"),
        *("model.intermediate_size=1024", "model.num_views=5"),
        *("model.max_position_embeddings=128", "model.pooling=mean"),
        *("model.dropout_rate=0", "model.attention_dropout_rate=0"),
        *_objectives(arm, first),
        f"{cmlm}.passages=false",
        *(
            f"{objective}.train_data.{name}={value}"
            for objective in (mlm, cmlm)
            for name, value in (("seq_length", _SEQ_LENGTH), ("seed", seed))
        ),
        *(f"trainer.train_steps={steps}", f"trainer.seed={seed}"),
        *("trainer.summary_interval=50", f"trainer.checkpoint_interval={_INTERVAL}"),
        *("trainer.validation_interval=250", "trainer.validation_examples=4096"),
        *("trainer.best_checkpoint_metric=", "trainer.optimizer.type=adamw"),
        *("trainer.optimizer.learning_rate=1e-3", "trainer.optimizer.decay=constant"),
        "trainer.optimizer.warmup_steps=200",
    ]
    start = os.path.join(FLAGS.output, f"masked_lm-{seed}")
    return claims.train(
        f"{arm}-{seed}",
        overrides,
        *([f"--init_checkpoint={start}"] if arm.startswith("then_") else []),
        "--experiment=cmlm/english",
        f"--train_data={FLAGS.train_data}",
        f"--vocab_file={vocabulary}",
    )


def _score(name: str, directory: str) -> dict:
    found = claims.scores(name, directory, (*_STS, *_SENTEVAL))
    if gains := claims.conditioning_gains(directory):
        last = gains[max(gains, key=int)]
        found |= {"conditioning_gain": last, "gains": gains}
    return found


def _run() -> None:
    vocabulary = _vocabulary()
    of_a_step = _SENTENCES * _tokens_of_a_sentence(vocabulary)
    budgets = sorted(map(float, FLAGS.budgets))

    def steps_of(millions: float) -> int:
        return max(1, round(millions * 1e6 / of_a_step / _INTERVAL)) * _INTERVAL

    first = steps_of(FLAGS.masked_lm)
    for seed, arm in itertools.product(map(int, FLAGS.seeds), FLAGS.arms):
        for budget in budgets:
            steps = steps_of(budget)
            case = {"arm": arm, "seed": seed, "million_tokens": budget}
            claims.run_arm(
                case | {"steps": steps},
                functools.partial(_train, arm, seed, steps, first, vocabulary),
                functools.partial(_score, f"{arm}-{seed}-{budget:g}"),
            )


def _table() -> None:
    found = [
        claims.with_means(row, {"senteval": _SENTEVAL})
        for row in claims.rows(FLAGS.results)
    ]
    shown = ("conditioning_gain", "senteval", *_SENTEVAL, *_STS, "train_cpu_seconds")
    claims.print_table(found, ("arm", "million_tokens", "steps"), shown)


if __name__ == "__main__":
    claims.main(_run, _table, ARMS, "train_data")
