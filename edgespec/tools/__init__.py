"""Tools that a model may call: the formats of calls."""
