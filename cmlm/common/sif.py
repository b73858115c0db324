"""SIF: weights tokens by their smooth inverse frequency, for a weighted mean.

Let p(w) be the frequency of a token in some text, a share of all its tokens. SIF (Arora
et al., 2017, https://openreview.net/forum?id=SyK00v5xx) gives the token the weight

    a / (a + p(w))

The mean of the vectors of a sentence then follows its rare words. The paper weights
whole words and finds the best a between 1e-4 and 1e-3. Here, the tokens of the
vocabulary are the words, and a = 1e-3.
"""

from __future__ import annotations

import numpy as np

_A = 1e-3


def weights(counts: np.ndarray) -> np.ndarray:
    """Computes the weights of tokens.

    Args:
        counts: the occurrences of each token, [vocab_size], not all 0.

    Returns:
        float32 [vocab_size], above 0 and at most 1; a token that does not occur has 1.
    """
    frequencies = counts / counts.sum()
    return (_A / (_A + frequencies)).astype(np.float32)
