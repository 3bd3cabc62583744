"""What a drafter may read of the target in place of the input of a layer."""

LAST_OUTPUT = -1
"""What flows out of the last layer, before the last norm: models with an MTP block give it."""
FINAL_STATE = -2
"""The same after that norm: all models give it, in passes in which every token has a row of logits."""
