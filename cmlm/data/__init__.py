"""Training data: its files and formats, and tf.data pipelines to batches of ids."""
