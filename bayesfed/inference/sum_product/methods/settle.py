"""The loop of every iterative method: sweeps until the messages settle."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from bayesfed.inference.sum_product.methods.outcome import Settings


def settle(step: Callable[[int], float], settings: Settings, every: int = 4) -> tuple[int, float]:
    """Make sweeps until messages change by no more than the tolerance, or there were `settings.max_sweeps`.

    Shows a progress bar if it takes longer than two seconds and the settings allow one.

    Parameters
    ----------
    step
        ``step(count)`` makes that many sweeps and returns the change of the last one in nats.
    settings
        Tolerance and largest number of sweeps.
    every
        The change is compared with the tolerance after sweeps 1 and 2, and then after every `every`-th.

    Returns
    -------
    Number of sweeps and the last change in nats; (0, inf) if `settings.max_sweeps` is 0.
    """
    sweep, residual, start, bar = 0, math.inf, time.monotonic(), None
    while sweep < settings.max_sweeps and not residual <= settings.tol:
        stop = sweep + 1 if sweep < 2 else (sweep // every + 1) * every
        stop = min(stop, settings.max_sweeps)
        residual = step(stop - sweep)
        if bar is None and time.monotonic() - start > 2:
            from tqdm import tqdm

            bar = tqdm(total=settings.max_sweeps, initial=sweep, desc="message passing", unit="sweep", leave=False, disable=settings.hide_bar)
        if bar is not None:
            bar.update(stop - sweep)
            bar.set_postfix(change=f"{residual:.1e}")
        sweep = stop
    if bar is not None:
        bar.close()
    return sweep, residual
