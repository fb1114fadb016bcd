"""Likelihoods of targets, of networks and of regressions alike: `classes`, `reals`, `counts`,
`survival`; those made of others in `joined`. All begin with `rows`.
"""
