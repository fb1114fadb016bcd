"""What a server makes of the clients' payloads.

Views and servers: `views` (how payloads fit into the model), `servers` (what their sum does to the
state), `server_optimisers`. Robust rules: `reducers` (what updates are added to besides sums),
`changes` (norms and clipping of single updates), `rules` (a rule in place of the sum; rules by
entry), `selection` (rules by client).
"""
