"""Models: their names, downloads, memory, and pairs of target and draft."""
