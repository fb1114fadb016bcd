"""Methods that the papers compare with: FedAvg, FedProx, and those that compress the up-link or
train sub-models.

A folder holds a method with parts of its own: `sparse` (proximal steps), `stc` (its ternary
server), `split_mix` (its ensembles).
"""
