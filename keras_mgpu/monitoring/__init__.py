"""What GPUs and host do while a model trains."""
