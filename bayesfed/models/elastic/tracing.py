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
from bayesfed.keys import Key, forked
from bayesfed.models.elastic.axes import Axes, Axis, Ties
from bayesfed.models.elastic.calls import COUNTED, Call, Value
from bayesfed.models.elastic.graph import ChannelGraph, Group, Place
from bayesfed.models.elastic.rules import FUNCTIONS, METHODS, MODULES, Rule
from bayesfed.models.modules import evaluating, is_plain
from bayesfed.trees import leaf_of


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
            "channel_graph, sample", "a batch (B, ...), B > 0", tuple(sample.shape), "example[None]"
        )
    with evaluating(net), forked(Key(0, "channel_graph")), torch.no_grad():
        try:
            traced = fx.symbolic_trace(net)
        except Exception as error:
            expected = "a network whose steps do not depend on its inputs"
            raise ArgumentError(
                "channel_graph, net", expected, error, "modules without branches"
            ) from error
        walk = _Walk(traced, net)
        # Two examples, since a batch of one could not be told from an axis of one channel. Only
        # shapes are read, but the tensors are real: with the meta device torch would import its
        # compiler first.
        walk.run(torch.stack([sample[0], sample[-1]]))
    return walk.channels()


class _Walk(fx.Interpreter):
    """One forward pass that ties axes operation by operation."""

    def __init__(self, traced: fx.GraphModule, net: nn.Module) -> None:
        super().__init__(traced)
        self.extra_traceback = False
        self.net, self.ties = net, Ties()
        self.values: dict[fx.Node, Value] = {}
        self.leaves: dict[str, Value] = {}
        self.made: set[str] = set()
        self.norms: dict[str, Axis | None] = {}
        first: dict[int, str] = {}
        for named in (net.named_parameters, net.named_buffers):
            for name, value in named(remove_duplicate=False):
                first.setdefault(id(value), name)
        self.tensors = {
            name: value
            for named in (net.named_parameters, net.named_buffers)
            for name, value in named(remove_duplicate=False)
        }
        self.first = {name: first[id(value)] for name, value in self.tensors.items()}

    def run_node(self, n: fx.Node) -> Any:
        where = _where(n, self.submodules)
        try:
            result = super().run_node(n)
        except Exception as error:
            actual = str(error).partition("\n")[0]
            raise ArgumentError(
                where, "a network that takes the sample", actual, "inputs as in training"
            ) from error
        if n.op == "output":
            for axis in (
                axis
                for one in n.all_input_nodes
                if one in self.values
                for axis in self.values[one].axes
            ):
                self.ties.keep(axis)
        elif isinstance(result, Tensor):
            shape = tuple(result.shape)
            if n.op == "get_attr":
                self.values[n] = self.leaf(str(n.target)) or Value(shape, (None,) * len(shape))
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
        inputs = [self.values[one] for one in node.all_input_nodes if one in self.values]
        if rule is None:
            hidden = any(self.ties.root(axis) is not None for one in inputs for axis in one.axes)
            if hidden or (module is not None and any(True for _ in module.parameters())):
                known = "an operation with a rule for hidden channels"
                actual = (
                    "several results"
                    if several
                    else "a module with hooks"
                    if module is not None and type(module) in MODULES
                    else "none"
                )
                hint = "layers, norms, activations, pooling, flattening and sums"
                raise ArgumentError(where, known, actual, hint)
            return (None,) * len(shape)
        path = str(node.target) if module is not None else ""
        norms: list[Axis | None] = []
        args, named = self.given(node.args), self.given(node.kwargs)
        call = Call(
            where,
            self.ties,
            args,
            named,
            shape,
            module,
            lambda leaf: self.leaf(leaf_of(path, leaf)),
            self.made,
            norms,
        )
        axes = rule(call)
        for axis in norms:
            if path in self.norms:
                self.ties.tie(self.norms[path], axis, where)
            self.norms[path] = axis
        return axes

    def given(self, arguments: Any) -> Any:
        """Return arguments in which nodes are replaced by their values."""
        values: dict[Any, Any] = dict(self.values)
        return fx.node.map_arg(arguments, lambda one: values.get(one, COUNTED))

    def leaf(self, name: str) -> Value | None:
        """Return a parameter or buffer by any of its names, or None if there is none."""
        if name not in self.tensors:
            return None
        first = self.first[name]
        if first not in self.leaves:
            shape = tuple(self.tensors[first].shape)
            self.leaves[first] = Value(
                shape, tuple(self.ties.new(length) for length in shape), first
            )
        return self.leaves[first]

    def channels(self) -> ChannelGraph:
        """Return the hidden channels that the walk has found."""
        places: dict[int, list[Place]] = {}
        for name, value in self.leaves.items():
            for number, axis in enumerate(value.axes):
                if (root := self.ties.root(axis)) is not None:
                    places.setdefault(root.channels, []).append(
                        Place(name, number, root.inner, number == 0 and name in self.made)
                    )
        groups: dict[str, Group] = {}
        names: dict[int, str] = {}
        for channels, where in places.items():
            made = [place.leaf for place in where if place.makes]
            if made:
                name = names[channels] = made[0].removesuffix(".weight") or made[0]
                groups[name] = Group(
                    name, self.ties.sizes[channels], self.ties.atom(channels), tuple(where)
                )
        roots = {path: self.ties.root(axis) for path, axis in self.norms.items()}
        norms = {
            path: (names[root.channels], root.inner)
            for path, root in roots.items()
            if root is not None and root.channels in names
        }
        parameters = {name: tuple(value.shape) for name, value in self.net.named_parameters()}
        return ChannelGraph(
            groups,
            parameters,
            {name: tuple(value.shape) for name, value in self.net.named_buffers()},
            norms,
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
