"""README.md of an export: describes the model from the files of its run.

Data, steps, objectives and seeds come from params.yaml. Changes of settings, text and
batches, and the packages of the training, come from starts.jsonl. Metrics come from the
last validation in metrics.jsonl at or before the exported step. The card says "not
stated" for every fact that the files do not contain.
"""

from __future__ import annotations

import dataclasses
import os
import re

import tensorflow as tf

from cmlm.common import language_names, versions
from cmlm.common.counts import counted
from cmlm.config import model_dir, run_records
from cmlm.data import bitext, builtin, languages
from cmlm.encoders import fingerprints
from cmlm.encoders.components_file import PrincipalComponents
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.encoders.signatures import SIGNATURES
from cmlm.errors import UserError
from cmlm.modeling import export_layout, pooling
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives.distill import DistillConfig

FILE_NAME = "README.md"

_HUGGING_FACE = """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH_OF_THIS_FOLDER"TRUNCATED)
vectors = model.encode(["A sentence.", "Another one."])
```
"""
_TF_HUB = """\
```python
import tensorflow_hub as hub
import tensorflow_text  # registers the tokenizer's ops

preprocessor = hub.load("PATH_OF_THIS_FOLDER/preprocessor")
encoder = hub.load("PATH_OF_THIS_FOLDER/encoder")
vectors = encoder(preprocessor(["A sentence.", "Another one."]))["default"]
```
"""


def _hugging_face(model: EncoderConfig) -> str:
    """The example for the card of a folder for Hugging Face's libraries."""
    # Version 5 of sentence-transformers does not read the dimensions of the folder.
    cut = model.dimensions
    return _HUGGING_FACE.replace("TRUNCATED", f", truncate_dim={cut}" if cut else "")


def write(
    opened: OpenedWeights,
    directory: str,
    seq_length: int,
    for_hugging_face: bool = False,
    normalized: bool = False,
    components: PrincipalComponents | None = None,
) -> None:
    """Writes README.md.

    Args:
        opened: the exported encoder.
        directory: the folder to write to.
        seq_length: the longest sentence in tokens.
        for_hugging_face: whether to add the header and the example for Hugging Face's
            hub.
        normalized: whether the exported vectors have length 1.
        components: those of the signatures for PCR, if the export has them.
    """
    text = render(opened, seq_length, for_hugging_face, normalized, components)
    with tf.io.gfile.GFile(os.path.join(directory, FILE_NAME), "w") as file:
        file.write(text)


def render(
    opened: OpenedWeights,
    seq_length: int,
    for_hugging_face: bool,
    normalized: bool,
    components: PrincipalComponents | None = None,
) -> str:
    """Returns the text of the card; arguments as in `write`."""
    starts = run_records.read_starts(opened.run) if opened.run else []
    config = run_records.settings_at(opened.config, starts, opened.step)
    opened = dataclasses.replace(opened, config=config)
    model = opened.config.model
    tongues = _languages(opened)
    lines = _header(tongues) if for_hugging_face else []
    lines += [
        f"# A sentence encoder of {model.num_layers} layers and {model.vector_width} "
        "dimensions",
        "",
        "Made with cmlm: universal sentence encoders, trained on your own text.",
        "",
        _hugging_face(model) if for_hugging_face else _TF_HUB,
        "| | |",
        "|---|---|",
    ]
    vectors = "scaled to length 1" if normalized else "not normalised"
    if model.dimensions:
        vectors += f", then cut from {model.hidden_size} dimensions"
    described = pooling.POOLINGS[model.pooling].description
    if model.sentence_vector == "projected":
        described += f", then the mean of {model.num_views} projections"
    fitted = {
        name: counted(layer["sentences"], "sentence")
        for name, layer in fingerprints.describe_fitted(opened).items()
    }
    if "sif" in fitted:
        described += f", weighted by SIF of {fitted['sif']}"
    if "whitening" in fitted:
        vectors += f", whitened by {fitted['whitening']}"
    for name, value in (
        ("vector", f"float32 [{model.vector_width}], {vectors}"),
        ("pooling", described),
        ("longest sentence", f"{seq_length} tokens; longer ones are cut"),
        *_prompts(opened),
        *_pcr(components),
        ("layers", f"{model.num_layers}, {model.num_attention_heads} heads"),
        (
            "vocabulary",
            f"{model.vocab_size:,} tokens of {opened.tokenizer.title}, "
            f"{opened.tokenizer.rules}",
        ),
        ("languages", ", ".join(tongues) or "not stated"),
        ("weights", _origin(opened)),
    ):
        lines.append(f"| {name} | {value} |")
    lines += ["", "## Training", "", *_training(opened, starts), ""]
    lines += _versions(opened.step, starts)
    return "\n".join(lines) + "\n"


