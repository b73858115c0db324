"""From dumps to training text: what `python -m cmlm.prepare` does beyond splitting."""
