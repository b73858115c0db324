"""From strings to token ids, by an encoder's vocabulary, in training and in exports."""
