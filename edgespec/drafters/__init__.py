"""Drafters: ways of predicting the target's next tokens, one file each, behind one small protocol."""
