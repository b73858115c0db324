"""Fine-tuning of all weights of an encoder and a new head on a labelled task."""
