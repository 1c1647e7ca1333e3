"""A split model that trains: `PipelineSplit` and everything below it."""
