"""How models write answers: content, reasoning and calls of tools, and readers of answers that arrive in pieces."""
