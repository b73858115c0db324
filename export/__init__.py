"""What leaves the project: SavedModels that other people's programs load."""
