"""Rooms of `bayesfed.algorithms.wrappers`."""
