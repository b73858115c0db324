"""Tasks scored while a model trains: in its metrics, and choosing its best."""

import sys

import numpy as np
import pytest
import tensorflow as tf
import toys
from encoders import Table

from cmlm.config import experiment
from cmlm.encoders import opening
from cmlm.errors import UserError
from cmlm.training import building, engine, evals, metrics_log
from cmlm.training.stages import Stage


@pytest.fixture
def run_config(tmp_path):
    """A run that scores a file of pairs at every validation."""
    text = toys.write_corpus(tmp_path / "corpus.txt")
    pairs = ["river boat\triver boat\t5", "river boat\tfish\t3", "garden\tengine\t0"]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs) + "\n")

    def configure(**values):
        config = toys.run_config(
            text,
            **{
                "trainer.train_steps": 2,
                "trainer.validation_interval": 1,
                "trainer.optimizer.warmup_steps": 0,
                "trainer.evals": f"[sts:{tmp_path}/pairs.tsv]",
                "trainer.evals_data_dir": str(tmp_path),
                "trainer.best_checkpoint_metric": "",
                **values,
            },
        )
        return config, f"sts:{tmp_path}/pairs.tsv/spearman"

    return configure


@pytest.mark.large
@pytest.mark.usefixtures("eager")
def test_tasks_are_scored_with_the_weights_of_the_step(run_config, tmp_path):
    config, metric = run_config()
    run = building.build(Stage(config, str(tmp_path / "run")))
    tokenizer = run.trainer.objectives["cmlm"].tokenizer
    encoder = opening.live(run.trainer.model, tokenizer, 16)
    before = encoder.encode(["river boat"])
    last = engine.train(run)
    assert abs(encoder.encode(["river boat"]) - before).max() > 0
    rows = metrics_log.read_metrics(str(tmp_path / "run" / "metrics.jsonl"))
    scored = [
        row[f"validation/{metric}"] for row in rows if f"validation/{metric}" in row
    ]
    assert len(scored) == 2 and scored[-1] == last[metric] == run.score()[metric]
    assert engine.evaluate(run)[metric] == last[metric]


@pytest.mark.usefixtures("eager")
@pytest.mark.large
def test_tasks_are_scored_at_the_length_of_the_finished_encoder(run_config, tmp_path):
    config, _ = run_config(**{"model.seq_length": 9})
    run = building.build(Stage(config, str(tmp_path / "run")))
    (encoder,) = run.score.args
    run.manager.save(1)
    finished = opening.open_encoder(str(tmp_path / "run"))
    assert encoder.seq_length == finished.seq_length == 9


@pytest.mark.usefixtures("eager")
@pytest.mark.large
def test_the_prompts_are_those_of_the_finished_encoder(run_config, tmp_path):
    named = {"model.prompts": ["query=river ", "passage=boat "]}
    config, _ = run_config(**named, **{"model.prompt": "boat "})
    run = building.build(Stage(config, str(tmp_path / "run")))
    (encoder,) = run.score.args
    run.manager.save(1)
    finished = opening.open_encoder(str(tmp_path / "run"))
    for text in ("fish", "garden"):
        np.testing.assert_allclose(
            encoder.search([text], ["engine"], k=1)[0],
            finished.search([text], ["engine"], k=1)[0],
            atol=1e-5,
        )


@pytest.mark.usefixtures("eager")
@pytest.mark.large
def test_a_task_chooses_the_best_checkpoint(run_config, tmp_path, one_device):
    config, metric = run_config()
    config.trainer.best_checkpoint_metric = metric
    with pytest.raises(UserError, match="comparison is 'lower'; allowed: higher, as"):
        building.build(Stage(config, str(tmp_path / "run")))
    config.trainer.best_checkpoint_comparison = "higher"
    run = building.build(Stage(config, str(tmp_path / "run")))
    engine.train(run)
    assert tf.train.latest_checkpoint(str(tmp_path / "run" / "best"))
    before = run.evals.described(metric)
    assert before == evals.Evals(config, one_device).described(metric)
    with (tmp_path / "pairs.tsv").open("a") as file:
        file.write("rain\troad\t1\n")
    assert before != evals.Evals(config, one_device).described(metric)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"trainer.evals": "[sts99]"}, "trainer.evals has 'sts99'; .*allowed: all"),
        (
            {"trainer.evals_data_dir": "nowhere"},
            "trainer.evals_data_dir is nowhere, which does not exist",
        ),
        ({"trainer.evals": "[stsb-dev]"}, "stsb-dev: missing: "),
        (
            {"trainer.best_checkpoint_metric": "trec/accuracy"},
            "'trec/accuracy'; allowed",
        ),
    ],
)
def test_what_cannot_be_scored_stops_before_the_first_step(
    run_config, tmp_path, values, message
):
    config, _ = run_config(**values)
    with pytest.raises(UserError, match=message):
        building.build(Stage(config, str(tmp_path / "run")))
    assert not (tmp_path / "run" / "params.yaml").exists()


def test_a_task_without_its_library_stops_before_the_first_step(
    run_config, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "faiss", None)
    config, _ = run_config(**{"trainer.evals": "[un]"})
    with pytest.raises(UserError, match="faiss is not installed"):
        building.build(Stage(config, str(tmp_path / "run")))


def test_tasks_without_their_folder_are_named(run_config):
    with pytest.raises(UserError, match="evals_data_dir is ''; allowed: the folder"):
        run_config(**{"trainer.evals_data_dir": ""})


def test_data_is_read_once_and_scores_follow_the_model(tmp_path):
    lines = ["good film\tfine film\t5", "good film\tbad day\t0", "a b\tb a\t3"]
    path = tmp_path / "dev.tsv"
    path.write_text("\n".join(lines) + "\n")
    config = experiment.ExperimentConfig()
    config.trainer.evals = (f"sts:{path}",)
    config.trainer.evals_data_dir = str(tmp_path)
    strategy = tf.distribute.get_strategy()
    scored = evals.Evals(config, strategy)
    path.unlink()
    assert scored.metrics == [f"sts:{path}/spearman"]
    # Cosines in the order of the gold scores; then the last two change places.
    for day, expected in ((0.0, 100), (2.0, 50)):
        table = {"good film": [1, 0], "fine film": [1, 0.1], "bad day": [day, 1]}
        table |= {"a b": [1, 0], "b a": [1, 1]}
        scores = scored.score(Table(table))
        assert scores == {scored.metrics[0]: pytest.approx(expected)}
    config.trainer.evals = ("stsb-dev",)
    with pytest.raises(UserError, match="stsb-dev: missing: "):
        evals.Evals(config, strategy)
