"""MiSAD: which spans are found; S, w and R; the losses; what is refused."""

from pathlib import Path

import numpy as np
import oracles
import pytest
import tensorflow as tf
import toys
from texts import word_piece

from cmlm.common import fields, iterators
from cmlm.data import (
    masked_pipelines,
    ngram_files,
    ngram_table,
    removable_spans,
)
from cmlm.data.batches import Feed
from cmlm.data.corpus import Corpus
from cmlm.data.masking import MaskingConfig
from cmlm.data.settings import DataConfig
from cmlm.errors import UserError
from cmlm.objectives import losses, misad, misad_inputs
from cmlm.objectives.base import Data
from cmlm.objectives.misad import MisadConfig, MisadObjective
from cmlm.tokenization.word_pieces import WordPiece
from cmlm.training.trainer import Trainer

PAD, UNK, CLS, SEP, MASK = range(5)
BATCH, SEQ = 8, 16
WORDS = [f"w{i}" for i in range(30)]
NGRAMS = ["w0 w1", "w0 w1 w2", "w3", "w4 w5", "w5 w6", "w7 w8s", "w9 out w1"]


@pytest.fixture
def tokenizer(tmp_path) -> WordPiece:
    pieces = [*WORDS, "##s", "##t"]
    # Five tokens are special.
    pieces += [f"x{i}" for i in range(toys.VOCAB_SIZE - 5 - len(pieces))]
    return word_piece(tmp_path, pieces)


@pytest.fixture
def ngrams_file(tmp_path) -> str:
    path = tmp_path / "ngrams.tsv"
    path.write_text("".join(f"{ngram}\t1.5\n" for ngram in NGRAMS))
    return str(path)


@pytest.fixture
def data(tmp_path) -> Data:
    """A sentence in which a span can be removed."""
    (tmp_path / "sentence.txt").write_text("w1 w2\n")
    return Data(Corpus({"": [f"{tmp_path}/sentence.txt"]}, {"": 1}))


def write_text(tmp_path, n=120) -> str:
    """Sentences of which some have n-grams, some are one word long, one unknown."""
    random = np.random.default_rng(1)
    rows = ["w3", "w0 w1", "unknown", "w20 w21 w22"]
    while len(rows) < n:
        words = random.choice(WORDS, random.integers(1, 10)).tolist()
        if random.random() < 0.7:
            words.insert(random.integers(len(words) + 1), random.choice(NGRAMS[:6]))
        rows.append(" ".join(words))
    (tmp_path / "text.txt").write_text("\n".join(rows))
    return str(tmp_path / "text.txt")


def feed(path, tokenizer, part="all", skip_batches=0, **values) -> Feed:
    config = DataConfig(
        input_path="-",
        global_batch_size=BATCH,
        seq_length=SEQ,
        shuffle_buffer_size=50,
        hold_out_fraction=0.0,
    )
    corpus = Corpus({"": [path]}, {"": 120})
    return Feed(
        config, tokenizer, corpus, BATCH, part, skip_batches=skip_batches, **values
    )


# ------------------------------------------------------------------- spans


def table_of(path, tokenizer, read=ngram_files.read) -> ngram_table.NgramFinder:
    return ngram_table.NgramFinder(tokenizer, {path: read(path)})


def brute_force(tokens: list[str], ngrams: list[list[str]]) -> set[tuple[int, int]]:
    """Spans of a row, compared word for word; none inside a longer one."""
    found = set()
    n_tokens = len([token for token in tokens if token not in ("[CLS]", "[SEP]")])
    for start in range(len(tokens)):
        for ngram in ngrams:
            end = start + len(ngram)
            cut = tokens[end : end + 1] and tokens[end].startswith("##")
            if tokens[start:end] == ngram and not cut and len(ngram) < n_tokens:
                found.add((start, end))
    return {
        (a, b)
        for a, b in found
        if not any((c, d) != (a, b) and c <= a and b <= d for c, d in found)
    }


