"""Elastic width: the hidden channels of any network, sorted by norm, so that the leading ones are a
narrower network.

Lowest first: `axes`, `calls` and `rules` (what one operation does to channels); `graph` (the
result); `tracing` (finds it); then `sorting`, `shrinking` and `shares`, which use it.
"""
