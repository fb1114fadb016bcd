"""Clustered inference: a sparse network rewritten so that only what is active is multiplied."""
