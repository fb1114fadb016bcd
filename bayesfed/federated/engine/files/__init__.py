"""Snapshots and records on disk."""
