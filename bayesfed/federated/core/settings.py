"""What a function says of its settings, by names that do not change with its variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])
# The attribute of a function that holds its settings.
SETTINGS = "__bayesfed_settings__"


def with_settings(**settings: object) -> Callable[[Function], Function]:
    """Return a decorator that lets a function say its settings.

    A snapshot holds the settings of a run by name, so that a run is not continued with others
    (`bayesfed.federated.engine.settings`). A function that an algorithm is made of closes over its
    settings, and the names of its variables are not for a file: here they are written out.

    Parameters
    ----------
    **settings
        Values by the names that files have.
    """

    def decorate(function: Function) -> Function:
        setattr(function, SETTINGS, dict(settings))
        return function

    return decorate


def settings_of_function(function: Callable[..., object]) -> Mapping[str, object] | None:
    """Return the settings that a function says, None if it says nothing of them."""
    settings: Mapping[str, object] | None = vars(function).get(SETTINGS)
    return settings
