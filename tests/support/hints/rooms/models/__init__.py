"""Cases of `bayesfed.models`."""
