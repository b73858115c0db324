"""Runs that start from some of the layers of an encoder."""

import model_dirs
import numpy as np
import pytest
import tensorflow as tf
import toys
from absl import flags
from absl.testing import flagsaver

from cmlm import train
from cmlm.encoders import opening
from cmlm.errors import UserError
from cmlm.modeling import restoring, weights
from cmlm.training import building, engine
from cmlm.training.stages import Stage
from export import huggingface_folder

LAYERS, CHOSEN = 4, (1, 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deep") / "run"
    return model_dirs.write(folder, **{"model.num_layers": LAYERS})


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    """The same encoder as a Hugging Face folder."""
    path = str(tmp_path_factory.mktemp("folder"))
    opened = opening.open_weights(run)
    huggingface_folder.write(opened, path, model_dirs.SEQ_LENGTH, normalize=False)
    return path


def arrays(encoder) -> dict[str, np.ndarray]:
    variables = weights.encoder_variables(encoder)
    return {name: variable.numpy() for name, variable in variables.items()}


def assert_chosen(encoder, deep) -> None:
    """Layers have new numbers; all else is the deep encoder's."""
    own, theirs = arrays(encoder), arrays(deep)
    assert weights.layer_numbers(own) == {*range(len(CHOSEN))}
    for name, array in own.items():
        for number, old in reversed([*enumerate(CHOSEN)]):
            name = name.replace(f"layer_{number}/", f"layer_{old}/")
        np.testing.assert_array_equal(array, theirs[name], name)


def configure(tmp_path, *arguments):
    """A small run, as `cmlm.train` configures it."""
    text = toys.write_corpus(tmp_path / "corpus.txt")
    settings = (
        *("model.num_views=3", "task.cmlm.passages=false", "trainer.train_steps=2"),
        *("trainer.optimizer.warmup_steps=1", "vocabulary.max_unknown_share=1"),
        *("task.cmlm.train_data.global_batch_size=8", "trainer.evals=[]"),
        *("task.cmlm.train_data.seq_length=16", "trainer.validation_interval=2"),
        "task.cmlm.train_data.hold_out_fraction=0.2",
    )
    with flagsaver.flagsaver():
        flags.FLAGS(
            [
                *("train", "--experiment=cmlm/english", f"--train_data={text}"),
                f"--params_override={','.join(settings)}",
                *map(str, arguments),
            ]
        )
        return train.configure()


@pytest.mark.large
@pytest.mark.parametrize("origin", ["run", "folder"])
def test_a_run_starts_from_the_chosen_layers(origin, run, request, tmp_path):
    path, own = request.getfixturevalue(origin), str(tmp_path / "run")
    given = [f"--init_checkpoint={path}", f"--model_dir={own}"]
    config = configure(
        tmp_path, *given, f"--params_override=init_layers={list(CHOSEN)}"
    )
    assert config.model.num_layers == len(CHOSEN)
    built = building.build(Stage(config, own))
    deep = opening.open_weights(path).encoder
    assert_chosen(built.trainer.model.encoder, deep)
    engine.train(built)
    # The initial weights of the run, and a command that resumes it.
    assert_chosen(opening.open_weights(f"untrained:{own}").encoder, deep)
    again = configure(tmp_path, *given)
    assert again.init_layers == CHOSEN and again.model.num_layers == len(CHOSEN)
    said = r"init_layers is \[0\]; allowed: \[1, 3\], as the run in .* has, or another"
    with pytest.raises(UserError, match=said):
        configure(tmp_path, *given, "--params_override=init_layers=[0]")


@pytest.mark.parametrize("origin", ["run", "folder"])
@pytest.mark.parametrize(
    "layers, said",
    [
        ("[3,1]", r"init_layers is \[3, 1\]; allowed: numbers from 0 to 3 in asc"),
        ("[1,4]", r"in ascending order, as .* has 4 layers"),
        ("[1,1]", r"init_layers is \[1, 1\]; allowed: numbers from 0 to 3"),
        ("[-1,1]", r"init_layers is \[-1, 1\]; allowed: "),
        ("[a]", "an item of init_layers is 'a'; allowed: an integer"),
        ("[1,3],model.num_layers=4", "num_layers is 4; allowed: 2, as "),
    ],
)
def test_wrong_layers(origin, layers, said, request, tmp_path):
    path = request.getfixturevalue(origin)
    with pytest.raises(UserError, match=said):
        configure(
            *(tmp_path, f"--init_checkpoint={path}"),
            f"--params_override=init_layers={layers}",
        )


def test_layers_of_no_weights(tmp_path):
    given = "--params_override=init_layers=[0]"
    with pytest.raises(
        UserError, match=r"--init_checkpoint is not .* init_layers=\[0\] selects"
    ):
        configure(tmp_path, given)
    assert configure(tmp_path, given, "--print_config").init_layers == (0,)


def test_chosen_layers_fill_the_first_stage_of_stacking(run, tmp_path):
    def layers(chosen):
        return configure(
            *(tmp_path, f"--init_checkpoint={run}"),
            "--params_override=model.num_layers=4,trainer.stacking_steps=[1]",
            f"--params_override=init_layers={chosen}",
        )

    assert layers("[0,2]").model.num_layers == 4
    with pytest.raises(
        UserError, match="has 3 layers, but the first stage of .* 2; allow"
    ):
        layers("[0,1,2]")


def test_heads_and_both_encoders_are_taken(tmp_path):
    deep, shallow = (toys.model(num_layers=count) for count in (LAYERS, len(CHOSEN)))
    for made in (deep, shallow):
        made.second_encoder()
        toys.randomize(made)
    path = tf.train.Checkpoint(model=deep).save(str(tmp_path / "ckpt"))
    parts = restoring.initialize(shallow, path, CHOSEN)
    assert {*parts} == {*deep.parts}
    assert_chosen(shallow.encoder, deep.encoder)
    assert_chosen(shallow.second_encoder(), deep.second_encoder())
    for name in ("masked_lm", "projection"):
        for own, theirs in zip(
            *(made.parts[name].get_weights() for made in (shallow, deep)), strict=True
        ):
            np.testing.assert_array_equal(own, theirs, name)
