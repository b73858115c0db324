"""The precision of an encoder's layers, and weights that are packed once."""

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import model_dirs
import numpy as np
import pytest

from cmlm import cli, errors
from cmlm.common import identity, machine, native_log, once
from cmlm.encoders import opening
from cmlm.encoders.reading import Reading

ROOT = Path(__file__).resolve().parent.parent
# Short and long, in this order and the other: packed weights stay those of the first.
TEXTS = [
    "A cat.",
    "",
    "The dog ran far away, far away from the mat! " * 3,
    "A cat sat.",
]
BFLOAT16 = Reading(precision="bfloat16")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of one shape with different weights; the second trained in bfloat16."""
    directory = tmp_path_factory.mktemp("precision")
    first = model_dirs.write(directory / "a", seed=1)
    dtype = {"runtime.mixed_precision_dtype": "bfloat16"}
    return first, model_dirs.write(directory / "b", seed=2, **dtype)


def test_auto_takes_the_precision_of_the_run_or_the_export(runs, toy_export):
    float32, bfloat16 = runs
    expected = {
        float32: "float32",
        bfloat16: "bfloat16",
        f"untrained:{bfloat16}": "bfloat16",
        f"bow:{bfloat16}": "float32",
        toy_export.path: "float32",
        "http://localhost:8501/v1/models/cmlm": "float32",
        "/no/such/model": "float32",
    }
    for model, precision in expected.items():
        assert opening.precision(model) == precision, model
        if os.path.isdir(model.removeprefix("bow:").removeprefix("untrained:")):
            assert opening.open_encoder(model).info["precision"] == precision, model
    assert opening.precision(float32, BFLOAT16) == "bfloat16"
    assert opening.precision(bfloat16, Reading(precision="float32")) == "float32"


def test_a_run_may_have_the_name_of_its_best_checkpoint(tmp_path):
    dtype = {"runtime.mixed_precision_dtype": "bfloat16"}
    directory = model_dirs.write(tmp_path / "best", **dtype)
    for model in (directory, f"untrained:{directory}"):
        assert opening.precision(model) == "bfloat16"
    assert opening.precision(f"{directory}/ckpt-3") == "float32"


def test_bfloat16_is_near_float32_and_has_its_own_cache(runs):
    plain = opening.open_encoder(runs[0])
    lower = opening.open_encoder(runs[0], BFLOAT16)
    exact, rounded = plain.encode(TEXTS, True), lower.encode(TEXTS, True)
    assert not np.array_equal(exact, rounded)
    assert (exact * rounded).sum(axis=1).min() > 0.999
    shorter = opening.open_encoder(runs[0], Reading(seq_length=5))
    other = opening.open_encoder(runs[0], Reading(pooling="max"))
    for name in (identity.of, identity.revision):
        first, *rest = (name(each) for each in (plain, lower, shorter, other))
        assert first == name(opening.open_encoder(runs[0])) and first not in rest


def test_bfloat16_without_its_instructions_gives_a_warning(runs, monkeypatch, caplog):
    for flags, warns in (({"avx2"}, True), ({"avx2", "avx512_bf16"}, False)):
        once.warn.cache_clear()
        caplog.clear()
        monkeypatch.setattr(machine, "cpu_flags", lambda found=flags: found)
        for directory in runs:
            opening.open_encoder(directory)
        said = [text for text in caplog.messages if "no instructions" in text]
        assert [text.partition(" ")[0] for text in said] == [runs[1]] * warns


@pytest.mark.parametrize(
    ("flags", "given", "wanted"),
    [
        ({"avx", "avx2"}, {}, "1"),
        ({"avx", "avx2"}, {"TF_ENABLE_ONEDNN_OPTS": "0"}, "0"),
        ({"avx"}, {}, None),
    ],
)
def test_onednn_is_asked_for_unless_the_user_has_decided(
    flags, given, wanted, monkeypatch
):
    monkeypatch.setattr(os, "environ", dict(given))
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    native_log.prepare()
    assert os.environ.get("TF_ENABLE_ONEDNN_OPTS") == wanted
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "3"


def test_unknown_precisions_and_fixed_ones_are_refused(runs, toy_export):
    with pytest.raises(errors.UserError, match="--precision.*float16.*bfloat16"):
        opening.open_encoder(runs[0], Reading(precision="float16"))
    with pytest.raises(errors.UserError, match="--precision is 'bfloat16'.*'float32'"):
        opening.open_encoder(toy_export.path, BFLOAT16)


def test_a_command_called_as_a_function_leaves_the_environment(
    runs, tmp_path, monkeypatch
):
    """The caller may train next; only a process that never trains packs weights."""
    # Here, as the flags of two commands cannot be defined in the tests' collection.
    from cmlm import encode

    monkeypatch.delenv(cli.FROZEN_WEIGHTS, raising=False)
    text, out = tmp_path / "text.txt", tmp_path / "out.npy"
    text.write_text("\n".join(TEXTS) + "\n")
    for name, value in (("model", runs[0]), ("input", str(text)), ("output", str(out))):
        monkeypatch.setattr(encode.FLAGS[name], "value", value)
    monkeypatch.setattr(encode.FLAGS["precision"], "value", "bfloat16")
    if not encode.FLAGS.is_parsed():
        encode.FLAGS.mark_as_parsed()
    encode.main([])
    assert cli.FROZEN_WEIGHTS not in os.environ
    expected = opening.open_encoder(runs[0], BFLOAT16).encode(TEXTS)
    model_dirs.assert_same(np.load(out), expected, 1e-6)


def test_commands_that_train_never_pack_weights():
    found = {}
    for path in [*ROOT.glob("cmlm/*.py"), *ROOT.glob("export/*.py")]:
        call = re.search(r"^    cli\.run\(main(.*)\)$", path.read_text(), re.M)
        if call:
            found[path.stem] = "never_trains=True" in call[1]
    assert {name for name, never in found.items() if never} == {
        "encode",
        "evaluate",
        "mine",
        "pcr",
    }
    assert {"train", "finetune", "tfhub"} <= set(found)


def test_commands_that_train_ignore_the_variable(monkeypatch, caplog):
    """They do so before anything else, so before TensorFlow is imported."""
    for command in ("train", "finetune"):
        source = (ROOT / "cmlm" / f"{command}.py").read_text()
        assert re.search(r"^def main.*:\n    cli\.tune_for_training\(\)$", source, re.M)
    for value, warnings in (("0", 0), ("1", 1)):
        monkeypatch.setenv(cli.FROZEN_WEIGHTS, value)
        caplog.clear()
        cli.tune_for_training()
        assert cli.FROZEN_WEIGHTS not in os.environ
        assert len(caplog.messages) == warnings
    assert "is ignored: this command trains" in caplog.text


def test_commands_that_train_may_open_many_files():
    """Each language of a text has files of its own."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1] // 2, before[1]))
        cli.tune_for_training()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Opens both runs, encodes in turn, and says whether weights were packed: a packed
