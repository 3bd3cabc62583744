"""The engine of another machine: what chats and batches ask of a worker, over HTTP (`edgespec serve`)."""
