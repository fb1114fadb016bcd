"""Elastic width: the hidden channels of any network, sorted by norm, so that its leading ones are a narrower network."""
