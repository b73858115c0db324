"""Exports: SavedModels and folders that other programs load."""
