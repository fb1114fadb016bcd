"""What a client minimises.

`objectives` has the protocol `Objective`, the negative log likelihood and FedProx's term. `weight_decay` adds decay to a likelihood, and
`proximal_operators` has penalties without a gradient, applied after a gradient step.
"""
