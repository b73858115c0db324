"""The encoder, the layers it is trained with, and where weights come from."""
