"""Cases of `bayesfed.data`."""
