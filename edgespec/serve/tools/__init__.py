"""Tools of requests: reads them, and describes them to the model."""
