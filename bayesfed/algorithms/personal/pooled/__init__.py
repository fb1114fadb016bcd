"""Partial pooling: parameters of each client's own under a normal population that all clients share
and learn.
"""
