"""Local work: what clients compute between receiving a message and sending their payload.

In the order of their imports: `optimisers` (values), `descent` (the training loop),
`batch_norm` and `model_sizes` (what a local step does about running statistics,
partial messages and models of several sizes), `local_work` (`Training`, which puts them together).
"""
