"""From an encoder and labels to predictions: all weights and a new head are trained."""
