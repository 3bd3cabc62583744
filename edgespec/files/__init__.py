"""Where edgespec keeps files, and how they are written whole."""
