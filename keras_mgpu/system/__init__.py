"""What a process runs on: devices, other workers, files and the terminal."""
