"""From token ids to sentence vectors: the encoder, its heads, readers of weights."""
