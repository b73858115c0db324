"""Shorter vectors in exports, servers, folders and runs; `test_reading.py` has flags.

The export has five of 16 components, and PCR fitted with them.
"""

import json
from pathlib import Path

import model_dirs
import pytest
import servers
import tensorflow as tf
import toys

import cmlm
from cmlm.common import arrays, identity
from cmlm.encoders import locating, opening
from cmlm.encoders.reading import Reading
from cmlm.encoders.signatures import SIGNATURES
from cmlm.errors import UserError
from cmlm.modeling.foreign import modules
from cmlm.training import warm_start
from export import (
    dev_server,
    former_export,
    huggingface_folder,
    model_card,
    saved_models,
)

TEXTS, DIM = model_dirs.SENTENCES, 5


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("short")
    return model_dirs.export(folder, **{"model.dimensions": DIM})


@pytest.fixture(scope="module")
def whole(exported):
    """The vectors with all components, float32 [texts, 16]."""
    return cmlm.load(exported.source, dimensions=0).encode(TEXTS)


def test_every_output_of_an_export_is_short(exported, whole):
    difference = saved_models.Export(
        exported.trained, exported.path, model_dirs.SEQ_LENGTH, exported.components
    ).compare()
    assert difference <= saved_models.TOLERANCE
    served = tf.saved_model.load(locating.find_export(exported.path)).signatures
    for name, row in SIGNATURES.items():
        assert served[name].structured_outputs[row.output].shape[-1] == DIM, name
    found = served["normalized"](text=tf.constant(TEXTS))["normalized"]
    model_dirs.assert_same(found, arrays.unit_length(whole[:, :DIM]), 1e-5)
    tokens = tf.saved_model.load(f"{exported.path}/preprocessor")(TEXTS)
    outputs = tf.saved_model.load(f"{exported.path}/encoder")(tokens)
    for name in ("default", "pooled_output"):
        model_dirs.assert_same(outputs[name], whole[:, :DIM], 1e-5)
    assert outputs["sequence_output"].shape[-1] == 16


def test_an_export_describes_its_dimensions(exported):
    about = json.loads(Path(exported.path, "export.json").read_text())
    assert (about["dim"], about["dimensions"]) == (DIM, DIM)
    run, export = map(opening.open_encoder, (exported.source, exported.path))
    assert identity.of(run) == identity.of(export)
    card = model_card.render(exported.trained, 37, False, True)
    assert "# A sentence encoder of 2 layers and 5 dimensions" in card
    assert "| vector | float32 [5], scaled to length 1, then cut from 16 dim" in card
    assert "PCR" not in card
    card = model_card.render(exported.trained, 37, False, True, exported.components)
    fitted = "2 components per language: de, zh-hant"
    assert f"| PCR | signatures `pcr` and `pcr_tensors`; {fitted} |\n" in card
    former = f"{exported.path}/serving"
    assert former_export.changes(former, {"dimensions": 0}, exported.components) == [
        "dimensions 5, now 0 (--dimensions)"
    ]


def test_the_dimensions_of_an_export_and_of_a_server_are_fixed(exported, whole):
    server = dev_server.Server(servers.session(locating.find_export(exported.path)))
    server.start()
    try:
        for model in (exported.path, f"{server.grpc}/v1/models/cmlm"):
            same = cmlm.load(model, dimensions=DIM)
            model_dirs.assert_same(same.encode(TEXTS), whole[:, :DIM], 1e-5)
            with pytest.raises(UserError, match="^dimensions is 3; allowed with .*: 5"):
                cmlm.load(model, dimensions=3)
    finally:
        server.stop()


@pytest.mark.parametrize("form", ["export", "folder", "normalized"])
def test_other_forms_of_the_weights_keep_the_dimensions(
    form, exported, whole, tmp_path
):
    """Also a run that starts from them, which trains all components."""
    source = f"{exported.path}/encoder"
    if form != "export":
        source, trained = str(tmp_path), exported.trained
        normalize = form == "normalized"
        huggingface_folder.write(trained, source, model_dirs.SEQ_LENGTH, normalize)
        settings = json.loads((tmp_path / modules.PROMPTS).read_text())
        assert settings == {"truncate_dim": DIM}
    opened = opening.open_weights(source)
    encoder = opening.from_weights(opened)
    model_dirs.assert_same(encoder.encode(TEXTS), whole[:, :DIM], 1e-5)
    own = identity.of(opening.open_encoder(exported.source))
    assert identity.of(encoder)["fingerprint"] == own["fingerprint"]
    all_of_them = opening.open_encoder(source, Reading(dimensions=0))
    model_dirs.assert_same(all_of_them.encode(TEXTS), whole, 1e-5)
    config = toys.run_config("corpus.txt")
    config.init_checkpoint = source
    warm_start.adopt_for_run(config, (), None, None)
    assert config.model.dimensions == DIM
    config.model.dimensions = 3
    warm_start.adopt_for_run(config, {"model.dimensions"}, None, None)
    assert config.model.dimensions == 3


def test_a_run_keeps_the_dimensions_of_the_run_it_starts_from(exported):
    config = toys.run_config("corpus.txt")
    config.init_checkpoint = exported.source
    warm_start.adopt_for_run(config, (), None, None)
    assert config.model.dimensions == DIM


def test_dimensions_above_the_width_are_named():
    with pytest.raises(UserError, match=r"model.dimensions is 17; allowed: 1 to 16, "):
        toys.encoder_config(dimensions=17)
    assert toys.encoder_config(dimensions=16).dimensions == 0


def test_evaluations_of_a_training_read_short_vectors(exported):
    """The encoder of `trainer.evals`, beside objectives that see all components."""
    trained = exported.trained
    model = toys.model(dimensions=DIM)
    encoder = opening.live(model, trained.tokenizer, 20)
    tokens = trained.tokenizer.encode(tf.constant(TEXTS), 20)
    inputs = {
        "input_word_ids": tokens.to_tensor(),
        "input_mask": tf.ones_like(tokens).to_tensor(),
    }
    every = model.encoder.sentence_vector(inputs)
    assert every.shape == (len(TEXTS), 16)
    model_dirs.assert_same(encoder.encode(TEXTS), every[:, :DIM], 1e-5)
