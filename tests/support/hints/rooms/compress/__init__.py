"""Rooms of `bayesfed.compress`."""
