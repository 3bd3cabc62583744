"""The terminal: lines in and out, Ctrl-C, the plain chat."""
