"""Tools: what a request says of them, how the model is told, and its calls out of the text of an answer."""
