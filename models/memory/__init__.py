"""The memory that loading a model takes, and what fits."""
