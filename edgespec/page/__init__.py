"""The page of `edgespec serve`: a chat in the browser, with the chats that the terminal has.

The routes are in `routes.py`. An answer is that of a `Session` (room `chat`) with a model of the server (`lent.py`).
`views.py` writes chats, messages and models as JSON for the page in `static/`.
"""
