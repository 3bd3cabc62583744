"""Files of one model side by side: how fast, how large, and how far each is from a reference."""
