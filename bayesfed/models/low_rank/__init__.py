"""low_rank."""
