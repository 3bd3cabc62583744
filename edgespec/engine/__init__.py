"""The generation engine: scheduling, drafting, forward passes of the target and verification."""
