"""Requests in the words of clients, from rows of a batch and bodies of the server, read into `settings.Request`.

Every format is converted to the fields of chats and completions, whose names and values are checked here: which fields
are known (`known.py`), how each is read (`fields.py`), messages with images and documents, and settings of an answer.
"""
