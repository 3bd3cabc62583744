"""What all models are, wherever they run: a description, notes, and answers as streams of events."""
