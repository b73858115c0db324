"""Every run of the tests has two logical CPU devices and is seeded."""

import functools
import gc
import os
from pathlib import Path

import pytest

from cmlm import cli

# A program of a toy runs once, so XLA's optimisation would take longer than it saves.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0"
    " --xla_llvm_disable_expensive_passes=true"
)

with cli.quiet_imports():
    import quick
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  (registers the ops that loaded graphs need)
    from official.modeling.hyperparams import base_config
    from tensorflow.python.autograph.core import ag_ctx
    from tensorflow.python.framework import traceable_stack

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    # Before anything initialises TensorFlow: the set of devices is frozen then.
    quick.configure()
    tf.config.set_visible_devices([], "GPU")
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    # A tenth of the time of a graph went into the line numbers of its device scopes,
    # which some errors of TensorFlow would name.
    traceable_stack.TraceableObject.set_filename_and_line_from_caller = (
        lambda self, offset=0: self.SUCCESS
    )
    # For each value of a configuration, it would read the annotations of the class.
    base_config.Config._get_annotations = classmethod(
        functools.cache(base_config.Config._get_annotations.__func__)
    )


# They test rules of this project, which do not depend on the versions of TensorFlow and
# Python, or what other modules test on both stacks.
ON_ONE_STACK = {
    *("test_assembly", "test_beam_files", "test_beam_runner", "test_bitext_data"),
    *("test_benchmarks", "test_builtin", "test_quickthought"),
    *("test_campaign", "test_cli", "test_client", "test_corpus", "test_distill"),
    *("test_dev_server", "test_docs", "test_files", "test_stacking", "test_streams"),
    *("test_evaluate", "test_evaluation_predictions"),
    *("test_evaluation_base", "test_evaluation_bitext", "test_evaluation_resuming"),
    *("test_evaluation_merging", "test_evaluation_own", "test_evaluation_report"),
    *("test_evaluation_tasks", "test_examples", "test_experiments"),
    *("test_external_encoders", "test_filters", "test_finetuning_own"),
    *("test_finetuning_reviews", "test_hold_out"),
    *("test_masked_pipelines", "test_mine", "test_mining", "test_mirror"),
    *("test_misad", "test_ngrams", "test_nli", "test_outputs", "test_unfinished"),
    *("test_pair_pipelines", "test_papers", "test_precision", "test_prepare"),
    *("test_progress", "test_pruning", "test_published_layouts", "test_quality"),
    *("test_reading", "test_rules", "test_scored", "test_sources", "test_spilling"),
    *("test_vocabulary", "test_words_on_beam"),
}


def pytest_ignore_collect(collection_path, config: pytest.Config) -> bool | None:
    """Does not import what would be left out: some modules take a second."""
    if config.option.markexpr == "not large":
        return collection_path.stem in ON_ONE_STACK or None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in ON_ONE_STACK:
            item.add_marker("large")
    # Its fixture takes a minute, which at the end would leave the other processes idle.
    items.sort(key=lambda item: item.path.stem != "test_workers")


def pytest_collection_finish() -> None:
    """Lets Python look for garbage less often: a tenth of the time went there."""
    gc.collect()
    # Modules and tests stay until the end.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seeds Python, numpy, TensorFlow and Keras before each test."""
    from cmlm.common.keras import keras

    keras.utils.set_random_seed(20)


@pytest.fixture(autouse=True)
def float32() -> None:
    """Layers are float32, whatever run the test before has built."""
    from cmlm.common.keras import keras

    keras.mixed_precision.set_global_policy("float32")


@pytest.fixture
def eager():
    """Runs each tf.function as Python, for tests of what surrounds a toy's steps.

    A step takes less time than the tracing of its graph. The graphs are tested by the
    tests of each objective, of the trainer and of the commands.
    """
    import toys

    with toys.eagerly():
        yield


@pytest.fixture
def unconverted():
    """Builds pipelines without AutoGraph, as `Objective` does."""
    with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.DISABLED):
        yield


@pytest.fixture
def optimized_graphs():
    """Lets TensorFlow optimise graphs, as it does outside of the tests."""
    quick.optimize_graphs(True)
    yield
    quick.optimize_graphs(False)


@pytest.fixture
def one_device() -> tf.distribute.Strategy:
    return tf.distribute.OneDeviceStrategy("CPU:0")


@pytest.fixture(scope="session")
def two_replicas() -> tf.distribute.Strategy:
    from official.core import config_definitions

    from cmlm.common import distributed

    return distributed.build_strategy(
        config_definitions.RuntimeConfig(distribution_strategy="mirrored")
    )


@pytest.fixture
def text_file(tmp_path) -> str:
    """A text whose words repeat by Zipf's law."""
    stems = "walk talk play work jump look call turn open start".split()
    endings = ["", "s", "ed", "ing", "er", "ers"]
    words = [stem + ending for ending in endings for stem in stems]
    lines = []
    for number in range(2000):
        rank = [int(60 / (1 + (number * 7 + i * 13) % 60)) % 60 for i in range(8)]
        lines.append("The " + " ".join(words[r] for r in rank) + ", Café!")
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and task data, which are not part of the repository."""
    path = Path(os.environ.get("CMLM_SHARED_DATA") or ROOT.parent / "shared" / "data")
    if not path.is_dir():
        pytest.skip(f"no shared data: {path} is not a directory (CMLM_SHARED_DATA)")
    return path


@pytest.fixture(scope="session")
def toy_export(tmp_path_factory):
    """An export of a toy model with PCR, a `model_dirs.Export`."""
    import model_dirs

    return model_dirs.export(tmp_path_factory.mktemp("toy_export"))


@pytest.fixture(scope="session")
def commands():
    """Runs commands in forks of a warm process, see `campaign.warm.Process`."""
    import commands

    return commands.process()
