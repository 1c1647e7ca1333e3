"""Checkpoints: when to save, what to keep, and how they are written and read."""
