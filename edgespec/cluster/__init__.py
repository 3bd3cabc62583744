"""The nodes of a Ray cluster as members of a fleet: an actor with a worker on each node, or for each GPU."""
