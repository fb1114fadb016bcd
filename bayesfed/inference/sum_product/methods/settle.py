"""The loop every iterative method runs: sweeps until the messages settle, looking at the change now and then."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from bayesfed.inference.sum_product.methods.outcome import Settings


def settle(step: Callable[[int], float], settings: Settings, every: int = 4) -> tuple[int, float]:
    """Call ``step(count)``, which makes that many sweeps and returns the change of the last one, until it is small enough.

    Looks after sweeps 1, 2 and every `every`-th. Shows a progress bar if it takes longer than two seconds.

    Returns
    -------
    Sweeps made and the last change in nats; (0, inf) if `settings.max_sweeps` is 0.
    """
    sweep, residual, start, bar = 0, math.inf, time.monotonic(), None
    while sweep < settings.max_sweeps and not residual <= settings.tol:
        stop = sweep + 1 if sweep < 2 else (sweep // every + 1) * every
        stop = min(stop, settings.max_sweeps)
        residual = step(stop - sweep)
        if bar is None and time.monotonic() - start > 2:
            from tqdm import tqdm

            bar = tqdm(total=settings.max_sweeps, initial=sweep, desc="message passing", unit="sweep", leave=False)
        if bar is not None:
            bar.update(stop - sweep)
            bar.set_postfix(change=f"{residual:.1e}")
        sweep = stop
    if bar is not None:
        bar.close()
    return sweep, residual
