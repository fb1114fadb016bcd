"""random_fields."""
