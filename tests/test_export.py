"""The export command: what it writes, what it says, and what it refuses."""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import commands
import model_dirs
import numpy as np
import pytest
import tensorflow as tf
import test_reading

from cmlm.common import atomic
from cmlm.config import model_dir
from cmlm.encoders import components_file, fingerprints, locating, opening, run_weights
from cmlm.encoders.reading import Reading
from cmlm.errors import UserError
from cmlm.modeling import export_layout
from cmlm.tokenization import vocabulary_file
from cmlm.tokenization.rules import Rules
from export import former_export, model_card, saved_models, server_files
from export import source as source_flags

ROOT = Path(__file__).resolve().parent.parent


def export_command(*flags, cwd=None):
    return commands.run("export.tfhub", *flags, cwd=cwd)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return model_dirs.write(tmp_path_factory.mktemp("source") / "run")


def assert_refused(result, said, directory, left):
    """One line on stderr after the progress, and nothing half-written."""
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr, result.stderr
    errors = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert errors == result.stderr.splitlines()[-1:]
    assert said in errors[0]
    assert sorted(path.name for path in directory.iterdir()) == left


@pytest.mark.large
def test_what_differs_from_the_checkpoint_is_not_exported(toy_export):
    changed = run_weights.load(toy_export.source)
    gamma = next(v for v in changed.encoder.variables if "gamma" in v.name)
    gamma.assign_add(tf.fill(gamma.shape, 1e-3))
    with pytest.raises(UserError, match="nothing was exported"):
        saved_models.Export(changed, toy_export.path, model_dirs.SEQ_LENGTH).compare()


@pytest.mark.large
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_not_exported(source, value):
    broken = run_weights.load(source)
    table = broken.encoder.embedding_table
    table[5].assign(tf.fill([table.shape[1]], value))
    with pytest.raises(UserError, match="run/ckpt-3: .*embeddings.* is not finite"):
        source_flags.check_finite(broken)


def test_vectors_that_are_not_finite_are_not_exported(toy_export):
    broken = run_weights.load(toy_export.source)
    gamma = next(v for v in broken.encoder.variables if "gamma" in v.name)
    gamma.assign(tf.fill(gamma.shape, float("nan")))
    said = f"{broken.checkpoint}: the vector of '' is not finite"
    with pytest.raises(UserError, match=said):
        saved_models.Export(broken, toy_export.path, model_dirs.SEQ_LENGTH).compare()


@pytest.mark.large
def test_components_that_differ_are_not_exported(toy_export):
    other = model_dirs.fit(toy_export.trained)
    for found in other.languages.values():
        found.components[:] = found.components[::-1] @ tf.eye(16).numpy()[::-1]
    with pytest.raises(UserError, match="pcr de differ from"):
        saved_models.Export(
            toy_export.trained, toy_export.path, model_dirs.SEQ_LENGTH, other
        ).compare()


def test_export_says_what_it_is(toy_export):
    with open(os.path.join(toy_export.path, "export.json")) as file:
        said = json.load(file)
    assert said["checkpoint"] == os.path.join(toy_export.source, "ckpt-3")
    assert (said["step"], said["dim"], said["pooling"]) == (3, 16, "mean")
    assert said["seq_length"] == model_dirs.SEQ_LENGTH
    assert said["versions"]["tensorflow"] == tf.__version__
    assert said["config"]["model"]["num_layers"] == 2
    assert said["pcr"]["languages"] == list(model_dirs.LANGUAGES)
    assert said["pcr"]["components"] == 2
    beside = Path(toy_export.path, "serving", "1", export_layout.PROVENANCE).read_text()
    assert json.loads(beside) == said