def test_the_n_grams_of_a_list_are_found(tmp_path, tokenizer, ngrams_file):
    table = table_of(ngrams_file, tokenizer)
    lines = open(write_text(tmp_path)).read().splitlines()
    # `w8s` is two pieces; `w3s` begins like an n-gram, but is another word.
    lines += ["w7 w8s w3s", "w7 w8s w1", "w7 w8st w1", "w4 w5 w6", "w1 w3 w3"]
    ids = tokenizer.encode(tf.constant(lines), SEQ).to_tensor(PAD)
    ends = table(ids, None).numpy()
    pieces = [ngram.replace("w8s", "w8 ##s").split() for ngram in NGRAMS]
    n_found = 0
    for row, row_ends in zip(ids.numpy(), ends, strict=True):
        tokens = [tokenizer.vocab[token] for token in row if token != PAD]
        got = {(int(s), int(row_ends[s])) for s in np.flatnonzero(row_ends)}
        assert got == brute_force(tokens, pieces), tokens
        n_found += len(got)
    assert n_found > 60


def test_n_grams_of_pieces_are_found_inside_words(tmp_path, tokenizer):
    (tmp_path / "p.tsv").write_text("w1 ##s\t1\n##s ##t\t1\n")
    table = table_of(str(tmp_path / "p.tsv"), tokenizer)
    ids = tokenizer.encode(tf.constant(["w1s w2", "w1st w2", "w2st w2"]), SEQ)
    ends = table(ids.to_tensor(PAD), None).numpy()
    assert [np.flatnonzero(row).tolist() for row in ends] == [[1], [1, 2], [2]]


def test_the_looser_of_two_rules_for_the_same_tokens_holds(tokenizer):
    """`w1 ##s` is found anywhere, and the name `w1s` as a whole word only."""
    ids = tokenizer.encode(tf.constant(["w1s w2", "w1st w2"]), SEQ).to_tensor(PAD)
    for lists in ([["w1 ##s"], ["w1s"]], [["w1s"], ["w1 ##s"]]):
        named = {f"list {number}": found for number, found in enumerate(lists)}
        table = ngram_table.NgramFinder(tokenizer, named)
        marked = ngram_table.NgramFinder(tokenizer, marks=True)
        marks = tf.ragged.constant([sum(lists, [])] * 2)
        for ends in (table(ids, None), marked(ids, marks)):
            assert [np.flatnonzero(row).tolist() for row in ends] == [[1], [1]]


def test_names_of_a_list_are_found(tmp_path, tokenizer):
    path = tmp_path / "names.txt"
    path.write_text("w3\n\nW4 w5\r\n  w4 w5 \nnew york\nw6 -- w7\n", newline="")
    assert ngram_files.read_entities(str(path)) == [
        *("w3", "W4 w5", "w4 w5", "new york", "w6 -- w7")
    ]
    table = table_of(str(path), tokenizer, ngram_files.read_entities)
    lines = ["w1 w4 w5 w3", "w4 w6 w5", "w3", "w3s w1"]
    ends = table(tokenizer.encode(tf.constant(lines), SEQ).to_tensor(PAD), None).numpy()
    found = [{int(s): int(row[s]) for s in np.flatnonzero(row)} for row in ends]
    assert found == [{2: 4, 4: 5}, {}, {}, {}]
    with pytest.raises(UserError, match="entity file .*x does not exist; allowed: "):
        ngram_files.read_entities(f"{path}x")
    path.write_text("\n \n")
    with pytest.raises(
        UserError, match="entity file .* is empty; allowed: one name a line"
    ):
        ngram_files.read_entities(str(path))


