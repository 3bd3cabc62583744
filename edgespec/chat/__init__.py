"""A conversation, whatever front end shows it."""
