"""What loading a model takes, and what fits."""
