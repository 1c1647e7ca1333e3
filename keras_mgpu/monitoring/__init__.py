"""What devices and host do while a model trains."""
