"""Options of commands: how they are declared, what their values look like, and where defaults come from."""
