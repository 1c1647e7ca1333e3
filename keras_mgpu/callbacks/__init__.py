"""Keras callbacks, one class per file, for models with or without a strategy."""
