"""Drafters: different ways to predict the target's next tokens, with one small protocol."""
