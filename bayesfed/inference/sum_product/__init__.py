"""sum_product."""
