"""Whether one model can draft for another, and at what cost."""
