"""Partition plans, schedules and timelines as plain data. Needs only the standard library."""
