"""General factor graphs: any cardinality, any arity.

`schedule` sorts the factors into batches that are updated together; `propagation` passes their
messages.
"""
