"""Regressions by formula over sites: frames become rows (`tables`, `design`), and rows a Pyro model
(`families`, `model`).
"""
