"""Mirror-BERT: what is refused, and that a string never becomes all mask."""

import numpy as np
import pytest
import tensorflow as tf
from texts import word_piece

from cmlm.common import fields
from cmlm.data import batches, pair_pipelines
from cmlm.data.corpus import Corpus
from cmlm.data.settings import DataConfig
from cmlm.data.span_masking import SpanConfig
from cmlm.errors import UserError
from cmlm.objectives.mirror import MirrorConfig


def mirror_config(**values) -> MirrorConfig:
    config = MirrorConfig(weight=1.0, **values)
    config.train_data = config.train_data.replace(input_path="a", global_batch_size=2)
    return config


@pytest.mark.parametrize(
    "values, message",
    [
        # A temperature of infinity, below 0, and 0.
        ({"scale": 0.0}, "task.mirror.scale is 0.0; allowed: above 0"),
        ({"scale": -5.0}, "task.mirror.scale is -5.0; allowed: above 0"),
        ({"scale": float("inf")}, "task.mirror.scale is inf; allowed: above 0"),
        ({"scale": float("nan")}, "task.mirror.scale is nan"),
        (
            {"span": SpanConfig(length=5, shortest=5)},
            "task.mirror.span.shortest is 5; allowed: above task.mirror.span.length, 5",
        ),
        ({"span": SpanConfig(length=-1)}, "span.length is -1; allowed: at least 0"),
        (
            {"span": SpanConfig(unit="words")},
            "unit is 'words'; allowed: characters, tokens",
        ),
        ({"mask_rate": -0.1}, "mask_rate is -0.1; allowed: 0 to 1"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(UserError, match=message):
        fields.check(mirror_config(**values), "task.mirror.")
    fields.check(mirror_config(span=SpanConfig(length=0, shortest=0)))


def test_no_string_becomes_all_mask(tmp_path):
    tokenizer = word_piece(tmp_path, "cat dog sat mask [ ] ##s".split())
    # Words that are all there is, text that spells a mask, and a longer string.
    texts = ["cat", "dogs", "[MASK]", "cat sat cat sat cat sat"]
    (tmp_path / "text.txt").write_text("\n".join(texts))
    feed = batches.Feed(
        DataConfig(input_path="-", global_batch_size=4, seq_length=16),
        tokenizer,
        Corpus({"": [str(tmp_path / "text.txt")]}, {"": 4}),
        4,
        "all",
    )
    span = SpanConfig(length=3, unit="tokens", shortest=4)
    (batch,) = pair_pipelines.copies(feed, span, mask_rate=0.2)
    n_masks = 0
    for side in ("source", "target"):
        ids = batch[f"{side}_word_ids"].numpy()
        # [PAD] to [MASK] are the first five.
        assert (ids > tokenizer.mask_id).any(axis=1).all(), ids
        n_masks += np.sum(ids == tokenizer.mask_id)
    assert n_masks > 0
    spelt = tokenizer.encode(tf.constant(["[MASK]"]), 16).to_list()
    assert tokenizer.mask_id not in spelt[0] and len(spelt[0]) == 5