@pytest.mark.large
def test_a_fingerprint_follows_weights_and_vocabulary(toy_export):
    fingerprint = fingerprints.fingerprint(toy_export.trained)
    assert opening.open_encoder(toy_export.source).info["fingerprint"] == fingerprint
    assert opening.open_encoder(toy_export.path).info["fingerprint"] == fingerprint
    bag = opening.open_encoder(f"bow:{toy_export.source}").info["fingerprint"]
    found = {fingerprint, bag}
    trained = run_weights.load(toy_export.source, "untrained")
    found.add(fingerprints.fingerprint(trained))
    gamma = next(v for v in trained.encoder.variables if "gamma" in v.name)
    gamma[0].assign(gamma[0] + 1e-3)
    found.add(fingerprints.fingerprint(trained))
    trained.tokenizer.vocab = trained.tokenizer.vocab[::-1]
    found.add(fingerprints.fingerprint(trained))
    other = [Rules(max_word_bytes=100), Rules(max_word_characters=100)]
    for rules in (Rules(False), Rules(True, False), Rules(dotless_i=True), *other):
        trained.tokenizer.rules = rules
        found.add(fingerprints.fingerprint(trained))
    # With the same weights, other vectors.
    trained.config.model.layer_norm_epsilon = 1e-3
    found.add(fingerprints.fingerprint(trained))
    trained.config.model.num_attention_heads = 1
    found.add(fingerprints.fingerprint(trained))
    assert len(found) == 12


@pytest.mark.parametrize(
    "place, said",
    [
        (
            "/proc",
            "--export_dir is /proc, a mount point, which cannot be renamed; allowed: a "
            "folder",
        ),
        (
            ".",
            "--export_dir is ., the working folder, which cannot be renamed; allowed: "
            "a folder in",
        ),
        ("a[1]", r"--export_dir is a\[1\]; allowed: a path without \[ and "),
    ],
)
def test_a_folder_that_cannot_hold_an_export_is_refused_first(tmp_path, place, said):
    (tmp_path / "run").mkdir()
    flags = ("--model_dir=/nowhere", f"--export_dir={place}", "--overwrite")
    refused = export_command(*flags, cwd=tmp_path / "run")
    assert refused.returncode == 1 and re.search(said, refused.stderr), refused.stderr
    assert refused.stderr.count("\n") == 1


def test_command_replaces_an_export_only_when_told_to(tmp_path):
    source = model_dirs.write(tmp_path / "run")
    test_reading.with_projection(source)
    folder = tmp_path / "exports"
    out = folder / "out"
    out.mkdir(parents=True)
    (out / "old").write_text("old")
    batching = out / "serving" / "batching_parameters.txt"
    batching.parent.mkdir()
    batching.write_text("num_batch_threads { value: 16 }\n")
    flags = [f"--model_dir={source}", f"--export_dir={out}"]
    refused = export_command(*flags)
    assert_refused(refused, "--overwrite", folder, ["out"])
    assert str(out) in refused.stderr
    assert sorted(path.name for path in out.iterdir()) == ["old", "serving"]

    flags += ["--pooling=max", "--sentence_vector=projected", "--seq_length=11"]
    done = export_command(*flags, "--precision=bfloat16", "--version=2", "--overwrite")
    assert done.returncode == 0, done.stderr
    assert "cut at 11 tokens; trained at 37 tokens" in done.stderr
    assert "largest difference of the exported vectors from the orig" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == [
        *("README.md", "checksums.json", "encoder", "export.json"),
        *("preprocessor", "serving"),
    ]
    assert sorted(path.name for path in (out / "serving").iterdir()) == [
        *("2", "batching_parameters.txt", "models.config")
    ]
    assert [path.name for path in folder.iterdir()] == ["out"], "leftovers"
    # A folder of exports, or of a run, holds more than one export.
    other = model_dirs.write(tmp_path / "other")
    for command, flag in (
        ("export.tfhub", "export_dir"),
        ("export.huggingface", "output"),
    ):
        for place, words in ((folder, f"{out} is an encoder"), (other, "of a run;")):
            given = (f"--model_dir={source}", f"--{flag}={place}", "--overwrite")
            refused = commands.run(command, *given)
            assert_refused(refused, words, folder, ["out"])
    assert model_dir.is_model_dir(other)
    # An operator changed it.
    assert batching.read_text() == "num_batch_threads { value: 16 }\n"
    exported = opening.open_encoder(str(out))
    assert exported.info["precision"] == "bfloat16"
    read = opening.open_encoder(source, Reading("max", "projected", 11))
    texts = test_reading.TEXTS
    # Of bfloat16; the command itself compares in its own precision.
    model_dirs.assert_same(exported.encode(texts), read.encode(texts), 0.02)


