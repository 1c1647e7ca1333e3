"""Checkpoints: when to save, what to keep, how they lie on disk, and how they are read back."""