def test_marks_are_found_in_their_sentence_only(tokenizer):
    lines = [
        "w1 w2 w3 w1\tw1 w2\tw3",
        "w1 w2 w3 w1",
        "w1 w2 w3\tw2 w3\tw1 w2 w3",
        "w1s w2\tw1 ##s\tunknown\tw2\t",
        "w5 w6 w1\tw1 w6",
    ]
    sentences, marks = ngram_table.split_marks(tf.constant(lines))
    assert [text.decode() for text in sentences.numpy()] == [
        *("w1 w2 w3 w1", "w1 w2 w3 w1", "w1 w2 w3", "w1s w2", "w5 w6 w1")
    ]
    ids = tokenizer.encode(sentences, SEQ).to_tensor(PAD)

    def found(finder):
        ends = finder(ids, marks).numpy()
        return [{int(s): int(row[s]) for s in np.flatnonzero(row)} for row in ends]

    finder = ngram_table.NgramFinder(tokenizer, marks=True)
    # The third sentence is itself an n-gram: a part of it must stay.
    want = [{1: 3, 3: 4}, {}, {2: 4}, {1: 3, 3: 4}, {}]
    assert found(finder) == want
    assert finder.possible(ids, marks).numpy().tolist() == [bool(row) for row in want]
    # With a list of names too, these are found everywhere.
    both = ngram_table.NgramFinder(tokenizer, {"names": ["w5 w6", "w3"]}, marks=True)
    want[1], want[4] = {3: 4}, {1: 3}
    assert found(both) == want


def test_a_list_without_known_words_is_refused(tmp_path, tokenizer):
    (tmp_path / "other.tsv").write_text("new york\t2.0\n")
    with pytest.raises(UserError, match="of its 1 n-grams, such as '.+', has known"):
        table_of(str(tmp_path / "other.tsv"), tokenizer)


def test_random_spans_have_geometric_lengths(tokenizer):
    text = [" ".join(WORDS[:n]) for n in (1, 2, 3, 13)] + ["unknown w1"]
    ids = tf.repeat(
        tokenizer.encode(tf.constant(text), SEQ).to_tensor(PAD), 400, axis=0
    )
    find = removable_spans.RandomSpans(tokenizer)
    ends = find(ids, None, tf.constant([1, 2])).numpy()
    lengths = np.where(ends > 0, ends - np.arange(ends.shape[1]), 0)
    lengths = lengths.reshape(5, 400, -1)
    assert not lengths[0].any() and lengths[1].max() == 1 and lengths[2].max() == 2
    assert not lengths[:, :, 0].any()  # [CLS]
    last = ends.reshape(5, 400, -1)[3].max()
    assert last == 14  # the place of [SEP]: no span holds it
    drawn = lengths[3, :, 1]
    want = 0.8 ** np.arange(6) * 0.2
    shares = np.bincount(drawn, minlength=7)[1:] / 400
    np.testing.assert_allclose(shares, want / want.sum(), atol=0.08)


def test_random_spans_hold_no_special_token(tokenizer):
    text = [f"{WORDS[0]} unknown unknown " + " ".join(WORDS[1:5])]
    ids = tokenizer.encode(tf.constant(text), SEQ).to_tensor(PAD)
    ids = tf.repeat(ids, 400, axis=0)
    find = removable_spans.RandomSpans(tokenizer)
    ends = find(ids, None, tf.constant([1, 2])).numpy()
    rows, starts = np.nonzero(ends)
    found = set(zip(starts.tolist(), ends[rows, starts].tolist(), strict=True))
    # [CLS] w ? ? w w w w [SEP]: each run of words that leaves one out.
    runs = {(a, b) for a in range(4, 8) for b in range(a + 1, 9)}
    assert found == {(1, 2), *runs}


def test_drawn_spans_are_some_of_those_found():
    ends = tf.constant([[0, 3, 4, 0, 6], [0] * 5, [0, 0, 3, 0, 0]])
    seen = set()
    for seed in range(20):
        drawn = removable_spans.draw(ends, 2, tf.constant([0, seed]))
        start, end, mask = (
            drawn[f"span_{k}"].numpy() for k in ("start", "end", "mask")
        )
        assert mask.tolist() == [[1, 1], [0, 0], [1, 0]]
        assert end[2].tolist() == [3, 0] and not end[1].any()
        seen |= {(int(a), int(b)) for a, b in zip(start[0], end[0])}
    assert seen == {(1, 3), (2, 4), (4, 6)}


# ----------------------------------------------------------------- pipeline


def batches(tmp_path, tokenizer, ngrams_file, draws=1, n_spans=3, **values):
    dataset = masked_pipelines.sentences_with_spans(
        feed(write_text(tmp_path), tokenizer, **values),
        MaskingConfig(rate=0.3),
        table_of(ngrams_file, tokenizer),
        n_spans,
        draws,
    )
    return dataset


