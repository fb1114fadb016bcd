"""Methods that the papers compare with: FedAvg, FedProx, and those that compress the up-link or
train sub-models.

A folder holds methods with parts of their own: `sparse` (proximal steps), `drift` (corrections),
`ensembles`, `split_mix` (several networks in one state).
"""
