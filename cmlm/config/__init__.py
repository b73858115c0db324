"""What an experiment is, and the recipes of the four papers."""
