"""Learns a WordPiece vocabulary from text, or prunes an encoder's vocabulary to a text.

    python -m cmlm.vocab --input='corpus/*.txt.gz' --output=vocab.txt --size=30522
    python -m cmlm.train --vocab_file=vocab.txt ...

Training learns a vocabulary if none is given. Use this command to share a vocabulary
between runs, and to see how well it covers a text. The input has one sentence a line;
name languages as in --input='en=en/*.txt,de=de/*.txt'. By default, one process counts
the words in --max_text_bytes of each language. With --workers or --beam_options, Apache
Beam counts the words of all text:

    python -m cmlm.vocab --input='gs://mine/en/*.txt.gz' --output=gs://mine/vocab.txt \\
        --beam_options='--runner=DataflowRunner --project=... --region=...'

    python -m cmlm.vocab --prune_model=MODEL_DIR --input='de=de/*.txt,fr=fr/*.txt' \\
        --output=NEW_MODEL_DIR

This last command writes a model_dir with only the tokens that the text needs. The
vectors of this text do not change, and the embedding table is smaller. The command also
takes weights of another program. The vocabulary must be WordPiece or SentencePiece.
"""

import shlex

from absl import flags

from cmlm import cli
from cmlm.common import beam_flags, choices, path_names
from cmlm.errors import UserError, naming

flags.DEFINE_string(
    "input",
    None,
    "Text: files, globs or a comma-separated list (.txt, .txt.gz), as FILES or as "
    "en=FILES,de=FILES.",
)
flags.DEFINE_list("keep_languages", [], "Languages of --input to read; default: all.")
flags.DEFINE_string("output", None, "File to write; with --prune_model, a directory.")
flags.DEFINE_bool("overwrite", False, "Replace an output that exists.")
flags.DEFINE_integer("size", 30522, "Maximum number of tokens, special ones included.")
flags.DEFINE_bool("lower_case", True, "Lower-case the text.")
flags.DEFINE_bool(
    "strip_accents",
    None,
    "Drop accents, so that é is e. Default: as --lower_case, as in BERT.",
)
flags.DEFINE_bool(
    "dotless_i",
    None,
    "With --lower_case, I becomes ı and İ becomes i. Default: true if --input names "
    "all text as Turkish or Azerbaijani (tr=FILES).",
)
flags.DEFINE_enum(
    "normalization",
    "",
    choices.NORMALIZATIONS,
    "Unicode normal form of the text; empty leaves the text as it is.",
)
flags.DEFINE_float(
    "sampling_exponent",
    0.3,
    "With several languages, the weight of a language is its number of words to the "
    "power of this exponent.",
)
flags.DEFINE_integer(
    "max_text_bytes",
    256 * 2**20,
    "Most bytes to read of a language's text, and of each column of its bitext. The "
    "command reads several files at once. Beam reads all text.",
    lower_bound=1,
)
beam_flags.define(
    None,
    "Processes on this machine that count with Beam; 0: one per core. Default: without "
    "--beam_options, count without Beam.",
)
flags.DEFINE_string(
    "prune_model",
    None,
    "Encoder to prune instead of learning: a model_dir, best:MODEL_DIR, a checkpoint, "
    "an export, or weights of another program (BERT checkpoint, TF Hub SavedModel, "
    "Hugging Face folder), with a WordPiece or SentencePiece vocabulary.",
)

FLAGS = flags.FLAGS

# Flags that are refused beside --prune_model.
_LEARNING = (
    "size",
    "lower_case",
    "strip_accents",
    "dotless_i",
    "normalization",
    "sampling_exponent",
    "max_text_bytes",
    "workers",
    "beam_options",
)
_SAMPLE_BYTES = 16 * 2**20


def main(_) -> None:
    cli.require(
        input="text: files, globs or a list of them; or en=FILES,de=FILES",
        output="a file to write; with --prune_model, a directory",
    )
    with cli.quiet_imports():
        from cmlm.common import files, outputs
        from cmlm.data import languages, other_formats
        from cmlm.tokenization import rules, vocabulary_file

    if FLAGS.dotless_i and not FLAGS.lower_case:
        raise UserError(
            "--dotless_i is given with --nolower_case; allowed: with --lower_case,"
            " because it sets the lower case of I"
        )
    written = {"--output": FLAGS.output}
    if not FLAGS.prune_model:
        if vocabulary_file.is_json(FLAGS.output):
            raise UserError(
                f"--output is {FLAGS.output}; allowed: a name such as vocab.txt, as"
                " .json stands for a tokenizer.json"
            )
        written["the rules of --output"] = rules.path_of(FLAGS.output)
    outputs.check(
        written,
        {"--input": FLAGS.input, "--prune_model": FLAGS.prune_model},
        FLAGS.overwrite,
        packs=False,
    )
    with naming("--input"):
        patterns = languages.split(FLAGS.input)
    unknown = [name for name in FLAGS.keep_languages if name not in patterns]
    if unknown:
        raise UserError(
            f"--keep_languages={','.join(unknown)} is not in --input; allowed: "
            f"{', '.join(filter(None, patterns)) or 'none; --input has no languages'}"
        )
    with naming("--input"):
        paths = {
            language: files.expand(pattern)
            for language, pattern in patterns.items()
            if not FLAGS.keep_languages or language in FLAGS.keep_languages
        }
    for of in paths.values():
        # Tabs and ends of lines separate words, as in plain text.
        other_formats.warn(
            of, layout="wrapped", tables=False, effect="its markup counts as words"
        )
    if FLAGS.prune_model:
        _prune(paths)
    else:
        _learn(paths)


