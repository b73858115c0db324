"""From training text to batches of token ids: files, formats, tf.data pipelines."""