# weight does not notice that its variable changes.
PROGRAM = """
import os, sys
import numpy as np
from cmlm import cli

def main(_):
    from cmlm.encoders import opening
    from cmlm.encoders.reading import Reading
    first, second, out, *_ = os.environ["ARGUMENTS"].split(":")
    texts = os.environ["TEXTS"].split("|")
    cli.tune_for_inference(["bfloat16"])
    encoders = [opening.open_encoder(p, Reading(precision="bfloat16"))
                for p in (first, second)]
    turns = [encoder.encode(texts[:n]) for n in (1, 4) for encoder in encoders]
    print(os.environ.get(cli.FROZEN_WEIGHTS))
    np.savez(out, *turns)

cli.run(main, never_trains=True)
"""


@pytest.mark.usefixtures("optimized_graphs")  # which the process has, too
@pytest.mark.large  # a process of its own: TensorFlow reads the variable once
@pytest.mark.skipif(
    "avx512bw" not in machine.cpu_flags(),
    reason="without AVX-512, oneDNN has no layers in bfloat16, so it packs no weights",
)
def test_packed_weights_of_two_models_stay_apart(runs, tmp_path):
    out = str(tmp_path / "turns.npz")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "ARGUMENTS": ":".join((*runs, out)),
            "TEXTS": "|".join(TEXTS),
        },
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"
    turns = list(np.load(out).values())
    encoders = [opening.open_encoder(run, BFLOAT16) for run in runs]
    expected = [encoder.encode(TEXTS[:n]) for n in (1, 4) for encoder in encoders]
    assert np.abs(expected[2] - expected[3]).max() > 0.1
    for actual, plain in zip(turns, expected, strict=True):
        model_dirs.assert_same(actual, plain, 1e-5)
