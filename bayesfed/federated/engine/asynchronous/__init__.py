"""Asynchronous rounds in simulated time: `fed_buff` says what is run and what is on its way, and
`window` takes one step of the server.
"""
