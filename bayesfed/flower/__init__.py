"""Runs over a real network with Flower (extra ``flower``). Flower carries bytes and knows the
nodes; everything else is done by the engine.

From the bottom: `experiment`, what both sides load; `letters` and `messages`, what is sent; `site`,
one client, with `sockets` and `worker` for a client that stays alive; `roster` and `pool`, the
clients as the engine sees them; `client_app` and `server_app`, what Flower starts; `starting`, a
new app. A client app that only forwards bytes to its worker must start fast, so nothing is imported
before it is used.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
