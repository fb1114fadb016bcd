"""Regressions by formula over sites: a formula is read and checked (`formulas`), frames become rows
(`tables`, `design`), and rows a Pyro model (`families`, `model`).
"""
