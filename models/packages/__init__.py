"""Models in wheels of the Python package index."""
