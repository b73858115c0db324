"""The WordPiece learner gives tf-text's vocabularies, token for token.

Both learn at the same threshold; tf-text's own search stops at 10 by default.
"""

import random

import pytest
from tensorflow_text.tools.wordpiece_vocab import (
    wordpiece_tokenizer_learner_lib as tf_text_learner,
)

from cmlm.vocabulary.wordpiece import Learner

RESERVED = ["[PAD]", "[UNK]", "q", "##q", "the"]


def words(kind: str) -> list[tuple[str, int]]:
    """Distinct words with counts, of syllables or of letters."""
    draw = random.Random(kind)
    if kind == "syllables":
        parts = ["ka", "lo", "mi", "tun", "e", "s", "ing", "ed", "\u00fc", "\u4e2d"]
        longest = 6
    else:
        parts, longest = list("abcdefghij\u0431\u0432"), 12
    found = {"the": 500, "q": 3, "x" * 50: 2}
    for _ in range(800):
        word = "".join(draw.choices(parts, k=draw.randint(1, longest)))
        found[word] = found.get(word, 0) + int(draw.paretovariate(0.8))
    return sorted(found.items())


@pytest.mark.parametrize("kind", ["syllables", "letters"])
@pytest.mark.parametrize("max_characters", [9, 1000])
def test_tokens_are_those_of_tf_text_at_any_threshold(kind, max_characters):
    counted = words(kind)
    learner = Learner(counted, RESERVED, max_characters)
    sizes = set()
    for threshold in (1, 2, 7, 40, 300):
        want = tf_text_learner.learn(
            counted,
            vocab_size=100,
            reserved_tokens=RESERVED,
            lower_thresh=threshold,
            upper_thresh=threshold,
            max_unique_chars=max_characters,
        )
        assert learner.learn(threshold) == want
        sizes.add(len(want))
    assert len(sizes) == 5


def test_by_hand():
    """`##ing` ends words four times, but no piece begins there: one does at the `a`."""
    counted = [("walking", 2), ("talking", 2), ("walk", 1)]
    tokens = Learner(counted, [], 100).learn(3)
    letters = list("agiklntw")
    assert tokens[:8] == letters
    assert set(tokens[8:]) == {f"##{letter}" for letter in letters} | {"##alking"}


def test_a_piece_occurs_twice_whatever_the_count_of_a_word():
    """`##alking` occurs in two words; the other long suffixes in one."""
    once = ["walking", "talking", "zebra"]
    learner = Learner([(word, 18) for word in once], [], 100, frozenset(once))
    longer = {piece for piece in learner.learn(12) if len(piece.lstrip("#")) > 1}
    assert longer == {"##alking"}
    # A second occurrence in a larger language counts too.
    learner = Learner(
        [("zebra", 18), ("walking", 18), ("king", 1)], [], 100, frozenset(once)
    )
    assert "##king" not in learner.learn(12)
    learner = Learner([("zebra", 18), ("xzebra", 1)], [], 100, frozenset(once))
    assert "##zebra" not in learner.learn(12) and "zebra" not in learner.learn(12)
