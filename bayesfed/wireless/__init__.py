"""Devices on a radio network: what they compute and send with, what a round costs them, and what
they can afford.

From the bottom: `devices`, one or a fleet; `energy`, the seconds and joules of a round; `optimum`
and `allocation`, plans within a deadline and an energy budget; `power_control` and `channels`, the
analogue channel that adds up what clients send.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
