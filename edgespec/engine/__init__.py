"""One step after the other: drafts, forward passes of the target, verification."""
