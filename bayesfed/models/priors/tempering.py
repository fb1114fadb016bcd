"""The temperature of a likelihood that leaves it open: the one that is given, or one by the number
of rows for each weight.
"""

from __future__ import annotations

from dataclasses import is_dataclass, replace

from bayesfed.errors import ArgumentError, PriorError
from bayesfed.errors.checks import SCALE, check
from bayesfed.models.likelihoods.rows import Likelihood

# Default temperature, in rows for each weight.
ROWS_A_WEIGHT = 0.1


def tempered(
    likelihood: Likelihood,
    temperature: float | str | None,
    observations: int | None,
    weights: int,
    *,
    where: str,
) -> Likelihood:
    """Return the likelihood with the temperature that holds, or with which "auto" begins.

    Parameters
    ----------
    likelihood
        The likelihood; one that has a temperature keeps it.
    temperature
        What is asked for: a number, or "auto" or None for the default, a tenth of the number of
        rows for each weight, at most 1.
    observations, weights
        Numbers of rows of all clients, which only the default asks for, and of weights with a
        prior.
    where
        The method, for errors.

    Raises
    ------
    ArgumentError
        If the temperature is no positive number, the likelihood has one already, or the number of
        rows is not known.
    PriorError
        If the likelihood is no dataclass, which could be copied with another temperature.
    """
    own = likelihood.temperature
    if temperature is not None and own is not None:
        raise ArgumentError(
            f"{where}, temperature",
            "one temperature",
            f"{temperature!r} and {own} of the likelihood",
            "Categorical(), which leaves it open",
        )
    if own is not None:
        return likelihood
    if temperature is None or temperature == "auto":
        temperature = min(1.0, ROWS_A_WEIGHT * needed(observations, where) / weights)
    check(f"{where}, temperature", temperature, SCALE)
    if not is_dataclass(likelihood):
        raise PriorError(
            "likelihood",
            "a temperature, or a dataclass",
            type(likelihood).__name__,
            "a `temperature` of 1.0",
        )
    return replace(likelihood, temperature=float(temperature))


def needed(observations: int | None, where: str) -> int:
    """Return the number of rows of all clients, which a network is begun with."""
    if observations is None:
        expected, hint = "the rows of all clients, for a network", "observations=len(train)"
        raise ArgumentError(f"{where}, observations", expected, "none", hint)
    return observations
