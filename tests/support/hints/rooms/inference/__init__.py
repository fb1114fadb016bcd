"""Cases of `bayesfed.inference`."""
