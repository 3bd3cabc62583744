"""Models of other machines, over HTTP (`edgespec serve`)."""
