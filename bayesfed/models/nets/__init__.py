"""nets."""
