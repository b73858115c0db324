"""A model_dir as training leaves it, made in a second, and an export of it."""

import dataclasses
import json
from pathlib import Path
from unittest import mock

import commands
import numpy as np
import oracles
import tensorflow as tf
import toys

from cmlm.common import components
from cmlm.common.moments import Moments
from cmlm.config import model_dir
from cmlm.encoders import fingerprints, opening, run_weights
from cmlm.encoders.components_file import PrincipalComponents
from cmlm.encoders.opened_weights import OpenedWeights
from cmlm.encoders.reading import Reading
from cmlm.modeling.model import SentenceModel
from cmlm.tokenization import vocabulary_file
from export import former_export, saved_models

VOCAB = [
    *vocabulary_file.SPECIAL_TOKENS,
    *"the cat sat on a mat dog ran far away ##s ##ing un ##able . , ! ? \ufffd".split(),
    *("The", "Cat"),  # found with their case only
]
SENTENCES = [
    "The cat sat on the mat.",
    "",
    "A dog ran far away, far away!",
    "dogs",
    "The cat sat on the mat.",
    "unable? " * 30,
    "\u65e5\u672c the \ufffd cat",
]
# Positions 40, views 3: what the command may be asked for ends at 37.
SEQ_LENGTH = 37
LANGUAGES = ("de", "zh-hant")
# Settings of a run of masked LM, for encoders that CMLM cannot train.
MASKED_LM = {
    "task.cmlm.weight": 0.0,
    "task.mlm.weight": 1.0,
    "task.mlm.train_data.seq_length": SEQ_LENGTH,
    "trainer.best_checkpoint_metric": "",
}


def write(
    directory: Path, step: int = 3, seed: int = 5, vocab=VOCAB, **settings
) -> str:
    """Makes a model_dir; `settings` override the configuration.

    Returns:
        Its path. Weights are seeded, biases and norms are not zeros and ones.
    """
    config = toys.run_config(
        "corpus.txt",
        **{
            "vocabulary.size": 200,
            "model.vocab_size": len(vocab),
            "task.cmlm.train_data.seq_length": SEQ_LENGTH,
            **settings,
        },
    )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / vocabulary_file.FILE_NAME).write_text("\n".join(vocab) + "\n")
    model_dir.write_config(str(directory), config)
    model = SentenceModel(config.model)
    random = np.random.default_rng(seed)
    for variable in model.encoder.variables:
        centre = 1.0 if "gamma" in variable.name else 0.0
        variable.assign(random.normal(centre, 0.3, variable.shape).astype(np.float32))
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(model=model), str(directory), max_to_keep=1
    )
    manager.save(checkpoint_number=step)
    return str(directory)


def assert_same(actual, expected, tolerance: float = 1e-6) -> None:
    """Vectors equal but for rounding, measured on the scale of the largest entry."""
    expected = np.asarray(expected)
    atol = tolerance * max(np.abs(expected).max(), 1)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=atol)


@dataclasses.dataclass
class Export:
    """What `export` made.

    Attributes:
        path: the export, moved since it was written.
        source: the model_dir.
        trained: its encoder.
        components: two for each of `LANGUAGES`.
    """

    path: str
    source: str
    trained: OpenedWeights
    components: PrincipalComponents


def export(directory: Path, **settings) -> Export:
    """Writes a model_dir of two layers, and an export of it with PCR elsewhere.

    The run is away from the first SavedModel on: an export has read it by then.
    """
    source = write(directory / "model_dir", **{"model.num_layers": 2, **settings})
    trained = run_weights.load(source)
    components = fit(trained)
    written = directory / "written"
    written.mkdir()
    away, build = directory / "away", saved_models.preprocessor.build

    def build_without_the_run(*args):
        Path(source).rename(away)
        return build(*args)

    with mock.patch.object(saved_models.preprocessor, "build", build_without_the_run):
        saved_models.Export(trained, str(written), SEQ_LENGTH, components).write()
    away.rename(source)
    moved = written.rename(directory / "moved")
    return Export(str(moved), source, trained, components)


def fit(trained: OpenedWeights) -> PrincipalComponents:
    """Components of random vectors, which are as good as any others."""
    random = np.random.default_rng(11)
    languages = {}
    for language in LANGUAGES:
        width = trained.config.model.vector_width
        moments = Moments(width)
        moments.add(random.normal(0.5, 1, [50, width]))
        languages[language] = components.fit(moments, 2)
    return PrincipalComponents(fingerprints.fingerprint(trained), languages)


