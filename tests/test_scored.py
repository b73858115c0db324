"""Training on one's own labels: scored pairs, queries and passages."""

import bz2

import numpy as np
import pytest
import tensorflow as tf
import toys
from texts import word_piece

from cmlm.data import scored as data_scored
from cmlm.data.bitext import PairDataConfig
from cmlm.errors import UserError
from cmlm.modeling.encoder_config import EncoderConfig
from cmlm.objectives import Data
from cmlm.objectives.scored import ScoredConfig, ScoredObjective

LINES = "a b\tc\t5\nb\td c\t2.5\nc\ta\t0\n"


@pytest.fixture
def scored(tmp_path):
    """The configuration of scored pairs; the file can be changed."""
    path = tmp_path / "scored.tsv"
    path.write_text(LINES)
    config = ScoredConfig(weight=1.0, lowest=0.0, highest=5.0)
    data = config.train_data
    data.input_path, data.global_batch_size, data.seq_length = str(path), 3, 8
    data.hold_out_fraction = 0.0
    return config, path


def load(config) -> Data:
    data = config.load_data("", False, "scored")
    config.check_data(data, EncoderConfig())
    return data


@pytest.mark.parametrize(
    "text, said",
    [
        ("a\tb\t1\nsentence1\tsentence2\tscore\n", "line 2 has the score 'score'"),
        ("a\tb\n", "line 1 has 2 columns, 2 with text; allowed: 3"),
        ("a\t\t1\n", "line 1 has 3 columns, 2 with text"),
        ("a\tb\tnan\n", "'nan'; allowed: a number"),
        ("a\tb\t0_5\n", "'0_5'; allowed: a number"),
        ("a\tb\t1\u00a0\n", r"'1\\xa0'; allowed: a number"),
        ("a\tb\t\uff11\n", "'\uff11'; allowed: a number"),
        ("a\tb\t-1e39\n", "'-1e39'; allowed: a number such as -1.5e3, within float32"),
        (f"a\tb\t0.{'3' * 30}\n", "'0.3+'; allowed: .* and 31 characters"),
        # A pattern that backtracks would take hours.
        (f"a\tb\t{'3' * 900_000}x\n", r"'3+\.\.\. \(900,003 characters\); allowed: a"),
        ("\n", "is empty; allowed: lines of sentence<TAB>sentence<TAB>score"),
        ("a\tb\t1\nb\ta\t1\n", "all scores in .* are 1; allowed: at least two"),
    ],
)
def test_a_line_without_a_score_is_named(scored, text, said):
    config, path = scored
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        load(config)


def test_tensorflow_reads_every_number_that_passes(tmp_path):
    texts = ["5", "+5", "-.5", "5.", "1E+3", "1e-60", " 5\x0b", "3.4028234e38"]
    texts += [f"0.{'3' * 29}", "007"]
    path = tmp_path / "scored.tsv"
    path.write_text("".join(f"a\tb\t{text}\n" for text in texts))
    found = list(data_scored.scores([str(path)]))
    read = tf.strings.to_number(tf.strings.strip(texts)).numpy()
    np.testing.assert_allclose(found, read, rtol=1e-6, atol=1e-40)
    assert np.isfinite(read).all()


def test_a_bzip2_file_is_refused(scored):
    config, path = scored
    packed = path.with_suffix(".tsv.bz2")
    packed.write_bytes(bz2.compress(LINES.encode()))
    config.train_data.input_path = str(packed)
    with pytest.raises(UserError, match="scored.tsv.bz2 is bzip2; allowed for train"):
        load(config)


def test_the_range_matters_to_regression_only(scored):
    config, _ = scored
    config.highest = 1.0
    load(config)
    config.loss = "cosine"
    with pytest.raises(UserError, match="from 0 to 5; allowed: 0 to 1, which task.sco"):
        load(config)


def test_regression_by_hand(scored, tmp_path):
    """The squared difference of the cosine and the score's place in its range."""
    config, _ = scored
    config.loss, config.lowest = "cosine", -1.0
    objective = ScoredObjective(
        "scored",
        config,
        toys.model(vocab_size=9),
        word_piece(tmp_path, "abcd"),
        load(config),
    )
    whole = tf.distribute.InputContext(1, 0, 1)
    batch = next(iter(objective.train_dataset(whole)))
    vectors = tf.constant(np.random.default_rng(0).normal(size=[3, 2, 4]), tf.float32)
    loss, metrics = objective.embedding_loss(vectors, batch)
    first, second = np.moveaxis(vectors.numpy(), 1, 0)
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = np.sum(first * second, axis=1) / norms
    assert sorted(batch["score"].numpy()) == [0, 2.5, 5]
    wanted = (batch["score"].numpy() + 1) / 6
    np.testing.assert_allclose(loss, np.sum((cosines - wanted) ** 2), rtol=1e-5)
    by_score = np.argsort(wanted)
    pairs = [(i, j) for i in range(3) for j in range(i)]
    right = sum(cosines[by_score[i]] > cosines[by_score[j]] for i, j in pairs)
    assert [float(value) for value in metrics["order"]] == [right, 3]


def test_pair_data_speaks_of_queries(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("only one column\n")
    with pytest.raises(UserError, match="pair data .* of the form query<TAB>passage"):
        PairDataConfig(input_path=str(path)).load("")
