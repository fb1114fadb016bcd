"""Cases of `bayesfed.running`."""
