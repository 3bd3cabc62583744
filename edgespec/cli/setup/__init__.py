"""What commands do before their work: models named, downloaded and opened, files opened, the machine looked at."""
