"""Encoders for tests of the evaluation: small, exact, and they remember."""

import numpy as np


class WordCounts:
    """Vectors of a text by its words and their order.

    Attributes:
        asked: the sentences it was given, in all calls.
    """

    def __init__(self, dim=12):
        self.asked, self._dim = [], dim

    def encode(self, sentences, language=""):
        self.asked += sentences
        rows = np.zeros([len(sentences), self._dim], np.float32)
        for row, text in zip(rows, sentences, strict=True):
            for place, word in enumerate(text.lower().split()):
                row[sum(word.encode()) % self._dim] += 1 + 0.1 * place
        return rows


class Table:
    """Vectors from a table: {sentence: vector}."""

    def __init__(self, table):
        self._table = table

    def encode(self, sentences, language=""):
        return np.array([self._table[text] for text in sentences], np.float32)


class Hashed:
    """An encoder of unrelated texts: a random vector of each text."""

    seq_length, info = None, {}

    def __init__(self, dim):
        self.dim = dim

    def encode(self, texts, **_):
        rows = [hashed(text, self.dim) for text in texts]
        return np.array(rows, np.float32).reshape(-1, self.dim)


def hashed(text, dim):
    """The vector of a text by `Hashed`, float64 [dim]."""
    return np.random.default_rng(list(text.encode())).normal(size=dim)