def _header(tongues: list[str]) -> list[str]:
    """The YAML header that the hub reads, without unknown values."""
    # The hub knows languages without their script or region: `zh` of `zh-Hant`.
    codes = dict.fromkeys(re.split("[-_]", tongue)[0].lower() for tongue in tongues)
    # In quotes, because YAML reads `no` as false.
    named = [f'- "{code}"' for code in codes if re.fullmatch(r"[a-z]{2,3}", code)]
    return [
        "---",
        "library_name: sentence-transformers",
        "pipeline_tag: sentence-similarity",
        *(["language:", *named] if named else []),
        "tags:",
        "- sentence-transformers",
        "- feature-extraction",
        "- sentence-similarity",
        "---",
        "",
    ]


def _origin(opened: OpenedWeights) -> str:
    name = os.path.basename(opened.checkpoint)
    path = opened.config.init_checkpoint.rstrip("/")
    if os.path.basename(path) == export_layout.ENCODER:
        # The name of the export says more.
        path = os.path.dirname(path) or path
    start = os.path.basename(path)
    if not opened.run:
        return f"from {start}, not trained further"
    return f"{name}, started from {start}" if start else name


def _languages(opened: OpenedWeights) -> list[str]:
    """The distinct languages that the configuration names."""
    found: dict[str, None] = {}
    if not opened.run:
        return []
    for objective in opened.config.task.enabled().values():
        data = objective.train_data
        if data.input_path == builtin.PYTHON_DOCS:
            named = ["en"]
        else:
            named = [key for key in languages.split(data.input_path) if key]
            if isinstance(data, bitext.BitextDataConfig):
                # `en-de` is a pair there; `pt-br` of a text is one language.
                named = [
                    side for key in named for side in language_names.sides(key) if side
                ]
        if not named and getattr(data, "raw_layout", ""):
            named = [data.raw_language]
        found.update(dict.fromkeys(named))
    return list(found)


def _prompts(opened: OpenedWeights) -> list[tuple[str, str]]:
    """The rows of the prompts: names and values."""
    found = []
    if opened.tokenizer.prompt:
        found.append(("prompt", f"{opened.tokenizer.prompt!r} precedes every text"))
    for name, text in opened.prompts.items():
        # A line break would end the row.
        found.append((f"prompt `{' '.join(name.split())}`", repr(text)))
    return [tuple(cell.replace("|", "\\|") for cell in row) for row in found]


def _pcr(components: PrincipalComponents | None) -> list[tuple[str, str]]:
    """The row of the signatures for PCR."""
    if components is None:
        return []
    names = [f"`{name}`" for name, row in SIGNATURES.items() if row.with_components]
    count = counted(components.table.shape[1], "component")
    fitted = f"{count} per language: {', '.join(components.languages)}"
    return [("PCR", f"signatures {' and '.join(names)}; {fitted}")]


