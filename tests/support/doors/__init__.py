"""Wrong calls of every public callable, generated from its signature."""
