"""Indexes of texts, which find earlier occurrences of tokens and the tokens that followed."""
