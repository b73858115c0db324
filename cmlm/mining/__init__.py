"""Mines translation pairs and hard negatives from texts larger than memory."""
