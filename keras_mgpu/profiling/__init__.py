"""A profiled step, as a timeline and as a picture."""
