"""What federating any Pyro model and guide takes.

In this order: `program` (a model and guide run at given parameters); `families` (exponential
families in natural parameters); `layout` and `reading` (what the guide's parameters mean);
`tilted` (a client's objective); `natural` and `antithetic` (better steps); `fusion` (the rules);
`traced` and `posterior` (the result).
"""
