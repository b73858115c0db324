"""Finds the n-grams of a text that mean more than their words, for `cmlm.ngrams`."""
