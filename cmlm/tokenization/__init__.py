"""Tokenizers: strings to token ids, by the rules and the vocabulary of an encoder."""
