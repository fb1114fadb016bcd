"""Cases of `bayesfed.algorithms`."""
