"""What all packages share: arguments, units, files, logs, the system. It imports errors and model only."""
