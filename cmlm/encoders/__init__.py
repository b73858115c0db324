"""Trained encoders: opening, encoding, PCR and vocabulary pruning."""
