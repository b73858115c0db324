"""Whole runs with several objectives and languages: they train, and resume exactly."""

import numpy as np
import pytest
import toys

from cmlm.config import recipes
from cmlm.training import engine, metrics_log

STRATEGIES = ["one_device", "mirrored"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> dict[str, str]:
    """Text in two languages, their translations with a hard negative, and NLI."""
    directory = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    words = "river boat water fish garden flower rain earth engine wheel road".split()

    def sentence(language):
        chosen = random.choice(words, random.integers(3, 9))
        return " ".join(f"{word}{language}" for word in chosen) + " ."

    text, nli = [], []
    for language, documents in (("en", 30), ("de", 10)):
        lines = [
            "\n".join(sentence(language) for _ in range(8)) for _ in range(documents)
        ]
        (directory / f"{language}.txt").write_text("\n\n".join(lines))
        text.append(f"{language}={directory}/{language}.txt")
        rows = [
            f"{sentence(language)}\t{sentence(language)}\t{i % 3}" for i in range(60)
        ]
        (directory / f"{language}.tsv").write_text("\n".join(rows))
        nli.append(f"{language}={directory}/{language}.tsv")
    rows = [
        "\t".join((sentence("en"), sentence("de"), sentence("de"))) for _ in range(200)
    ]
    (directory / "bitext.tsv").write_text("\n".join(rows))
    return {
        "text": ",".join(text),
        "bitext": f"en-de={directory}/bitext.tsv",
        "nli": ",".join(nli),
    }


def configure(data, strategy, weights, **values):
    settings = {
        "model.preset": "tiny",
        "model.num_layers": 1,
        "model.hidden_size": 16,
        "model.intermediate_size": 32,
        "model.max_position_embeddings": 40,
        "model.num_views": 2,
        "model.dropout_rate": 0.2,
        "vocabulary.size": 200,
        "task.cmlm.passages": "false",
        "runtime.distribution_strategy": strategy,
        "trainer.train_steps": 6,
        "trainer.checkpoint_interval": 3,
        "trainer.summary_interval": 1,
        "trainer.validation_interval": 6,
        "trainer.validation_steps": 2,
        "trainer.best_checkpoint_metric": "",
        "trainer.optimizer.warmup_steps": 2,
        **values,
    }
    config = recipes.load(
        "cmlm/multilingual", (), [f"{key}={value}" for key, value in settings.items()]
    )
    for name in ("cmlm", "bitext", *weights):
        objective = getattr(config.task, name)
        objective.weight = weights.get(name, 0.0)
        reads = objective.train_data
        kind = {"bitext": "bitext", "tlm": "bitext", "nli": "nli"}.get(name, "text")
        reads.input_path = data[kind]
        reads.global_batch_size, reads.seq_length = 8, 16
        reads.shuffle_buffer_size, reads.hold_out_fraction = 200, 0.2
    config.validate()
    return config


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "weights, values",
    [
        ({"cmlm": 1.0, "bitext": 0.2}, {"trainer.micro_batch_size": 2}),
        (
            {"mlm": 1.0, "tlm": 1.0, "mirror": 0.5},
            {"trainer.schedule": "interleaved"},
        ),
    ],
)
@pytest.mark.large
def test_a_mix_resumes_exactly(data, tmp_path, strategy, weights, values):
    config = configure(data, strategy, weights, **values)
    straight, second = toys.straight_and_resumed(config, tmp_path)
    for name, part in straight.trainer.model.parts.items():
        for a, b in zip(
            part.get_weights(),
            second.trainer.model.parts[name].get_weights(),
            strict=True,
        ):
            np.testing.assert_array_equal(a, b, err_msg=name)


@pytest.mark.parametrize(
    "weights",
    [{"cmlm": 1.0, "bitext": 0.2}, {"nli": 1.0}, {"quickthought": 1.0}, {"sop": 1.0}],
)
def test_curves_of_every_objective_are_logged(data, tmp_path, weights):
    config = configure(data, "one_device", weights)
    run = engine.build(config, str(tmp_path))
    validation = engine.train(run)
    rows = metrics_log.read_metrics(str(tmp_path / "metrics.jsonl"))
    for name in weights:
        assert np.isfinite(validation[f"{name}/loss"])
        assert all(f"train/{name}/loss" in row for row in rows if "train/" in str(row))
    if len(weights) > 1:
        trained = next(row for row in rows if "train/gradient_norm" in row)
        assert trained["train/cmlm/gradient_norm"] > 0
        assert trained["train/bitext/gradient_norm"] > 0
        assert trained["train/bitext/candidates"] > 8
    if "nli" in weights:
        assert "nli/accuracy_en_de" in validation
