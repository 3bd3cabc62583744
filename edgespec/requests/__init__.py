"""Requests in the words of clients, from rows of a batch and bodies of the server, read into `settings.Request`.

Every format is converted to the fields of chats and completions, whose names and values are checked here: which fields
are known (`known_fields.py`), how each is read (`fields.py`), messages with images and documents, settings of answers.
"""
