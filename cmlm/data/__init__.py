"""From text files to batches of token ids, all of it inside tf.data."""
