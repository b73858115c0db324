"""Universal sentence encoders, trained on your text and served, in TensorFlow.

    import cmlm

    encoder = cmlm.load("MODEL")  # an export, a model_dir, a Hugging Face folder, ...
    vectors = encoder.encode(["a sentence", "another"])  # float32 [2, dim]
    encoder.similarity(["a sentence"], ["another"])  # cosines, float32 [1, 1]
    cosines, rows = encoder.search(["a query"], ["a text", "another"], k=1)

    encoder = cmlm.fit("RUN", flagfile="en_small", train_data="corpus/*.txt.gz")
    scores = cmlm.score(encoder, "testsets", ["sts", "trec"], output="report")
    cmlm.averages(scores)["sts"]

Importing this package is fast: only its functions import TensorFlow. In a shell, `cmlm`
lists the commands: `fit` is `cmlm train`, and `score` is `cmlm evaluate`.
"""

import os
from collections.abc import Iterable, Mapping

from cmlm.common.forks import refuse as _refuse_fork
from cmlm.common.versions import VERSION as __version__

__all__ = ["__version__", "averages", "fit", "load", "score"]


def load(
    model: str | os.PathLike,
    precision: str | None = None,
    prompt: str | None = None,
    prompts: dict[str, str] | None = None,
    dimensions: int | None = None,
    *,
    pooling: str | None = None,
    sentence_vector: str | None = None,
    seq_length: int | None = None,
):
    """Opens an export, a model_dir, foreign weights, a server or stored vectors.

    None keeps the model's own value of an argument. The function sets the environment
    variables of TensorFlow and gRPC that it needs and that are not set.

    Args:
        model: a path or an address, as `cmlm encode --model` takes it.
        precision: of the layers, float32 or bfloat16; vectors are float32.
        prompt: a text that precedes every text; "" removes the default prompt.
        prompts: prompts by name, for `encode(texts, prompt_name="query")`.
        dimensions: keep the first N dimensions of each vector; 0: all.
        pooling: mean, max, cls or pooler.
        sentence_vector: pooled, or projected for a run of CMLM.
        seq_length: the longest text in tokens; `encode` cuts longer texts.

    Returns:
        An encoder: `encode(texts)` gives float32 [n, dim], `similarity(a, b)` gives
        cosines, [n, m], `search(queries, corpus, k)` cosines and rows, [n, min(k, m)].

    Raises:
        cmlm.errors.UserError: an argument is not allowed, or the model does not open.
    """
    from cmlm.common import native_log
    from cmlm.errors import naming_arguments

    with native_log.dropped():
        from cmlm.encoders import opening
        from cmlm.encoders.reading import Reading

    name = _path("model", model, "a path or an address, as a str")
    given = {
        "precision": precision,
        "prompt": prompt,
        "prompts": prompts,
        "dimensions": dimensions,
        "pooling": pooling,
        "sentence_vector": sentence_vector,
        "seq_length": seq_length,
    }
    with naming_arguments(*given):
        return opening.open_encoder(name, Reading(**given))


def fit(model_dir: str | os.PathLike, settings: dict | None = None, **flags):
    """Trains as `cmlm train` does, in a separate process, and loads the encoder.

    >>> import cmlm
    >>> encoder = cmlm.fit(
    ...     MODEL_DIR, {"trainer.train_steps": 2}, flagfile=FLAGFILE, train_data=TEXT
    ... )
    >>> encoder.encode(["a sentence"]).shape
    (1, 16)

    Takes settings by dotted name (`cmlm settings` lists them), and the command's flags
    by name, such as flagfile and train_data (files: a str, a list, or a dict by
    language). The same model_dir resumes. The log goes to stderr. Returns the encoder,
    as `load` does. Raises cmlm.errors.UserError if the command fails.
    """
    from cmlm.errors import naming_arguments
    from cmlm.training import from_python

    name = _path("model_dir", model_dir)
    # It would train first and fail then.
    _refuse_fork(name)
    with naming_arguments("model_dir", *flags):
        from_python.train(name, settings or {}, flags)
    return load(model_dir)


