"""Text as users read it."""
