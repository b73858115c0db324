"""The configuration of an experiment, and the recipes of the four papers."""
