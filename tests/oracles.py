"""Independent numpy versions of what the project computes, and toy objects for it.

Nothing here calls the code under test, except to read the weights of a model.
"""

import numpy as np
from scipy.special import erf


def gelu(x):
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def unit(vectors):
    """The vectors [..., dim] at length 1."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x, gamma, beta, epsilon=1e-12):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def weights_by_name(layer) -> dict[str, np.ndarray]:
    """Weights of a Keras layer in float64, by name without the layer's own prefix."""
    return {
        weight.name.split(":")[0].removeprefix(f"{layer.name}/"): weight.numpy().astype(
            np.float64
        )
        for weight in layer.weights
    }


def bert(weights, ids, mask, num_layers, dense=None, type_ids=None):
    """BERT's encoder, token by token, one row at a time: [batch, seq (+ dense), dim].

    Args:
        weights: from `weights_by_name(encoder)`.
        ids: int [batch, seq]; mask: [batch, seq].
        num_layers: Transformer layers.
        dense: float [batch, n, dim], vectors that join the tokens after padding, at the
            last n positions of the position table.
        type_ids: int [batch, seq], without dense vectors; zeros if left out.
    """
    table = weights["bert/word_embeddings/embeddings"]
    positions = weights["bert/position_embedding/embeddings"]
    types = weights["bert/type_embeddings/embeddings"]
    rows = []
    for row, keep in zip(np.asarray(ids), np.asarray(mask)):
        index = len(rows)
        x = table[row] + positions[: len(row)]
        if dense is not None:
            x = np.concatenate([x, dense[index] + positions[-dense.shape[1] :]])
            keep = np.concatenate([keep, np.ones(dense.shape[1])])
        x = x + (types[0] if type_ids is None else types[np.asarray(type_ids)[index]])
        x = layer_norm(
            x,
            weights["bert/embeddings/layer_norm/gamma"],
            weights["bert/embeddings/layer_norm/beta"],
        )
        for number in range(num_layers):
            x = _block(weights, f"bert/transformer/layer_{number}/", x, keep)
        rows.append(x)
    return np.stack(rows)


def _block(weights, at, x, keep):
    def project(name):
        kernel = weights[f"{at}self_attention/{name}/kernel"]
        return (
            np.einsum("td,dhk->htk", x, kernel)
            + (weights[f"{at}self_attention/{name}/bias"][:, None])
        )

    query, key, value = project("query"), project("key"), project("value")
    scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
    scores = np.where(np.asarray(keep)[None, None] > 0, scores, -1e9)
    mixed = np.einsum(
        "htk,hkd->td",
        softmax(scores) @ value,
        weights[f"{at}self_attention/attention_output/kernel"],
    )
    x = layer_norm(
        x + mixed + weights[f"{at}self_attention/attention_output/bias"],
        weights[f"{at}self_attention_layer_norm/gamma"],
        weights[f"{at}self_attention_layer_norm/beta"],
    )
    inner = gelu(
        x @ weights[f"{at}intermediate/kernel"] + weights[f"{at}intermediate/bias"]
    )
    return layer_norm(
        x + inner @ weights[f"{at}output/kernel"] + weights[f"{at}output/bias"],
        weights[f"{at}output_layer_norm/gamma"],
        weights[f"{at}output_layer_norm/beta"],
    )


def pool(tokens, mask, mode):
    """One row at a time, over its real tokens only."""
    rows = []
    for row, keep in zip(tokens, np.asarray(mask)):
        real = row[keep > 0]
        rows.append({"mean": real.mean(0), "max": real.max(0), "cls": row[0]}[mode])
    return np.stack(rows)


def project_views(networks, vectors):
    """P(v): `networks` is a list of [(kernel, bias)] * 3, the identity comes first."""
    views = [vectors]
    for layers in networks:
        x = vectors
        for i, (kernel, bias) in enumerate(layers):
            x = x @ kernel + bias
            if i < 2:
                x = np.maximum(x, 0)
        views.append(x)
    return np.stack(views, axis=1)


