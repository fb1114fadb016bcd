"""The posterior of pooled rows from sums over sites: `traced` (a model at given unconstrained
values), `own` (a site's own latents), `asking` (what a site answers), `steps` (mode and Gaussian),
`points` (quasi-random numbers), `weighing` (importance weights and the verdict). Nothing here knows
of rounds.
"""