def test_masks_spare_any_span_and_are_as_many(tmp_path, tokenizer, ngrams_file):
    random = np.random.default_rng(0)
    n_masked = 0
    for batch in batches(tmp_path, tokenizer, ngrams_file, draws=2).as_numpy_iterator():
        for i, ids in enumerate(batch["input_word_ids"]):
            maskable = np.flatnonzero(ids > MASK)
            of_row = int(batch["masked_lm_weights"][i].sum())
            candidates = batch["span_end"][i] - batch["span_start"][i]
            want = np.clip(np.round(0.3 * np.sum(ids != PAD)), 1, 80)
            assert of_row == min(want, len(maskable) - candidates.max())
            for draw in range(2):
                order = batch["input_order"][i, draw]
                assert sorted(order) == list(range(len(ids)))
                assert set(order[: len(maskable)]) == set(maskable)
            n_masked += of_row
            start = random.integers(3)
            inside = range(batch["span_start"][i, start], batch["span_end"][i, start])
            assert len(set(maskable) - set(inside)) >= of_row
    assert n_masked > 100
    # [CLS] a b c [SEP], of which a and b are the span.
    masks = removable_spans.prepare_masks(
        tf.constant([[CLS, 5, 6, 7, SEP]]),
        {"span_start": tf.constant([[1]]), "span_end": tf.constant([[3]])},
        tokenizer,
        MaskingConfig(rate=0.9),
        draws=1,
        seed=tf.constant([0, 0]),
    )
    assert masks["masked_lm_weights"].numpy().tolist() == [[1.0]]


def test_batches_depend_on_seed_and_number_only(tmp_path, tokenizer, ngrams_file):
    arguments = (tmp_path, tokenizer, ngrams_file)
    whole = list(batches(*arguments, part="train").take(6).as_numpy_iterator())
    rest = batches(*arguments, part="train", skip_batches=3).take(3)
    for want, got in zip(whole[3:], rest.as_numpy_iterator(), strict=True):
        for key in want:
            np.testing.assert_array_equal(got[key], want[key], err_msg=key)
    assert any((a["input_order"].shape != b["input_order"].shape
                or (a["input_order"] != b["input_order"]).any())
               for a, b in zip(whole, whole[1:]))  # fmt: skip


def test_marked_text_gives_batches_of_its_own_n_grams(tmp_path, tokenizer):
    lines = Path(write_text(tmp_path)).read_text().splitlines()
    marked = [f"{line}\tw4 w5" if n % 2 else line for n, line in enumerate(lines)]
    (tmp_path / "marked.txt").write_text("\n".join(marked))
    dataset = masked_pipelines.sentences_with_spans(
        feed(str(tmp_path / "marked.txt"), tokenizer),
        MaskingConfig(rate=0.3),
        ngram_table.NgramFinder(tokenizer, marks=True),
        n_spans=3,
        draws=1,
    )
    for name, spec in dataset.element_spec.items():
        # A graph needs to know how many dimensions there are.
        assert spec.shape.rank in (2, 3), name
    n_found = n_plain = 0
    want = [tokenizer.vocab.index(word) for word in ("w4", "w5")]
    for batch in dataset.as_numpy_iterator():
        for ids, start, end, mask in zip(
            *(batch[f"{k}"] for k in ("input_word_ids", "span_start", "span_end")),
            batch["span_mask"],
            strict=True,
        ):
            for a, b in zip(start[mask > 0], end[mask > 0], strict=True):
                assert ids[a:b].tolist() == want
                n_found += 1
            n_plain += not mask.any()
    texts = [line for line in marked if "w4 w5" in line.split("\t")[0]]
    expected = sum("\t" in line for line in texts if line.split("\t")[0] != "w4 w5")
    assert n_found >= expected > 3 and n_plain > 60