def masked_lm_loss(head, table, sequence, positions, labels, weights):
    """Summed cross-entropy of masked words, and how many are right."""
    loss = right = 0.0
    for row in range(len(labels)):
        for position, label, weight in zip(positions[row], labels[row], weights[row]):
            x = sequence[row, position]
            x = gelu(x @ head["transform/dense/kernel"] + head["transform/dense/bias"])
            x = layer_norm(
                x, head["transform/LayerNorm/gamma"], head["transform/LayerNorm/beta"]
            )
            logits = x @ table.T + head["output_bias/bias"]
            loss -= weight * np.log(softmax(logits)[label])
            right += weight * (logits.argmax() == label)
    return loss, right


def lamb_step(w, m, v, g, step, lr, beta_1, beta_2, epsilon, decay, adapt=True):
    """One LAMB update (You et al., 2019, algorithm 2) of one variable; step from 1."""
    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * g * g
    update = (m / (1 - beta_1**step)) / (
        np.sqrt(v / (1 - beta_2**step)) + epsilon
    ) + decay * w
    ratio = 1.0
    if adapt:
        w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(update)
        ratio = w_norm / u_norm if w_norm > 0 and u_norm > 0 else 1.0
    return w - lr * ratio * update, m, v


def additive_margin_softmax(
    queries, candidates, positives, excluded, margin, scale, with_positive=True
):
    """Loss of every query, one query at a time, straight from the formula."""
    losses = []
    for i, query in enumerate(queries):
        positive = np.exp(scale * (query @ candidates[positives[i]] - margin))
        negatives = sum(
            np.exp(scale * query @ candidate)
            for j, candidate in enumerate(candidates)
            if j != positives[i] and not excluded[i, j]
        )
        denominator = negatives + positive if with_positive else negatives
        losses.append(-np.log(positive / denominator))
    return np.array(losses)


def known_texts(source, target, *candidates) -> list[np.ndarray]:
    """For each array of candidates, which of them are no negatives of each pair.

    These are the texts of all pairs that share a text with the pair.

    Args:
        source, target: the texts of the pairs, as hashes [rows].
        candidates: hashes, [n] each.
    """
    pairs = [*map(set, zip(source, target, strict=True))]
    known = [set().union(*(pair for pair in pairs if pair & own)) for own in pairs]
    return [
        np.array([[text in texts for text in one] for texts in known])
        for one in candidates
    ]


def cosent(cosines, scores, scale):
    """One term for every two pairs of which the first has the higher score."""
    terms = [
        np.exp(scale * (cosines[j] - cosines[i]))
        for i in range(len(scores))
        for j in range(len(scores))
        if scores[i] > scores[j]
    ]
    return np.log(1 + np.sum(terms))


def misad_loss(part, rest, whole, released):
    """Mean squared difference of E_w + E_R and E_S, one row at a time."""
    losses = []
    for w, r, s in zip(part, rest, whole):
        w, r, s = (x / np.linalg.norm(x) for x in (w, r, s))
        total = w + r
        if released:
            total = total / np.linalg.norm(total)
        losses.append(np.mean((total - s) ** 2))
    return np.array(losses)


def ngram_scores(sentences, longest, released):
    """The PMI of every n-gram of two words or more, straight from the definition.

    Args:
        sentences: lists of words.
        longest: words of the longest n-gram.
        released: the published code's form.
    """

    def occurrences(n):
        return [tuple(s[i : i + n]) for s in sentences for i in range(len(s) - n + 1)]

    words = occurrences(1)
    scores = {}
    for n in range(2, longest + 1):
        found = occurrences(n)
        for ngram in set(found):
            count = found.count(ngram)
            units = [words.count((word,)) for word in ngram]
            if released:
                value = np.log(count) - np.sum(np.log(units))
            else:
                shares = np.array(units) / len(words)
                value = (np.log(count / len(words)) - np.sum(np.log(shares))) / n
            scores[" ".join(ngram)] = value
    return scores
