"""Speculative decoding measured on prompts: how many guesses are accepted, and what that saves."""
