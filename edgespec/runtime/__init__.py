"""From settings to answers: load models, in this process or a worker process, and answer requests."""
