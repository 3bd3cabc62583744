"""Where tokens occurred before, and what came next there."""
