"""Draft heads for a target, trained on what it writes itself. PyTorch is loaded by some of these modules only."""
