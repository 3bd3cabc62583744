"""The bundled pair: a small target and a smaller draft."""
