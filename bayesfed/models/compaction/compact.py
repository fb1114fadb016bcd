"""Clustered inference: run a transmitted sparse model on its active weights only.

`compact` drops units that do nothing (`pruned`), chooses a form for each layer (`forms`) and runs
consecutive linear layers as one chain (`rewriting`). Results differ from those of the network at
the same parameters only by the rounding of sums.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import checked
from bayesfed.models.calling import check_resolved
from bayesfed.models.compaction.pruned import is_layer
from bayesfed.models.compaction.rewriting import Rewriter
from bayesfed.models.modules import is_plain
from bayesfed.trees import check, frozen, parameters, shapes


class Compact(nn.Module):
    """A network rewritten for inference, called as the network is, on inputs ``(B, ...)`` or on
    named ones; gradients are not recorded.

    Parameters
    ----------
    net
        The rewritten network, in evaluation mode.
    forms
        Form of each layer, by its name in the original network:
        ``"csr 60 x 784 of 256 x 784, 1.0%"``, with size and density after pruning.
    """

    def __init__(self, net: nn.Module, forms: Mapping[str, str]) -> None:
        super().__init__()
        self.net, self.forms = net, dict(forms)
        self.eval()

    def forward(self, inputs: Any = None, *more: Any, **named: Any) -> Any:
        """Return what the network returns, without gradients."""
        with torch.no_grad():
            return self.net(**named) if inputs is None else self.net(inputs, *more, **named)


@checked()
def compact(
    net: nn.Module, parameters: Mapping[str, Tensor], sample: Tensor | None = None
) -> Compact:
    """Rewrite a network for inference at sparse parameters.

    Parameters
    ----------
    net
        Network, never changed. Its linear layers and ungrouped 2-D convolutions are rewritten
        wherever they are children of an `nn.Sequential` or of a class that is not PyTorch's own;
        units are dropped within an `nn.Sequential`. All other modules, and modules with hooks, run
        unchanged, at these parameters and in evaluation mode. A class that reads the weights of its
        layers directly, or iterates over an `nn.Sequential`, cannot be rewritten and fails when
        called.
    parameters
        All parameters of the network by name, finite, with zeros for inactive weights, and buffers
        if there are any: ``Model.parameters``. Frozen ones that are not among them are the
        network's own.
    sample
        Typical inputs of the network, some hundred rows: every form, and both memory layouts of
        pictures, are timed on them and the fastest is used. Without a sample, the cost rule of
        `bayesfed.models.compaction.forms` decides, and pictures stay as they are.

    Raises
    ------
    ArgumentError
        If a parameter is missing, unknown, of another shape or not finite.

    Notes
    -----
    Inputs must be finite and have a batch dimension. Dropped entries are never multiplied, so an
    infinite input would not give NaN.
    """
    check_resolved("compact", net)
    twin = _at(net, parameters).eval()
    seen = {} if sample is None else _inputs(twin, sample)
    rewriter = Rewriter(seen)
    with torch.no_grad():
        return Compact(rewriter.rewritten("", twin), rewriter.forms)


def _at(net: nn.Module, values: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a network at given parameters."""
    try:
        buffers = {name: value for name, value in net.named_buffers() if name in values}
        every = {**frozen(net), **values}
        check(every, shapes({**parameters(net), **buffers}), where="compact")
    except UpdateError as error:
        raise ArgumentError(str(error)) from None
    twin = copy.deepcopy(net).requires_grad_(False)
    for name, value in [*twin.named_parameters(), *twin.named_buffers()]:
        if name in values:
            value.copy_(values[name])
    return twin


def _inputs(net: nn.Module, sample: Tensor) -> dict[int, Tensor]:
    """Return the input of every module when the network runs on a sample, by the module's id."""
    seen: dict[int, Tensor] = {}

    def note(module: nn.Module, given: tuple[object, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            # A copy, since activations that work in place would change it.
            seen.setdefault(id(module), given[0].clone())

    handles = [
        module.register_forward_pre_hook(note)
        for module in net.modules()
        if is_layer(module) or is_plain(module, nn.Sequential)
    ]
    try:
        with torch.no_grad():
            net(sample)
    finally:
        for handle in handles:
            handle.remove()
    return seen
