"""Vocabularies learnt here against those of Hugging Face's `tokenizers`, same text.

    pip install tokenizers
    python benchmarks/vocabulary.py --input='en=en.txt.gz,de=de/*.txt.gz' --size=8000

Nine lines of ten are learnt from, by each arm in a process of its own:

    cmlm 0.3    what `python -m cmlm.vocab` does: languages by their size^0.3
    cmlm 1      the same with every word counted once
    tokenizers  its WordPieceTrainer with BERT's normaliser and pre-tokenizer, which has
                no such smoothing

One tokenizer, this project's, reads every tenth line with each vocabulary.
Seconds are from files to tokens. Words are known where they do not come out as [UNK].
"""

import json
import os
import subprocess
import sys
import tempfile
import time

from absl import flags

from cmlm import cli
from cmlm.errors import UserError

flags.DEFINE_string("input", None, "LANGUAGE=FILES for each language.")
flags.DEFINE_integer("size", 8000, "Tokens of each vocabulary.")
flags.DEFINE_bool("lower_case", True, "Lower-case the text and strip its accents.")
flags.DEFINE_integer(
    "megabytes", 2, "Text of each language, from its beginning.", lower_bound=1
)
flags.DEFINE_list("arms", ["cmlm 0.3", "cmlm 1", "tokenizers"], "Arms to compare.")
flags.DEFINE_string("output", None, "The .json file to write, if any.")
flags.DEFINE_string("arm", None, "Internal: the way in which a child process learns.")
flags.DEFINE_string("folder", None, "Internal: where its text is.")

FLAGS = flags.FLAGS


# --------------------------------------------------------------------- arms


def learn_here(paths: dict[str, str], exponent: float, output: str) -> None:
    """cmlm.vocab's own way."""
    from cmlm.vocabulary import learning
    from cmlm.vocabulary.settings import VocabularyConfig

    config = VocabularyConfig(
        size=FLAGS.size, lower_case=FLAGS.lower_case, sampling_exponent=exponent
    )
    learning.learn({name: [path] for name, path in paths.items()}, config, output)


def learn_with_tokenizers(paths: dict[str, str], output: str) -> None:
    """The trainer of `tokenizers`, set up as for BERT."""
    import tokenizers

    from cmlm.tokenization import vocabulary_file

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
        lowercase=FLAGS.lower_case
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=FLAGS.size,
        special_tokens=list(vocabulary_file.SPECIAL_TOKENS),
        show_progress=False,
    )
    tokenizer.train(list(paths.values()), trainer)
    ids = tokenizer.get_vocab()
    vocabulary_file.write(sorted(ids, key=ids.get), output)


def _peak() -> float:
    """The largest memory of this process since it was reset, in megabytes."""
    with open("/proc/self/status") as file:
        values = dict(line.split(":", 1) for line in file)
    return int(values["VmHWM"].split()[0]) / 1024


def run_arm(paths: dict[str, str]) -> None:
    """A child process: learns, and prints its time and memory."""
    with cli.quiet_imports():
        # Imports are not to be measured.
        import cmlm.vocabulary.learning  # noqa: F401

        if FLAGS.arm == "tokenizers":
            import tokenizers  # noqa: F401

    # Until now, the peak may be that of the process that has started this one.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    # Bytes of text are part of memory only if they are read.
    before = _peak()
    began, processor = time.monotonic(), time.process_time()
    output = os.path.join(FLAGS.folder, f"{FLAGS.arm}.vocab")
    if FLAGS.arm == "tokenizers":
        learn_with_tokenizers(paths, output)
    else:
        learn_here(paths, float(FLAGS.arm.split()[1]), output)
    took = {
        "seconds": time.monotonic() - began,
        "processor_seconds": time.process_time() - processor,
        "megabytes": _peak() - before,
    }
    print(json.dumps(took))


# --------------------------------------------------------------- the whole


def split(patterns: str, folder: str) -> dict[str, int]:
    """Writes lines to learn from and to read: bytes of each language, both together."""
    from cmlm.common import atomic, files
    from cmlm.data import languages

    sizes = {}
    for language, of in languages.split(patterns).items():
        size = number = 0
        train = os.path.join(folder, f"{language}.train.txt")
        test = os.path.join(folder, f"{language}.test.txt")
        with atomic.text(train) as learnt, atomic.text(test) as read:
            for path in files.expand(of):
                with files.open_text(path) as lines:
                    for line in lines:
                        if size >= FLAGS.megabytes * 2**20:
                            break
                        if line.strip():
                            size += len(line.encode())
                            number += 1
                            (learnt if number % 10 else read).write(line)
        sizes[language] = size
    return sizes


def main(_) -> None:
    if FLAGS.arm:
        names = json.loads(FLAGS.input)
        run_arm({n: os.path.join(FLAGS.folder, f"{n}.train.txt") for n in names})
        return
    cli.require(input="LANGUAGE=FILES")
    with cli.quiet_imports():
        from cmlm.common import atomic
        from cmlm.tokenization import word_pieces
        from cmlm.tokenization.rules import Rules
        from cmlm.vocabulary import coverage, words
    try:
        import tokenizers
    except ImportError as error:
        raise UserError("this needs `pip install tokenizers`") from error

    results = {"tokenizers": tokenizers.__version__, "size": FLAGS.size}
    with tempfile.TemporaryDirectory() as folder:
        results["bytes"] = sizes = split(FLAGS.input, folder)
        read = {
            name: words.count(
                {None: [os.path.join(folder, f"{name}.test.txt")]},
                Rules(FLAGS.lower_case),
                1 << 40,
            )
            for name in sizes
        }
        for name, size in sizes.items():
            print(f"{name}: {size:,} bytes, {read[name].total:,} words are read")
        for arm in FLAGS.arms:
            # ---------------------------------------------------- learning
            command = [
                *(sys.executable, os.path.abspath(__file__), f"--arm={arm}"),
                *(f"--input={json.dumps(list(sizes))}", f"--folder={folder}"),
                *(f"--size={FLAGS.size}", f"--lower_case={FLAGS.lower_case}"),
            ]
            child = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if child.returncode:
                raise UserError(f"{arm} ended with exit code {child.returncode}")
            took = json.loads(child.stdout)

            # ----------------------------------------------------- reading
            path = os.path.join(folder, f"{arm}.vocab")
            tokenizer = word_pieces.WordPiece(path, Rules(FLAGS.lower_case))
            print(
                f"\n{arm}: {tokenizer.vocab_size:,} tokens in {took['seconds']:.1f} s, "
                f"{took['processor_seconds']:.1f} of a processor, "
                f"{took['megabytes']:.0f} MB",
                flush=True,
            )
            print(
                f"{'':8}{'known words':>12}{'characters':>12}{'one piece':>11}"
                f"{'tokens/word':>13}"
            )
            results[arm] = {**took, "languages": {}}
            for name, counted in read.items():
                found = coverage.measure(tokenizer, counted.counts)
                results[arm]["languages"][name] = vars(found)
                print(
                    f"{name:8}{found.known_words:12.3%}{found.known_characters:12.3%}"
                    f"{found.words_in_one_piece:11.1%}{found.tokens_per_word:13.3f}"
                )
    if FLAGS.output:
        with atomic.text(FLAGS.output) as file:
            json.dump(results, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    cli.run(main)
