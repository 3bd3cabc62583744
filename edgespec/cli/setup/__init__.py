"""What commands do before their work: resolve, download and open models, open files, inspect the machine."""
