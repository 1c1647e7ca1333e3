"""A profiled training step, as numbers, as a timeline and as a picture."""
