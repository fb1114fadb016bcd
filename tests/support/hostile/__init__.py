"""Hostile clients, and messages that a decoder must refuse.

From the bottom: `mutations`, `bombs` and `sections` make messages that are damaged or that promise
too much; `pool` and `turn` put a hostile client between the clients and the server, `cases` lists
what it does, `verdict` judges each case; `byzantine` lies in valid messages, `canaries` looks for
data that leak.
"""