@pytest.mark.parametrize("description", ["PROVENANCE", "TUNED_TASK"])
@pytest.mark.parametrize(
    "command", ["export.tfhub --export_dir", "export.huggingface --output"]
)
def test_a_servers_folder_of_versions_is_not_replaced(tmp_path, command, description):
    served = tmp_path / "served"
    kept = served / "1" / getattr(export_layout, description)
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    (served / server_files.MODELS_CONFIG).touch()
    module, flag = command.split()
    given = ("--model_dir=/nowhere", f"{flag}={served}")
    said = f"{flag} is {served}, and {served}/1 is for model servers; allowed: another"
    for more in ([], ["--overwrite"]):
        refused = commands.run(module, *given, *more)
        assert_refused(refused, said, served, ["1", server_files.MODELS_CONFIG])
    assert kept.exists()
    with pytest.raises(UserError, match=f"{served} is for model servers"):
        source_flags.refuse_others(flag, str(tmp_path))
    # An export holds one version.
    serving = served.rename(tmp_path / "serving")
    source_flags.refuse_others(flag, str(tmp_path))
    shutil.copytree(serving / "1", serving / "2")
    with pytest.raises(UserError, match=f"{serving} is for model servers"):
        source_flags.refuse_others(flag, str(tmp_path))


def test_the_modules_of_one_encoder_are_no_other_encoders(tmp_path):
    for name in ("modules.json", "2_Dense/model.safetensors", "0_Transformer/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "0_Transformer" / "model.safetensors").touch()
    source_flags.refuse_others("output", str(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "modules.json").touch()
    with pytest.raises(UserError, match="other is an encoder; allowed: a folder with"):
        source_flags.refuse_others("output", str(tmp_path))
    # A folder of several encoders.
    (tmp_path / "modules.json").unlink()
    shutil.rmtree(tmp_path / "other")
    with pytest.raises(UserError, match="(Dense|Transformer) is an encoder; allowed"):
        source_flags.refuse_others("output", str(tmp_path))


@pytest.mark.large
def test_an_export_does_not_need_its_run_once_it_has_begun(
    toy_export, source, tmp_path
):
    # Its run was away.
    written = Path(toy_export.path, "encoder", "assets", vocabulary_file.FILE_NAME)
    assert written.read_text().splitlines() == model_dirs.VOCAB
    # The card reads metrics and objectives before.
    run = tmp_path / "run"
    trained = run_weights.load(shutil.copytree(source, str(run)))
    model_card.write(trained, str(tmp_path), model_dirs.SEQ_LENGTH)
    assert "3 of 20 steps" in (tmp_path / model_card.FILE_NAME).read_text()
    shutil.rmtree(run)
    with pytest.raises(UserError, match="run no longer exists"):
        model_card.write(trained, str(tmp_path), model_dirs.SEQ_LENGTH)


@pytest.mark.large
def test_a_version_of_another_number_is_served_beside_the_first(toy_export, tmp_path):
    """`test_command_replaces_an_export_only_when_told_to` writes such a version."""
    first = Path(toy_export.path, "serving", "1")
    shutil.copytree(first, tmp_path / "second" / "serving" / "2")
    shutil.copytree(first.parent, tmp_path / "serving")
    shutil.copytree(first, tmp_path / "serving" / "2")
    assert locating.find_export(str(tmp_path)) == f"{tmp_path}/serving/2"
    serving = f"{tmp_path}/serving"
    with pytest.raises(UserError, match="--version is 3; .*/serving holds 1, 2, and"):
        former_export.refuse_other_versions(serving, 3)
    former_export.refuse_other_versions(f"{tmp_path}/second/serving", 2)
    (tmp_path / "serving" / "1" / "saved_model.pb").write_bytes(b"")
    opened = opening.open_encoder(str(tmp_path))
    vectors = opening.open_encoder(toy_export.source).encode(["a"])
    model_dirs.assert_same(opened.encode(["a"]), vectors)


def test_what_clients_would_miss_is_named(toy_export, tmp_path):
    former, length = f"{toy_export.path}/serving", model_dirs.SEQ_LENGTH
    same = {"precision": "float32", "seq_length": length, "pooling": "mean"}
    same |= {"sentence_vector": "pooled", "prompt": ""}
    fitted = toy_export.components
    assert former_export.changes(former, same, fitted) == []
    # The place of a language is its `language_index`.
    languages = {
        name: dataclasses.replace(found, components=found.components[:1])
        for name, found in reversed(fitted.languages.items())
    }
    fewer = components_file.PrincipalComponents(fitted.fingerprint, languages)
    assert former_export.changes(former, same, fewer) == [
        "PCR languages ['de', 'zh-hant'], now ['zh-hant', 'de'] (--pcr)",
        "PCR components 2, now 1 (--pcr)",
    ]
    other = {"precision": "bfloat16", "seq_length": 9, "pooling": "cls"}
    other |= {"sentence_vector": "projected", "prompt": "query: "}
    lost, *others = former_export.changes(former, other, None)
    known = r"the signatures pcr and (\w+ and )*pcr_tensors, now without \(--pcr\)"
    assert re.fullmatch(known, lost)
    assert others == [
        "precision float32, now bfloat16 (--precision)",
        f"seq_length {length}, now 9 (--seq_length)",
        "pooling mean, now cls (--pooling)",
        "sentence_vector pooled, now projected (--sentence_vector)",
        "prompt '', now 'query: ' (--prompt)",
    ]
    assert former_export.changes(f"{tmp_path}/none", other, None) == []
    description = tmp_path / "1" / export_layout.PROVENANCE
    description.parent.mkdir(parents=True)
    description.write_text('{"prompt": "query: "}')
    assert former_export.changes(str(tmp_path), same, fitted) == [
        "prompt 'query: ', now '' (--prompt)"
    ]
    description.write_text("{")
    assert former_export.changes(str(tmp_path), other, None) == []


def test_a_mistake_is_one_line_and_leaves_nothing(source, tmp_path):
    result = export_command(
        f"--model_dir={source}", f"--export_dir={tmp_path / 'out'}", "--seq_length=38"
    )
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert_refused(result, "--seq_length is 38; allowed: 3 to 37", tmp_path, [])
    result = export_command(
        f"--model_dir={source}", f"--export_dir={tmp_path / 'out'}", "--checkpoint=bset"
    )
    said = "--checkpoint is bset; allowed: latest, best, or the path of a checkpoint"
    assert_refused(result, said, tmp_path, [])
    result = export_command(
        f"--from={source}", f"--export_dir={tmp_path / 'out'}", "--checkpoint=best"
    )
    said = "--checkpoint is best; allowed: with --model_dir, not with --from"
    assert_refused(result, said, tmp_path, [])
    out = f"--export_dir={tmp_path / 'out'}"
    for given, what in (
        ([], "not given"),
        ([f"--model_dir={source}", f"--from={source}"], "both given"),
    ):
        said = f"error: --model_dir and --from are {what}; allowed: one of them"
        assert_refused(export_command(*given, out), said, tmp_path, [])
    # A folder with a checkpoint is one, so the next mistake is named.
    result = export_command(
        *(f"--model_dir={source}", f"--checkpoint={source}", "--seq_length=38"),
        f"--export_dir={tmp_path / 'out'}",
    )
    assert_refused(result, "--seq_length is 38; allowed: 3 to 37", tmp_path, [])


# ----------------------------------------------------------------- bad input


@pytest.fixture
def old_export(tmp_path):
    """A folder with an export that must stay as it is."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").write_text("old")
    return out


def overwrite(source, out, *flags):
    return export_command(
        f"--model_dir={source}", f"--export_dir={out}", "--overwrite", *flags
    )


@pytest.mark.parametrize("name", ["/elsewhere/evil", "../evil", "ab" * 31, 7])
def test_a_fingerprint_that_could_be_a_path_is_refused(toy_export, tmp_path, name):
    copied = shutil.copytree(Path(toy_export.path, "serving", "1"), tmp_path / "1")
    path = copied / "assets.extra" / "export.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "fingerprint": name}))
    # Whoever changes the name can change the checksums too.
    (copied / export_layout.CHECKSUMS).unlink()
    with pytest.raises(UserError, match="export.json.*fingerprint.*allowed"):
        opening.open_encoder(str(copied))


@pytest.mark.large
def test_components_of_another_model_are_refused(toy_export, old_export, tmp_path):
    pcr = str(tmp_path / "pcr.npz")
    fingerprint = "ab" * 32
    other = components_file.PrincipalComponents(
        fingerprint, toy_export.components.languages
    )
    components_file.save(pcr, other)
    result = overwrite(toy_export.source, old_export, f"--pcr={pcr}")
    said = "was fitted for the fingerprint"
    assert_refused(result, said, tmp_path, ["out", "pcr.npz"])
    own = fingerprints.fingerprint(toy_export.trained)
    for part in (pcr, fingerprint[:12], own[:12]):
        assert part in result.stderr
    assert (old_export / "old").read_text() == "old"


@pytest.mark.large
def test_a_disk_that_fills_up_leaves_the_old_export(
    source, old_export, tmp_path, tmp_path_factory
):
    # Writing fails, as on a full disk.
    program = tmp_path_factory.mktemp("program") / "limited.py"
    program.write_text(
        "import resource, runpy\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "runpy.run_module('export.tfhub', run_name='__main__', alter_sys=True)\n"
    )
    result = commands.run(
        "limited",
        *(f"--model_dir={source}", f"--export_dir={old_export}", "--overwrite"),
        cwd=program.parent,
    )
    assert_refused(result, "File too large", tmp_path, ["out"])
    assert (old_export / "old").read_text() == "old"


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    out = f"{tmp_path}/file/out"
    with pytest.raises(UserError, match=f"cannot write {out}: "):
        with atomic.directory(out):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.large
def test_a_file_in_the_place_of_the_export_is_refused(source, tmp_path):
    (tmp_path / "file").write_text("")
    out = f"--export_dir={tmp_path / 'file'}"
    result = export_command(f"--model_dir={source}", out)
    said = f"{out}, a file; allowed: a directory".replace("=", " is ", 1)
    assert_refused(result, said, tmp_path, ["file"])


@pytest.mark.parametrize(
    "damage, said",
    [
        ("no checkpoint", "holds no checkpoint; allowed: a directory"),
        ("truncated", "ckpt-3 is damaged"),
        ("no index", "held checkpoints, and none of them is whole"),
        ("vocabulary", "30 entries, the encoder has 29 embedding rows"),
        ("no vocabulary", "has no vocab.txt; allowed: a model_dir with"),
        ("no configuration", "^/.*source has no params.yaml: .*; allowed: the --mod"),
    ],
)
def test_damaged_model_dirs_are_refused(source, tmp_path, damage, said):
    source = shutil.copytree(source, tmp_path / "source")
    data = source / "ckpt-3.data-00000-of-00001"
    vocabulary = source / vocabulary_file.FILE_NAME
    if damage == "no checkpoint":
        for path in (*source.glob("ckpt-3*"), source / "checkpoint"):
            path.unlink()
    elif damage == "truncated":
        data.write_bytes(data.read_bytes()[:1000])
    elif damage == "no index":
        (source / "ckpt-3.index").unlink()
    elif damage == "vocabulary":
        vocabulary.write_text(vocabulary.read_text() + "extra\n")
    elif damage == "no vocabulary":
        vocabulary.unlink()
    else:
        (source / model_dir.PARAMS).unlink()
    size = len(model_dirs.VOCAB)
    said = said.replace("30", str(size + 1)).replace("29", str(size))
    with pytest.raises(UserError, match=said) as refused:
        run_weights.load(str(source))
    assert "\n" not in str(refused.value)
