"""The nodes of a Ray cluster as members of a fleet: an actor on each of them, or for each GPU, with its own worker."""
