"""Bundled draft heads, and tables for token recycling; the card next to each describes its origin."""
