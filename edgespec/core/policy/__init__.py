"""How much to draft: costs of forward passes, acceptance, and what follows from both."""
