"""From text to the n-grams that mean more than their words, for `cmlm.ngrams`."""
