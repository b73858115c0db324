"""A remote TPU needs remote files: a run with others is refused before it writes."""

from types import SimpleNamespace

import model_dirs
import pytest
import tensorflow as tf
import toys

from cmlm.errors import UserError
from cmlm.tokenization.unigrams import Unigrams
from cmlm.training import remote_tpu

REMOTE = "gs://bucket/run"


def config_of(tpu="NAME", text="gs://bucket/a.txt"):
    config = toys.run_config(text)
    config.runtime.distribution_strategy, config.runtime.tpu = "tpu", tpu
    return config


@pytest.mark.parametrize(
    ("directory", "text", "words"),
    [
        ("runs/first", "gs://bucket/a.txt", "--model_dir is runs/first; allowed with"),
        (REMOTE, "gs://bucket/a.txt,b/*.txt", r"--train_data is b/\*.txt; allowed"),
        (REMOTE, "en=gs://bucket/a.txt,de=b.txt", "--train_data is de=b.txt; allowed"),
    ],
)
def test_a_local_path_is_named(directory, text, words):
    with pytest.raises(UserError, match=words):
        remote_tpu.refuse(config_of(text=text), directory)


def test_local_validation_data_and_runs_are_named(tmp_path):
    config = config_of()
    config.task.bitext.weight = 1.0
    config.task.bitext.train_data.input_path = "en-de=gs://bucket/a.tsv"
    config.task.bitext.validation_data = "en-de=held.tsv"
    words = "task.bitext.validation_data is en-de=held.tsv; allowed with"
    with pytest.raises(UserError, match=words):
        remote_tpu.refuse(config, REMOTE)
    config = config_of()
    config.init_checkpoint = model_dirs.write(tmp_path / "run")
    with pytest.raises(UserError, match="--init_checkpoint is .*run; allowed with"):
        remote_tpu.refuse(config, REMOTE)


@pytest.mark.parametrize("text", ["gs://bucket/*.txt", "builtin:python-docs", ""])
def test_remote_paths_pass(text):
    remote_tpu.refuse(config_of(text=text), REMOTE)


def test_a_tpu_of_this_machine_reads_local_files():
    remote_tpu.refuse(config_of("local", "a.txt"), "runs/first")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("distill", "task.distill.weight is 1.0; allowed: 0 with --tpu=NAME, a remote"),
        ("misad", "task.misad.candidates is 'ngrams'; allowed: spans with --tpu=NAME"),
    ],
)
def test_files_and_tables_of_this_machine_are_refused(name, words):
    config = config_of()
    getattr(config.task, name).weight = 1.0
    with pytest.raises(UserError, match=words):
        remote_tpu.refuse(config, REMOTE)


def test_a_tokenizer_with_a_resource_is_refused():
    tokenizer = Unigrams.__new__(Unigrams)
    with pytest.raises(UserError, match="the tokenizer is SentencePiece; allowed with"):
        remote_tpu.refuse_tokenizer(config_of(), tokenizer)
    remote_tpu.refuse_tokenizer(config_of("local"), tokenizer)
    remote_tpu.refuse_tokenizer(config_of(), SimpleNamespace(title="WordPiece"))


def test_an_operation_that_the_host_lacks_is_named():
    graph = tf.compat.v1.GraphDef()
    graph.node.add(name="normalized", op="OfALibrary>Normalize")
    words = (
        "the host of --tpu=NAME does not know the operation OfALibrary>Normalize; "
        "allowed: a host whose TensorFlow server has imported tensorflow_text"
    )
    for tpu, error in (("NAME", UserError), ("local", tf.errors.NotFoundError)):
        with pytest.raises(error, match=words if tpu == "NAME" else "not registered"):
            with remote_tpu.naming_operations(config_of(tpu).runtime):
                tf.graph_util.import_graph_def(graph)
