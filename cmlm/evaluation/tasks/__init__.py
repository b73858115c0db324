"""One module for each family of tasks."""
