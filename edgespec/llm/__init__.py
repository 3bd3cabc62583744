"""The interface of all models, in this process or elsewhere: a description, notes, and answers as streams of events."""
