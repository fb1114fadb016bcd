"""Published systems as recipes: each a function that returns an `Algorithm`."""

from bayesfed.algorithms.baselines.fed_avg import fed_avg
from bayesfed.algorithms.baselines.fed_prox import fed_prox
from bayesfed.algorithms.d_turbo_vbi import d_turbo_vbi

__all__ = ["d_turbo_vbi", "fed_avg", "fed_prox"]
