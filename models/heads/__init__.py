"""Bundled draft heads; the card next to each describes its origin."""