def _training(opened: OpenedWeights, starts: list[dict]) -> list[str]:
    """Objectives, data, changes between the starts, and the last validation."""
    if not opened.run:
        return ["Not trained with cmlm; see the origin of the weights above."]
    config, step = opened.config, opened.step
    optimizer = config.trainer.optimizer
    lines = [
        f"{step:,} of {config.trainer.train_steps:,} steps, {optimizer.type} "
        f"{optimizer.learning_rate:g}, seed {config.trainer.seed}.",
        "",
        "| objective | weight | steps | examples a step | tokens | data |",
        "|---|---|---|---|---|---|",
    ]
    for name, objective in config.task.enabled().items():
        data = objective.train_data
        end = objective.end_step
        if end is None:
            end = config.trainer.train_steps
        lines.append(
            f"| {name} | {objective.weight:g} | {objective.start_step:,} to {end:,} "
            f"| {data.global_batch_size:,} | {data.seq_length} | `{data.input_path}` |"
        )
    lines.append("")
    for name, objective in config.task.enabled().items():
        if isinstance(objective, DistillConfig):
            lines += [f"The teacher of {name} is `{objective.teacher}`.", ""]
    earlier = [row for row in starts if row["step"] < step]
    lines += [*_changed(earlier), *_starts(earlier)]
    metrics = last_validation(opened.run, step)
    if not metrics:
        return [*lines, "The run recorded no validation up to this step."]
    lines += [
        f"Validation at step {metrics.pop('step'):,}:",
        "",
        "| metric | value |",
        "|---|---|",
        *(f"| {name} | {value:.4f} |" for name, value in metrics.items()),
    ]
    return lines


def _changed(rows: list[dict]) -> list[str]:
    """The settings that changed between the starts."""
    lines = []
    for row in (row for row in rows if row["step"]):
        for name, values in row["changed"].items():
            before, now = (f"{value}".replace("|", "\\|") for value in values)
            lines.append(f"| {row['step']:,} | `{name}` | {before} | {now} |")
    if not lines:
        return []
    return [
        "Settings changed when the run resumed. The lines above state the last values:",
        "",
        "| from step | setting | before | after |",
        "|---|---|---|---|",
        *lines,
        "",
    ]


def _starts(rows: list[dict]) -> list[str]:
    """The starts, if text or batches of the run changed between them."""
    parts = ("global_batch_size", "text")
    if all(row[part] == rows[0][part] for row in rows for part in parts):
        return []
    lines = [
        "Text or batches changed when the run resumed. This table shows all starts up "
        "to this step:",
        "",
        "| from step | objective | examples a step | files | bytes |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        for name, text in row["text"].items():
            sizes = [size for files in text.values() for _, size in files]
            lines.append(
                f"| {row['step']:,} | {name} | {row['global_batch_size'].get(name)} "
                f"| {len(sizes):,} | {sum(sizes):,} |"
            )
    return [*lines, ""]


def _versions(step: int, starts: list[dict]) -> list[str]:
    """The versions of the packages, of each start that trained and of the export."""
    # Starts of earlier versions recorded none.
    trained = [
        row["versions"]
        for row in starts
        if row["step"] < step and isinstance(row.get("versions"), dict)
    ]
    lines = ["## Versions", "", "| package | training | export |", "|---|---|---|"]
    for name, version in versions.installed().items():
        found = dict.fromkeys(row[name] for row in trained if name in row)
        trained_with = ", ".join(found) or "not stated"
        lines.append(f"| {name} | {trained_with} | {version} |")
    return lines


def last_validation(directory: str, step: int) -> dict[str, float]:
    """Reads the last row of validation metrics at or before a step.

    Args:
        directory: the model_dir.
        step: the step of the checkpoint.

    Returns:
        `step` and the metrics without their prefix; empty without such a row.

    Raises:
        UserError: the directory no longer exists.
    """
    path = os.path.join(directory, model_dir.METRICS)
    if not tf.io.gfile.exists(path):
        if not tf.io.gfile.isdir(directory):
            raise UserError(f"{directory} no longer exists")
        return {}
    last: dict[str, float] = {}
    for row in run_records.read_metrics(path):
        values = {
            key.removeprefix("validation/"): value
            for key, value in row.items()
            if key.startswith("validation/") and isinstance(value, int | float)
        }
        if values and row["step"] <= step:
            last = {"step": row["step"], **values}
    return last