def tensors(trained: OpenedWeights, texts) -> dict[str, list]:
    """The three tensors of texts, as a request of JSON has them."""
    tokens = trained.tokenizer.encode(tf.constant(texts), SEQ_LENGTH)
    ids = tokens.to_tensor().numpy()
    return {
        "input_word_ids": ids.tolist(),
        "input_mask": tf.ones_like(tokens).to_tensor().numpy().tolist(),
        "input_type_ids": np.zeros_like(ids).tolist(),
    }


def oracle_vectors(trained: OpenedWeights, texts) -> np.ndarray:
    """Vectors by numpy, from the weights: float64 [n, dim]."""
    weights = oracles.weights_by_name(trained.encoder)
    rows = []
    for text in texts:
        ids = trained.tokenizer.encode(tf.constant([text]), SEQ_LENGTH)
        ids = ids.to_tensor().numpy()
        mask = np.ones_like(ids)
        tokens = oracles.bert(weights, ids, mask, trained.config.model.num_layers)
        rows.append(oracles.pool(tokens, mask, "mean")[0])
    return np.array(rows)


def export_fitted(
    source: str, texts: list[str], folder: Path, flag: str
) -> tuple[Path, tuple[str, str]]:
    """Exports a run with a layer that two files of text determine.

    Args:
        source: the run.
        texts: the sentences; blank lines come between those of the first file.
        folder: gets the files and the export.
        flag: the flag that adds the layer, without --.

    Returns:
        The export, and the flags of the command for the run and the layer.
    """
    (folder / "first.txt").write_text("\n\n".join(texts[:20]) + "\n")
    (folder / "second.txt").write_text("\n".join(texts[20:]) + "\n")
    flags = f"--model_dir={source}", f"--{flag}={folder}/*.txt"
    done = commands.run("export.tfhub", *flags, f"--export_dir={folder}/out")
    assert done.returncode == 0, done.stderr
    assert f"{flag}: {len(texts)} sentences of 2 files" in done.stderr
    return folder / "out", flags


def assert_fitted_encoder(export: Path, texts, vectors, layer: str, atol: float):
    """OUT/preprocessor and OUT/encoder give the vectors; training leaves a layer alone.

    Args:
        export: the export.
        texts: the sentences.
        vectors: those of OUT/serving, float32 [n, dim].
        layer: a part of the names of the layer's variables.
        atol: the largest difference.
    """
    preprocessor = tf.saved_model.load(str(export / "preprocessor"))
    saved = tf.saved_model.load(str(export / "encoder"))
    found = saved(preprocessor(tf.constant(texts)))["default"]
    np.testing.assert_allclose(found, vectors, atol=atol)
    trained = {variable.name for variable in saved.trainable_variables}
    assert trained and not any(layer in name for name in trained)


def assert_reread(export: Path, flag: str, texts: list[str]):
    """The weights of an export come with a layer that text determined.

    Args:
        export: the export.
        flag: the flag that added the layer, without --.
        texts: the sentences.
    """
    source = str(export / "encoder")
    opened = opening.open_weights(source)
    assert list(opened.encoder.fitted) == [flag]
    described = json.loads((export / "export.json").read_text())
    assert fingerprints.fingerprint(opened) == described["fingerprint"]
    expected = opening.open_encoder(str(export)).encode(texts)
    found = opening.from_weights(opened).encode(texts)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    folder = export.parent / "folder"
    done = commands.run("export.huggingface", f"--from={source}", f"--output={folder}")
    assert done.returncode == 0, done.stderr
    found = opening.open_encoder(str(folder))
    assert found.info["fingerprint"] == described["fingerprint"]
    np.testing.assert_allclose(found.encode(texts), expected, atol=1e-4)


def assert_left_out(export: Path, source: str, texts: list[str], reading: Reading):
    """The weights of an export give the vectors of its run if a reading is another.

    Args:
        export: the export.
        source: the run, without the layer.
        texts: the sentences.
        reading: the reading that the layer does not belong to.
    """
    found, expected = (
        opening.open_encoder(each, reading).encode(texts)
        for each in (str(export / "encoder"), source)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)


def assert_fitted_description(
    export: Path, source: str, flag: str, count: int, said: str
):
    """An export describes a layer that text determined, and its fingerprint has it.

    Args:
        export: the export.
        source: the run, without the layer.
        flag: the flag that added the layer, without --.
        count: the number of sentences.
        said: the words of the model card.
    """
    described = json.loads((export / "export.json").read_text())
    assert described[flag] == {"sentences": count}
    plain = opening.open_encoder(source).info
    assert flag not in plain
    assert described["fingerprint"] != plain["fingerprint"]
    assert said in (export / "README.md").read_text()
    former = str(export / "serving")
    assert former_export.changes(former, {flag: None}, None) == [
        f"{flag} by {count} sentences, now none (--{flag})"
    ]
    assert not former_export.changes(former, {flag: {"sentences": count}}, None)
