"""Tasks scored while a model trains: in its metrics, and choosing its best."""

import pytest
import tensorflow as tf
import toys

from cmlm.common import progress
from cmlm.encoders import opening
from cmlm.errors import UserError
from cmlm.training import engine


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


def test_tasks_are_scored_with_the_weights_of_the_step(run_config, tmp_path):
    config, metric = run_config()
    run = engine.build(config, str(tmp_path / "run"))
    tokenizer = run.trainer.objectives["cmlm"].tokenizer
    encoder = opening.live(run.trainer.model, tokenizer, 16)
    before = encoder.encode(["river boat"])
    last = engine.train(run)
    assert abs(encoder.encode(["river boat"]) - before).max() > 0
    rows = progress.read_metrics(str(tmp_path / "run" / "metrics.jsonl"))
    scored = [
        row[f"validation/{metric}"] for row in rows if f"validation/{metric}" in row
    ]
    assert len(scored) == 2 and scored[-1] == last[metric] == run.score()[metric]
    assert engine.evaluate(run)[metric] == last[metric]


def test_a_task_chooses_the_best_checkpoint(run_config, tmp_path):
    config, metric = run_config()
    config.trainer.best_checkpoint_metric = metric
    with pytest.raises(UserError, match="best_checkpoint_comparison=higher"):
        engine.build(config, str(tmp_path / "run"))
    config.trainer.best_checkpoint_comparison = "higher"
    run = engine.build(config, str(tmp_path / "run"))
    engine.train(run)
    assert tf.train.latest_checkpoint(str(tmp_path / "run" / "best"))


@pytest.mark.parametrize(
    "values, message",
    [
        ({"trainer.evals": "[sts99]"}, "sts99"),
        ({"trainer.evals": "[stsb-dev]"}, "stsb-dev: not there"),
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
        engine.build(config, str(tmp_path / "run"))
    assert not (tmp_path / "run" / "params.yaml").exists()


def test_tasks_without_their_folder_are_named(run_config):
    with pytest.raises(UserError, match="evals_data_dir is empty"):
        run_config(**{"trainer.evals_data_dir": ""})
