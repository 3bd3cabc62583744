"""From settings to answers: models are loaded, in this process or one of their own, and requests answered."""
