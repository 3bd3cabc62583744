"""Tools: reads them from requests, describes them to the model, and finds their calls in answers."""
