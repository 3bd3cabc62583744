"""The preparations of commands: resolve, download and open models, open files, inspect the machine."""