def _learn(paths: dict[str, list[str]]) -> None:
    """Learns a vocabulary and prints how it covers each language."""
    with cli.quiet_imports():
        from cmlm.common import fields
        from cmlm.data import inspection
        from cmlm.tokenization import rules
        from cmlm.vocabulary import coverage, learning, words
        from cmlm.vocabulary.settings import VocabularyConfig

    dotless_i = FLAGS.dotless_i
    if dotless_i is None:
        dotless_i = rules.has_dotless_i(paths)
    config = VocabularyConfig(
        size=FLAGS.size,
        lower_case=FLAGS.lower_case,
        strip_accents=FLAGS.strip_accents,
        dotless_i=dotless_i,
        normalization=FLAGS.normalization,
        sampling_exponent=FLAGS.sampling_exponent,
        max_text_bytes=FLAGS.max_text_bytes,
    )
    fields.check(config, "--")
    on_beam = FLAGS.workers is not None or FLAGS.beam_options
    for of in paths.values():
        # Beam may read remote files, so only their beginning is inspected.
        inspection.inspect(of, _SAMPLE_BYTES if on_beam else FLAGS.max_text_bytes)
    if on_beam:
        _learn_on_beam(paths, config)
    else:
        learning.learn(paths, config, FLAGS.output)

    # ------------------------------------------------------------------ coverage
    tokenizer = config.tokenizer(FLAGS.output)
    print(f"{tokenizer.vocab_size:,} tokens, {tokenizer.rules}")
    read = words.count_languages(
        paths, tokenizer.rules, _SAMPLE_BYTES, words.MAX_DISTINCT_WORDS
    )
    for language, counted in read:
        if not counted.total:
            continue
        covered = coverage.measure(tokenizer, counted.counts)
        print(
            (f"{language}: " if language else "")
            + f"{covered.words_in_one_piece:.1%} of the words in one piece,"
            f" {covered.tokens_per_word:.3f} tokens a word,"
            f" {covered.unknown_tokens:.3%} of the tokens [UNK]"
        )
    print(FLAGS.output)


def _learn_on_beam(paths: dict[str, list[str]], config) -> None:
    """Learns a vocabulary from words that are counted on Beam."""
    cli.refuse_given(
        ["max_text_bytes"],
        "without --workers and --beam_options, as Beam counts all of the text",
    )
    with cli.quiet_imports("corpus"):
        from cmlm.common import atomic
        from cmlm.vocabulary import learning, words_on_beam

    # Beside the output, where a cluster's workers can write as well.
    with atomic.working_path(FLAGS.output) as work_path:
        smoothed, totals = words_on_beam.count_and_smooth(
            paths,
            config.rules(),
            config.sampling_exponent,
            learning.learner_words(config.size),
            work_path,
            beam_options=FLAGS.beam_options,
            workers=FLAGS.workers or 0,
        )
    learning.learn_and_write(smoothed, totals, config, FLAGS.output, paths)


def _prune(paths: dict[str, list[str]]) -> None:
    """Prunes an encoder and prints its sizes before and after."""
    allowed = "without --prune_model, because pruning keeps the model's own vocabulary"
    cli.refuse_given(_LEARNING, allowed)
    with cli.quiet_imports():
        from cmlm.common import files
        from cmlm.encoders import pruning

    path_names.refuse_pattern(FLAGS.output, "--output")
    text = [path for of in paths.values() for path in of]
    pruned = pruning.prune(
        FLAGS.prune_model,
        lambda: files.windows(text),
        FLAGS.output,
        FLAGS.overwrite,
    )

    # ----------------------------------------------------------------- report
    print(f"{pruned.checkpoint} -> {FLAGS.output}")
    for name, (before, after) in (
        ("tokens", pruned.tokens),
        ("weights", pruned.weights),
        ("bytes of the weights on disk", pruned.bytes),
    ):
        print(f"{name}: {before:,} -> {after:,} ({after / before:.1%})")
    print(f"largest difference of the vectors: {pruned.difference:.1e}")
    model = shlex.quote(FLAGS.output)
    print(f"export       python -m export.tfhub --model_dir={model} --export_dir=...")
    print(
        f"train on it  python -m cmlm.train --init_checkpoint={model} --model_dir=..."
    )


if __name__ == "__main__":
    cli.run(main)
