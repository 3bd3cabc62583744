"""Options of commands: their declarations, the types of their values, and where defaults come from."""
