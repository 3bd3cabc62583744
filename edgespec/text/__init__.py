"""Text for users."""
