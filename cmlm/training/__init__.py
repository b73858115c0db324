"""From text to checkpoints: a run's inputs, steps, gradients, validation, reports."""
