"""Finding the hidden channels of any network: one symbolic trace and one forward of two examples.

    graph = channel_graph(net, images[:1])
    # 64 channels: rows of conv2.weight, its bias, columns of fc1.weight, 49 each
    graph.groups["conv2"]

At first each axis of each parameter is a set of channels of its own. Every operation then ties axes
(`rules`): a matrix's columns to its inputs, the terms of a sum to each other, a norm's scales to
the channels it normalises. Sets that include the network's inputs or outputs must not change; the
others are its hidden channels.

References
----------
AnycostFL (Li et al.), section III-B, for consecutive layers; here for any network that the rules
cover. The graph of dependent channels is an idea from structural pruning (Fang et al., "DepGraph",
2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.keys import Key, forked
from bayesfed.models.calling import check_resolved
from bayesfed.models.elastic.axes import Axes, Axis
from bayesfed.models.elastic.calls import COUNTED, Call, Network, Value
from bayesfed.models.elastic.graph import ChannelGraph, Group, Place
from bayesfed.models.elastic.rules import FUNCTIONS, METHODS, MODULES, Rule
from bayesfed.models.modules import evaluating, is_plain
from bayesfed.trees import shapes


@checked()
def channel_graph(net: nn.Module, sample: Tensor) -> ChannelGraph:
    """Find the channels that must be permuted and cut together.

    Supported operations, as modules or as functions, are linear layers, convolutions (of one group,
    or depthwise), batch and group norms, activations, dropout, pooling, flattening of (B, C, H, W)
    from C on, elementwise sums and products, and means over pictures. Inputs of the network may go
    through any operation. Tied parameters stay tied. Channels that no weight makes are left
    unchanged.

    Parameters
    ----------
    net
        Any module that `torch.fx` can trace and that takes one tensor. It is run once, in
        evaluation mode and without gradients, and left as it was.
    sample
        ``(B, ...)``, inputs as the network takes them; only their shape matters.

    Raises
    ------
    ArgumentError
        If the network cannot be traced or does not take the sample; if an operation on hidden
        channels is not supported; or if channels would not be leading entries of their axes
        (concatenation, grouped convolutions, reshapes to constants). The message names the
        operation and the module.
    """
    if not sample.ndim or not len(sample):
        raise ArgumentError(
            "channel_graph, sample",
            "a batch (B, ...), B > 0",
            tuple(sample.shape),
            "data.inputs[:1]",
        )
    check_resolved("channel_graph", net)
    with evaluating(net), forked(Key(0, "channel_graph")), torch.no_grad():
        try:
            traced = fx.symbolic_trace(net)
        except Exception as error:
            raise ArgumentError(
                "channel_graph, net",
                "a network whose steps do not depend on its inputs",
                error,
                "modules without branches",
            ) from error
        walk = _Walk(traced, net)
        # Two examples, since a batch of one could not be told from an axis of one channel. Only
        # shapes are read, but the tensors are real: with the meta device torch would import its
        # compiler first.
        walk.run(torch.stack([sample[0], sample[-1]]))
    return _channels(net, walk.network)


class _Walk(fx.Interpreter):
    """One forward pass that ties axes operation by operation."""

    def __init__(self, traced: fx.GraphModule, net: nn.Module) -> None:
        super().__init__(traced)
        self.extra_traceback = False
        self.network = Network(net)
        self.values: dict[fx.Node, Value] = {}

    def run_node(self, n: fx.Node) -> Any:
        where = _where(n, self.submodules)
        try:
            result = super().run_node(n)
        except Exception as error:
            raise ArgumentError(
                where,
                "a network that takes the sample",
                str(error).partition("\n")[0],
                "inputs as in training",
            ) from error
        if n.op == "output":
            for axis in self.inputs(n):
                self.network.ties.keep(axis)
        elif isinstance(result, Tensor):
            shape = tuple(result.shape)
            if n.op == "get_attr":
                self.values[n] = self.network.leaf(str(n.target)) or Value(
                    shape, (None,) * len(shape)
                )
            else:
                self.values[n] = Value(shape, self.axes(n, shape, where))
        elif isinstance(result, tuple | list) and not isinstance(result, torch.Size):
            self.axes(n, (), where, several=True)
        return result

    def axes(
        self, node: fx.Node, shape: tuple[int, ...], where: str, *, several: bool = False
    ) -> Axes:
        """Return the axes of an operation's result."""
        module = self.submodules.get(str(node.target)) if node.op == "call_module" else None
        rule = None if several else _rule(node, module)
        if rule is None:
            hidden = any(self.network.ties.root(axis) is not None for axis in self.inputs(node))
            if hidden or (module is not None and any(True for _ in module.parameters())):
                raise ArgumentError(
                    where,
                    "an operation with a rule for hidden channels",
                    (
                        "several results"
                        if several
                        else "a module with hooks"
                        if module is not None and type(module) in MODULES
                        else "none"
                    ),
                    "layers, norms, activations, pooling, flattening and sums",
                )
            return (None,) * len(shape)
        path = str(node.target) if module is not None else ""
        args, named = self.given(node.args), self.given(node.kwargs)
        return rule(Call(where, self.network, args, named, shape, module, path))

    def inputs(self, node: fx.Node) -> list[Axis | None]:
        """Return the axes of all tensors that an operation takes."""
        values = [self.values[one] for one in node.all_input_nodes if one in self.values]
        return [axis for value in values for axis in value.axes]

    def given(self, arguments: Any) -> Any:
        """Return arguments in which nodes are replaced by their values."""
        values: dict[Any, Any] = dict(self.values)
        return fx.node.map_arg(arguments, lambda one: values.get(one, COUNTED))


def _channels(net: nn.Module, network: Network) -> ChannelGraph:
    """Return the hidden channels of a network that has been traced."""
    ties, places = network.ties, dict[int, list[Place]]()
    for name, value in network.leaves.items():
        for number, axis in enumerate(value.axes):
            if (root := ties.root(axis)) is not None:
                makes = number == 0 and name in network.made
                place = Place(name, number, root.inner, makes)
                places.setdefault(root.channels, []).append(place)
    groups, names = dict[str, Group](), dict[int, str]()
    for channels, where in places.items():
        made = [place.leaf for place in where if place.makes]
        if made:
            name = names[channels] = made[0].removesuffix(".weight") or made[0]
            groups[name] = Group(name, ties.sizes[channels], ties.atom(channels), tuple(where))
    norms = {
        path: (names[root.channels], root.inner)
        for path, axis in network.norms.items()
        if (root := ties.root(axis)) is not None and root.channels in names
    }
    return ChannelGraph(
        groups, shapes(dict(net.named_parameters())), shapes(dict(net.named_buffers())), norms
    )


def _rule(node: fx.Node, module: nn.Module | None) -> Rule | None:
    if module is not None:
        return MODULES.get(type(module)) if is_plain(module, type(module)) else None
    return METHODS.get(str(node.target)) if node.op == "call_method" else FUNCTIONS.get(node.target)


def _where(node: fx.Node, modules: Mapping[str, nn.Module]) -> str:
    """Return the name of an operation and of the module that calls it."""
    if node.op == "call_module":
        return f"channel_graph, {str(node.target)!r} ({type(modules[str(node.target)]).__name__})"
    within = list(node.meta.get("nn_module_stack", {}).values())
    name = (
        str(node.target)
        if isinstance(node.target, str)
        else getattr(node.target, "__name__", str(node.target))
    )
    return f"channel_graph, {name} in {within[-1][0]!r}" if within else f"channel_graph, {name}"
