"""A Keras model as layer calls, their costs, and stages."""
