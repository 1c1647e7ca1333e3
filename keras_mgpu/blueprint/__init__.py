"""What runs where and in which order, as plain data: needs nothing but the standard library."""
