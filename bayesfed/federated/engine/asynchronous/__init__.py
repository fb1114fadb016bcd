"""Asynchronous rounds in simulated time: `fed_buff` says what is run, `flights` what is on its way,
and `window` takes one step of the server.
"""
