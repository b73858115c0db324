"""From vectors to translation pairs and hard negatives, for texts of any size."""
