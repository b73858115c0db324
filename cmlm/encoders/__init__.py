"""Trained encoders: opening them, encoding with them, PCR and vocabulary pruning."""
