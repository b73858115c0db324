"""The training run: inputs, steps, gradients, checkpoints, validation and reports."""
