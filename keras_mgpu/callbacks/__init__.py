"""Keras callbacks, one class a file, for models under any strategy or none."""
