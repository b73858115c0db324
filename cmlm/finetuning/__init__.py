"""Fine-tuning an encoder whole, head and all, for a task with labels."""
