"""Finding translations and hard negatives in texts that do not fit into memory."""