def test_marks_do_not_count_for_the_length_of_a_sentence(tmp_path, tokenizer):
    """Every line has as many words, with the marks."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, 10, 120)
    rows = [" ".join(["w1"] * length) + "\tw4 w5" * (10 - length) for length in lengths]
    (tmp_path / "marked.txt").write_text("\n".join(rows))
    dataset = masked_pipelines.sentences_with_spans(
        feed(str(tmp_path / "marked.txt"), tokenizer, part="train"),
        MaskingConfig(rate=0.3),
        ngram_table.NgramFinder(tokenizer, marks=True),
        n_spans=3,
        draws=1,
    )
    found = dataset.take(12).as_numpy_iterator()
    within = [batch["input_mask"].sum(axis=1).std() for batch in found]
    assert np.mean(within) < 0.5 * lengths.std()


# ---------------------------------------------------------------- objective


def make(tokenizer, data, batch, strategy, micro_batch_size=0, **values) -> Trainer:
    """A trainer on one batch in memory, with plain SGD."""

    class InMemory(MisadObjective):
        def train_dataset(self, input_context, skip_batches=0):
            size = input_context.get_per_replica_batch_size(BATCH)
            dataset = iterators.untuned(tf.data.Dataset.from_tensor_slices(batch))
            return dataset.batch(size, drop_remainder=True).repeat()

    config = MisadConfig(weight=1.0, candidates="spans", **values)
    config.train_data.global_batch_size = BATCH
    with strategy.scope():
        model = toys.model(num_layers=1)
        objective = InMemory("misad", config, model, tokenizer=tokenizer, data=data)
        return toys.trainer(
            strategy, model, objective, micro_batch_size=micro_batch_size
        )


@pytest.fixture
def batch(tmp_path, tokenizer, ngrams_file):
    """Eight sentences, of which some have several n-grams and some none."""
    rows = []
    for got in batches(tmp_path, tokenizer, ngrams_file, draws=2).as_numpy_iterator():
        found = got["span_mask"].sum(axis=1)
        if got["input_word_ids"].shape[1] > 9:
            rows.append((found.max(), (found == 0).sum(), len(rows), got))
    most = [row for row in rows if row[0] > 1 and row[1] > 0]
    return max(most, key=lambda row: row[:3])[3]


def encode(model, ids, mask):
    """Sequence outputs and the pooled vectors, by numpy."""
    weights = oracles.weights_by_name(model.encoder)
    sequence = oracles.bert(weights, ids, mask, num_layers=1)
    return sequence, oracles.pool(sequence, mask, "mean")


@pytest.mark.usefixtures("eager")
def test_the_hardest_n_gram_is_chosen(one_device, tokenizer, data, batch):
    """Section 3.3: mask one n-gram at a time; the mean probability of its words."""
    objective = make(tokenizer, data, batch, one_device).objectives["misad"]
    model = objective.model
    head = oracles.weights_by_name(model.masked_lm())
    table = oracles.weights_by_name(model.encoder)["bert/word_embeddings/embeddings"]
    scores = objective.candidate_scores(batch).numpy()
    start, end = (value.numpy()[:, 0] for value in objective.choose(batch))
    for i, ids in enumerate(batch["input_word_ids"]):
        want = {}
        for c in np.flatnonzero(batch["span_mask"][i]):
            span = range(batch["span_start"][i, c], batch["span_end"][i, c])
            masked = ids.copy()
            masked[list(span)] = MASK
            sequence, _ = encode(model, masked[None], batch["input_mask"][i : i + 1])
            probabilities = [
                np.exp(-oracles.masked_lm_loss(
                    head, table, sequence, [[at]], [[ids[at]]], [[1.0]])[0])
                for at in span
            ]  # fmt: skip
            want[c] = np.mean(probabilities)
            assert scores[i, c] == pytest.approx(want[c], rel=1e-3)
        if want:
            best = min(want, key=want.get)
            assert start[i] == batch["span_start"][i, best]
            assert end[i] == batch["span_end"][i, best]
        else:
            assert start[i] == end[i] == 0


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("form", losses.MISAD_FORMS)
def test_losses_are_those_of_the_paper(one_device, tokenizer, data, batch, form):
    trainer = make(tokenizer, data, batch, one_device, form=form)
    objective, model = trainer.objectives["misad"], trainer.model
    start, end = objective.choose(batch)
    released = form == "released"
    parts = misad_inputs.split(batch, start, end, objective.tokenizer, released)
    parts = tf.nest.map_structure(np.asarray, parts)
    start, end = start.numpy()[:, 0], end.numpy()[:, 0]
    weights = batch["masked_lm_weights"]

    # S, w and R as lists of tokens.
    for i, ids in enumerate(batch["input_word_ids"]):
        sentence = ids[ids != PAD].tolist()
        got = {
            name: part["input_word_ids"][i][part["input_mask"][i] > 0].tolist()
            for name, part in parts.items()
        }
        for name, part in parts.items():
            ids_of = part["input_word_ids"][i]
            assert not ids_of[part["input_mask"][i] == 0].any(), name
            if "masked_lm_ids" in part:
                used = weights[i] > 0
                positions = part["masked_lm_positions"][i][used]
                assert len(set(positions)) == used.sum()
                if name == "sentence":
                    # w is never masked in S.
                    assert not set(positions) & set(range(start[i], end[i]))
                for at, label in zip(positions, part["masked_lm_ids"][i][used]):
                    got[name][at] = label
        assert got["sentence"] == sentence
        assert got["ngram"] == [CLS, *sentence[start[i] : end[i]], SEP]
        assert got["rest"] == sentence[: start[i]] + sentence[end[i] :]

    head = oracles.weights_by_name(model.masked_lm())
    table = oracles.weights_by_name(model.encoder)["bert/word_embeddings/embeddings"]
    vectors, want = {}, []
    for name, part in parts.items():
        sequence, vectors[name] = encode(
            model, part["input_word_ids"], part["input_mask"]
        )
        if "masked_lm_ids" in part:
            loss, _ = oracles.masked_lm_loss(
                head, table, sequence, part["masked_lm_positions"],
                part["masked_lm_ids"], weights,
            )  # fmt: skip
            want.append(loss)
    found = end > start
    assert 0 < found.sum() < BATCH
    distances = oracles.misad_loss(
        vectors["ngram"], vectors["rest"], vectors["sentence"], released
    )
    want.append(distances[found].sum())
    got, metrics = objective.compute(batch, training=True)
    np.testing.assert_allclose(got, want, rtol=1e-3)
    assert len(want) == (3 if released else 2)
    divisor = objective.divisor(batch).numpy()
    np.testing.assert_array_equal(divisor[:-1], weights.sum())
    assert divisor[-1] == found.sum()
    assert set(metrics) == set(objective.train_metrics)
    # The step reports the mean of each.
    step = trainer.train(1)
    assert step["misad/misad_loss"] == pytest.approx(want[-1] / found.sum(), rel=1e-3)
    assert step["misad/loss"] == pytest.approx(want[0] / weights.sum(), rel=1e-3)
    assert step["misad/found"] == pytest.approx(found.mean())


@pytest.mark.usefixtures("eager")
def test_sentences_without_n_grams_have_masked_words_only(
    one_device, tokenizer, data, batch
):
    none = {
        key: np.zeros_like(value) if key.startswith("span_") else value
        for key, value in batch.items()
    }
    trainer = make(tokenizer, data, none, one_device)
    metrics = trainer.train(1)
    # Without an n-gram, the second loss has nothing to measure.
    assert metrics["misad/found"] == 0 and "misad/misad_loss" not in metrics
    assert metrics["misad/loss"] > 0 and np.isfinite(metrics["gradient_norm"])


@pytest.mark.usefixtures("eager")
def test_the_two_losses_have_weights_of_their_own(one_device, tokenizer, data, batch):
    reference = make(tokenizer, data, batch, one_device).objectives["misad"]
    weighed = make(
        tokenizer, data, batch, one_device, misad_weight=3.0, masked_lm_weight=0.5
    ).objectives["misad"]
    for name, part in reference.model.parts.items():
        weighed.model.parts[name].set_weights(part.get_weights())
    want, metrics = reference.compute(
        {k: tf.constant(v) for k, v in batch.items()}, training=True
    )
    got, same = weighed.compute(
        {k: tf.constant(v) for k, v in batch.items()}, training=True
    )
    np.testing.assert_allclose(got, want * [0.5, 3.0], rtol=1e-4)
    for name in metrics:
        np.testing.assert_allclose(same[name], metrics[name], rtol=1e-4, err_msg=name)


def test_a_start_without_a_masked_lm_head_is_refused(tokenizer, data):
    model = toys.model(num_layers=1)

    def start(parts, **values):
        config = MisadConfig(candidates="spans", **values)
        objective = MisadObjective(
            "misad", config, model, tokenizer=tokenizer, data=data
        )
        objective.check_start("/bert", parts)

    start(["encoder", "masked_lm"])
    start(["encoder"], new_masked_lm=True)
    start(["encoder"], choice="random")
    with pytest.raises(UserError, match="/bert has no masked-LM head.*choice=random"):
        start(["encoder"])


@pytest.mark.parametrize(
    "values, message",
    [
        ({"form": "code"}, "task.misad.form is 'code'; allowed: paper, released"),
        ({"candidates": "words"}, "'words'; allowed: marks, ngrams, entities, spans"),
        ({"choice": "best"}, "choice is 'best'; allowed: model, random"),
        ({"max_candidates": 0}, "max_candidates is 0; allowed: at least 1"),
        ({"masking": MaskingConfig(whole_word=True)}, "whole_word"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    config = MisadConfig(weight=1.0, **values)
    config.train_data = config.train_data.replace(input_path="a", global_batch_size=2)
    with pytest.raises(UserError, match=message):
        fields.check(config, "task.misad.")


@pytest.mark.parametrize(
    "candidates, message",
    [
        ("ngrams", "ngrams_file is ''; allowed: a file that python -m cml"),
        ("entities", "entities_file is ''; allowed: a file of names, one a line"),
    ],
)
def test_a_run_without_a_file_is_refused(tokenizer, data, candidates, message):
    model = toys.model(num_layers=1)
    config = MisadConfig(candidates=candidates)
    with pytest.raises(UserError, match=message):
        MisadObjective("misad", config, model, tokenizer=tokenizer, data=data)
    setting = f"{candidates}_file"
    setattr(config, setting, "no.tsv")
    said = f"^task.misad.{setting}: .* file no.tsv does not exist; allowed: "
    with pytest.raises(UserError, match=said):
        MisadObjective("misad", config, model, tokenizer=tokenizer, data=data)


@pytest.mark.large
@pytest.mark.parametrize(
    "candidates, text, message",
    [
        # Shorter than two tokens, or of unknown words.
        ("spans", "w3\nw4\nunknown words\n", "the 3 sentences has two tokens"),
        ("marks", "w1 w2\nw4\tw5\n", "the 2 sentences has a marked n-gram"),
        ("ngrams", "w1 w0\nw4\nw3\n", "the 3 sentences has an n-gram of .*ngrams.tsv"),
        ("entities", "w1 w0\n", "the 1 sentences has a name of .*names.txt"),
    ],
)
def test_text_of_which_nothing_can_be_taken_is_refused(
    tmp_path, tokenizer, ngrams_file, caplog, monkeypatch, candidates, text, message
):
    (tmp_path / "names.txt").write_text("w20\n")
    (tmp_path / "text.txt").write_text(text)
    config = MisadConfig(
        candidates=candidates,
        ngrams_file=ngrams_file,
        entities_file=str(tmp_path / "names.txt"),
    )
    paths = {"": [str(tmp_path / "text.txt")]}
    data = Data(Corpus(paths, {"": 3}))
    model = toys.model(num_layers=1)

    def build():
        MisadObjective("misad", config, model, tokenizer=tokenizer, data=data)

    with pytest.raises(UserError, match=f"task.misad: none of {message}"):
        build()
    # Not all of a long text is looked at before it is trained on.
    (tmp_path / "text.txt").write_text("w3\n" * 9)
    monkeypatch.setattr(misad, "_LOOKED_AT", 8)
    with caplog.at_level("WARNING", logger="cmlm"):
        build()
    assert "none of the first 9 sentences has" in caplog.text
    caplog.clear()
    (tmp_path / "text.txt").write_text("w3\nw20 w0 w1\tw0 w1\n")
    build()
    assert not caplog.text
