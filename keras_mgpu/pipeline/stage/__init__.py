"""One stage as functions: traced, differentiated, cut and compiled."""
