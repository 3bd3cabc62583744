"""Ways of guessing what the target will say, one file each, all behind one small protocol."""
