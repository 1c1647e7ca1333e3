"""Which device every layer asked for, which it got, and what that costs."""
