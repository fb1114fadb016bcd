"""What clients keep between rounds: their memories, in tables, logs and files."""
