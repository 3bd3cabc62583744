"""The output of commands: rows, tables and statistics."""
