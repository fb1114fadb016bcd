"""What a server makes of the clients' payloads.

Views and servers: `views` (how payloads fit into the model), `servers` (what their sum does to the
state), `beside` (leaves of one's own beside those of another server). Robust rules: `reducers`
(`Keep`), `changes` (norms and clipping of single updates), `robust` (a rule in place of the sum),
`rules` (rules by entry), `selection` (rules by client).
"""
