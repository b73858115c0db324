"""The encoder, its training layers, and the readers of weights."""
