"""A server: models of this machine for clients that speak OpenAI's protocol."""
