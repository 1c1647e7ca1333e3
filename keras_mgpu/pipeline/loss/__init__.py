"""The end of the pipeline: the compiled loss and metrics, one micro-batch at a time."""
