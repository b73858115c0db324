"""Scoring of sentence vectors; knows `encode`, not where vectors come from."""
