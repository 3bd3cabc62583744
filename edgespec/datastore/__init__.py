"""Texts on disk from which drafters retrieve."""
