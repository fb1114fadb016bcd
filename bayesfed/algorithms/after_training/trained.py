"""What methods after training are given: a trained network, and its parameters where they are not
its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import Role, shown
from bayesfed.errors.checks import check as check_role
from bayesfed.errors.nearness import nearest
from bayesfed.federated import Model
from bayesfed.trees import Tree, check, only, shapes, trainable

BY_NAME = Role(
    lambda value: (
        isinstance(value, Mapping)
        and all(isinstance(leaf, Tensor) and isinstance(name, str) for name, leaf in value.items())
    ),
    "tensors by name",
    "dict(net.named_parameters())",
)


def network_and_parameters(
    where: str, given: object, parameters: Mapping[str, Tensor] | None
) -> tuple[nn.Module, Tree]:
    """Return the network of a model, and a copy of the parameters that clients get.

    Parameters
    ----------
    where
        Name of the method, for errors.
    given
        A network or a `Model`.
    parameters
        Parameters, and buffers, in place of those of `given`; names that it lacks are the network's
        own.

    Raises
    ------
    ArgumentError
        If the model is none, or the parameters are not the network's: another name or shape, or a
        number that is not finite.
    """
    net, own = (given.net, given.parameters) if isinstance(given, Model) else (given, None)
    if not isinstance(net, nn.Module):
        raise ArgumentError(
            f"{where}, model", "a network or a Model", shown(given), "result.model of fed_avg"
        )
    chosen = own if parameters is None else parameters
    if chosen is None:
        return net, trainable(net)
    check_role(f"{where}, parameters", chosen, BY_NAME)
    # Tied parameters have several names, of which a state dict has all.
    known = {
        **dict(net.named_parameters(remove_duplicate=False)),
        **dict(net.named_buffers(remove_duplicate=False)),
    }
    if unknown := sorted(chosen.keys() - known.keys()):
        raise ArgumentError(
            f"{where}, parameters",
            "names of the network's parameters",
            repr(unknown[0]),
            nearest(unknown[0], known, 2) or " or ".join(list(known)[:3]),
        )
    try:
        check(chosen, shapes(only(known, chosen)), where=f"{where}, parameters")
    except UpdateError as error:
        raise ArgumentError(error.complaint or str(error)) from None
    return net, {name: leaf.detach().clone() for name, leaf in chosen.items()}
