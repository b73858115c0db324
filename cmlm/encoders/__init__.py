"""From a checkpoint or an export to vectors: opening, encoding, PCR, pruning."""
