"""Files of one model side by side: how fast, how large, and how far each is from a reference."""

WINDOW, LEAST_WINDOW = 512, 8  # tokens of a text that are read at a time, usually and at least
