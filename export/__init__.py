"""From a checkpoint to SavedModels and folders that other programs load and serve."""
