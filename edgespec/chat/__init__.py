"""A conversation, independent of the front end."""
