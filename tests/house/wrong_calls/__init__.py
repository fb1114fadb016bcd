"""Tables of wrong calls, one a room of the package."""