def score(
    encoder,
    data_dir: str | os.PathLike = ".",
    tasks: str | list[str] = (),
    repeats: int = 1,
    classifier: str = "logistic",
    output: str | os.PathLike | None = None,
    overwrite: bool = False,
) -> dict[str, dict[str, float]]:
    """Scores an encoder, or anything with `encode`, as `cmlm evaluate` does.

    `load` opens an encoder given by path. `tasks` is a list, or a str with commas, such
    as "sts,trec"; your own files need no data_dir: "sts:FILE". `repeats` is the number
    of seeds of a classifier, `classifier` is logistic, logistic-adam, logistic-cmlm or
    mlp, `output` is the folder or .json file of a report; `overwrite` replaces it.

    Returns the metrics of each task, accuracies and correlations times 100: {"trec":
    {"accuracy": 74.2}}. Raises cmlm.errors.UserError if an argument is not allowed, or
    the data of a task is missing. (`cmlm evaluate` scores the other tasks then.)
    """
    from cmlm.errors import UserError, naming_arguments, needing, shown

    with needing("evaluate"):
        from cmlm.evaluation import catalogue, results, run

        if output:
            # It would score first and fail then.
            from cmlm.evaluation import plots, report  # noqa: F401  (for figures)

    names = () if tasks is None else tasks
    names = names.split(",") if isinstance(names, str) else names
    names = [*names] if isinstance(names, Iterable) else [names]
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"tasks is {shown(tasks)}; allowed: a str or a list of str")
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise UserError(
            "tasks is not given; allowed: names, see `cmlm evaluate --list_tasks=all`"
        )
    is_name = isinstance(encoder, (str, os.PathLike))
    if not (is_name or hasattr(encoder, "encode")):
        raise UserError(
            f"encoder is {shown(encoder)}; allowed: a model, or an object with encode"
        )
    data_dir = _path("data_dir", data_dir)
    output = output and _path("output", output).rstrip("/")
    with naming_arguments("data_dir", "tasks", "repeats", "classifier", "overwrite"):
        settings = results.settings(data_dir, repeats, classifier)
        chosen = catalogue.select(names, settings["seeds"], classifier)
        if output:
            from cmlm.common import outputs

            inputs = {"tasks": names}
            # FAMILY:FILE names its files itself.
            if not all(":" in name for name in names):
                inputs["data_dir"] = data_dir
            if is_name:
                inputs["encoder"] = os.fspath(encoder)
            outputs.check({"output": output}, inputs, overwrite)
        found, failed = run.read(chosen, data_dir)
    if failed:
        raise UserError("; ".join(failed.values()))
    model = load(encoder) if is_name else encoder
    scored = run.score(model, found, with_figures=bool(output))
    if output:
        name = getattr(model, "name", None) or type(model).__name__
        entry = results.entry_of(model, scored, run.by_role(found))
        content = results.collect(settings, found, {str(name): entry}, {}, {})
        report.save(output, content, overwrite)
    return scored.scores


def averages(scores: dict[str, dict[str, float]]) -> dict[str, float]:
    """The averages that papers print, over scores of `score` for at least two parts.

    >>> import cmlm
    >>> cmlm.averages({"mr": {"accuracy": 80.0}, "cr": {"accuracy": 90.0}})
    {'senteval': 85.0, 'senteval/labse': 85.0}

    Returns the averages by name; an average needs two of its parts. Raises
    cmlm.errors.UserError if `scores` has another type.
    """
    from cmlm.errors import UserError, shown
    from cmlm.evaluation import averages

    parts = scores.values() if isinstance(scores, Mapping) else [None]
    if not all(isinstance(part, Mapping) for part in parts):
        raise UserError(
            f"scores is {shown(scores)}; allowed: the scores of `cmlm.score`"
        )
    return averages.of(scores)


def _path(name: str, value: object, allowed: str = "a path, as a str") -> str:
    """Returns a path as a str, or raises UserError, which names the argument."""
    from cmlm.errors import UserError, shown

    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else ""
    if not path or isinstance(path, bytes):
        raise UserError(f"{name} is {shown(value)}; allowed: {allowed}")
    return path
