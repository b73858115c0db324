"""The settings of a run: text, objectives, network, training; the papers' recipes."""
