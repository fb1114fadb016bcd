"""Posteriors that are sets or clouds of whole networks, and what they predict together.

`networks` has what they share and `Members`, a few given networks; `weight_clouds` Gaussians
through given networks (SWAG, FedBE); `dropout` passes with random masks; `consensus` the
interpolation between product and mean of the clients' predictions.
"""
