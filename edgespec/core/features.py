"""What draft heads read of the target, and how much of it at once."""

HEAD_BATCH = 64
"""Tokens of a head's pass: every one of them is an output, with a row of logits."""
MOST_UNREAD = 2**29
"""Bytes that a head keeps of what it has not read yet, of all sequences together."""
MOST_EMBEDDINGS = 4096
"""Tokens of which a Hydra head keeps the target's embedding as float32."""
# In place of the number of a layer, whose input is read:
LAST_OUTPUT = -1
"""What flows out of the last layer, before the last norm: models with an MTP block give it."""
FINAL_STATE = -2
"""The same after that norm: all models give it, in passes in which every token has a row of logits."""
