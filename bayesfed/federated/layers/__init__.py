"""Layers that methods are made with: `exchange` of changes in both directions, `feedback` of coding
errors, running `statistics`.

Those that stand for a wrapper, such as `private`, are in `bayesfed.algorithms.wrappers`.
"""
