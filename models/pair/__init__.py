"""Check if one model can draft for another, and at what cost."""
