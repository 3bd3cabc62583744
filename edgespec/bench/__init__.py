"""Measuring: the speed of modes, the speed and quality of files, and whether a drafter is worth it."""

WINDOW, LEAST_WINDOW = 512, 8  # tokens of a text that are read at a time: by default, and at least
