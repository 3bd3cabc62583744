"""What users type to name a model, and the file that it means."""
