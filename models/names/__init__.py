"""The names of models, and the files that they refer to."""
