"""Options of commands: declarations, types of values, and sources of defaults."""
