"""What a client minimises.

`likelihood` has the protocol `Objective`, the mean negative log likelihood and FedProx's term.
`weight_decay` adds decay to a likelihood, and `proximal_operators` has penalties without a
gradient, applied after a gradient step.
"""
