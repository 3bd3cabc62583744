"""Speculative decoding measured on prompts: how many draft tokens are accepted, and what that saves."""
