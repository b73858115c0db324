"""From vectors to scores and reports; knows `encode`, not where vectors come from."""
