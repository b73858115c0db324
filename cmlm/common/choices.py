"""Values that a flag and a setting choose from, and a limit of both, each once.

This module imports nothing, so that commands can offer the values in `--help` at once.
"""

# Devices (`cmlm.common.distributed`).
STRATEGIES = ("one_device", "mirrored", "multi_worker_mirrored", "tpu")
# Layers of an inference graph (`cmlm.modeling.inference_graph`).
PRECISIONS = ("float32", "bfloat16")
# Layers that text determines, in the order in which an encoder computes them
# (`cmlm.modeling.layers`); the names of their flags (`export.fitting_flags`).
FITTED = ("sif", "whitening")
# Numbers in files of vectors (`cmlm.common.arrays`).
DTYPES = ("float32", "float16")
# Plain text files (`cmlm.data.sentences`).
TEXT_LAYOUTS = ("lines", "wrapped", "wikitext")
# The other files that `cmlm.preparation.sources` reads, and their steps by default.
STEPS_OF_LAYOUT = {
    "wet": (
        "c4",
        "length",
        "language",
        "duplicate_documents",
        "duplicate_lines",
    ),
    "wikipedia": ("length", "duplicate_documents"),
    "json": ("length", "duplicate_documents"),
    "csv": ("length", "duplicate_documents"),
    "tsv": ("duplicate_lines",),
    "gettext": ("duplicate_lines",),
}
# Those of them with translation pairs.
BITEXT_LAYOUTS = ("tsv", "gettext")
# Files of one language (`cmlm.preparation.spreading`).
MAX_SHARDS = 1 << 20
# Vocabularies (`cmlm.tokenization.rules`): Unicode's forms of text; "" changes nothing.
NORMALIZATIONS = ("", "nfc", "nfkc")
TOKENIZER_STYLES = ("tf-text", "hugging-face")
# N-grams (`cmlm.ngram_lists`).
NGRAM_FORMS = ("paper", "released")
NGRAM_COUNTS = ("corpus", "document")
NGRAM_SCOPES = ("document", "corpus")
# Mining (`cmlm.mining`): scores, candidate pairs, neighbour search.
MARGINS = ("ratio", "distance", "absolute")
RETRIEVALS = ("forward", "backward", "intersection", "max")
INDEXES = ("flat", "ivf", "pq")
# SentEval's classifiers (`cmlm.evaluation.classifier`).
CLASSIFIERS = ("logistic", "logistic-adam", "logistic-cmlm", "mlp")
