"""The loop of every iterative method: sweeps until the messages settle."""

from __future__ import annotations

import math
from collections.abc import Callable

from tqdm import tqdm

from bayesfed.inference.sum_product.methods.outcome import Settings

# Sweeps after which a run that made no progress is damped, and what is progress: the smallest
# change falls by this factor.
PATIENCE, PROGRESS = 100, 0.9
SHARES = (0.5, 0.75, 0.9)


class Damper:
    """The share of the old message that is kept: as given, and more once the messages oscillate.

    Parameters
    ----------
    share
        Share at first.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._least, self._since = math.inf, 0

    def look(self, sweep: int, residual: float) -> None:
        """Raise the share if the smallest change so far has not fallen for `PATIENCE` sweeps."""
        if residual < PROGRESS * self._least:
            self._least, self._since = residual, sweep
        elif sweep - self._since >= PATIENCE:
            self.share = next((share for share in SHARES if share > self.share), self.share)
            self._least, self._since = residual, sweep


def settle(
    step: Callable[[int], float], settings: Settings, every: int = 4, damper: Damper | None = None
) -> tuple[int, float]:
    """Make sweeps until messages change by no more than the tolerance, or there were
    `settings.max_sweeps`.

    Shows a progress bar if it takes longer than two seconds and the settings allow one.

    Parameters
    ----------
    step
        ``step(count)`` makes that many sweeps and returns the change of the last one in nats.
    settings
        Tolerance and largest number of sweeps.
    every
        The change is compared with the tolerance after sweeps 1 and 2, and then after every
        `every`-th.
    damper
        Told the change each time; `step` reads its share.

    Returns
    -------
    Number of sweeps and the last change in nats; (0, inf) if `settings.max_sweeps` is 0.
    """
    sweep, residual = 0, math.inf
    bar = tqdm(
        total=settings.max_sweeps,
        desc="message passing",
        unit="sweep",
        delay=2.0,
        leave=False,
        disable=settings.hide_bar,
    )
    while sweep < settings.max_sweeps and not residual <= settings.tol:
        stop = sweep + 1 if sweep < 2 else (sweep // every + 1) * every
        stop = min(stop, settings.max_sweeps)
        residual = step(stop - sweep)
        if damper is not None:
            damper.look(stop, residual)
        bar.update(stop - sweep)
        bar.set_postfix(change=f"{residual:.1e}", refresh=False)
        sweep = stop
    bar.close()
    return sweep, residual
