"""Draft-length policies, which decide how much to draft from measured costs and acceptance rates."""
