"""Where edgespec keeps files, and how it writes them atomically."""
