"""From vectors to scores and reports, for any object with a method `encode`."""
