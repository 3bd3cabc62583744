"""Where models come from, and whether two fit together."""
