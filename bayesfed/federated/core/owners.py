"""Owners: every leaf of a state, a message and a client's memory belongs to somebody,
``owner/name``.

The core of a method owns the model; each layer owns its own leaves. The owner ends at the first
slash, so a name that somebody gave to a parameter, whatever characters it has, meets no name of
another owner.

On the wire most leaves are the core's. Their names are sent as they are, and a layer's leaf as
``/owner/name``; a core's name that begins with a slash is sent as ``//name``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from bayesfed.trees import Tree, under

# Owner of the core's leaves, for cores that have one kind of them.
MODEL = "model"


def owned(tree: Mapping[str, Tensor], owner: str) -> Tree:
    """Return the leaves of one owner, by their own names. The owner "" has all leaves, by their
    full names.
    """
    return under(tree, f"{owner}/" if owner else "")


def of(owner: str, tree: Mapping[str, Tensor]) -> Tree:
    """Return leaves by their full names, ``owner/name``."""
    return {f"{owner}/{name}": leaf for name, leaf in tree.items()} if owner else dict(tree)


def owner_of(name: str) -> str:
    """Return the owner of a leaf, given its full name."""
    return name.partition("/")[0]


def wired(core: Mapping[str, Tensor], layers: Mapping[str, Mapping[str, Tensor]]) -> Tree:
    """Return the leaves of a message, given the core's and those of layers by owner, by their names
    on the wire.
    """
    result = {f"/{name}" if name.startswith("/") else name: leaf for name, leaf in core.items()}
    for owner, tree in layers.items():
        result |= {f"/{owner}/{name}": leaf for name, leaf in tree.items()}
    return result


def unwired(message: Mapping[str, Tensor]) -> tuple[Tree, dict[str, Tree]]:
    """Return the core's leaves of a message, and those of layers by owner; undoes `wired`."""
    core, layers = Tree(), dict[str, Tree]()
    for name, leaf in message.items():
        if not name.startswith("/"):
            core[name] = leaf
        elif name.startswith("//"):
            core[name[1:]] = leaf
        else:
            owner, _, own = name[1:].partition("/")
            layers.setdefault(owner, {})[own] = leaf
    return core, layers


@dataclass(frozen=True)
class Scope:
    """The leaves that a phase works on, among those of a whole state or memory.

    Parameters
    ----------
    owner
        Owner of the core's leaves; "" if the core has all that no layer owns.
    layers
        Owners of the layers' leaves.
    within
        Owner of all of them, where the method is a part of another; else "".
    """

    owner: str = MODEL
    layers: tuple[str, ...] = ()
    within: str = ""

    def parted(self, tree: Mapping[str, Tensor]) -> tuple[Tree, dict[str, Tree]]:
        """Return the core's leaves, and those of the layers by owner, by their own names."""
        part = owned(tree, self.within)
        layers = {owner: owned(part, owner) for owner in self.layers}
        if self.owner:
            return owned(part, self.owner), layers
        return {name: leaf for name, leaf in part.items() if owner_of(name) not in layers}, layers

    def joined(self, tree: Mapping[str, Tensor], core: Tree, layers: Mapping[str, Tree]) -> Tree:
        """Return a tree with other leaves of the core and the layers; leaves of others stay."""
        part = of(self.owner, core)
        for owner, leaves in layers.items():
            part |= of(owner, leaves)
        kept = {name: leaf for name, leaf in tree.items() if not self._has(name)}
        return of(self.within, part) | kept

    def _has(self, name: str) -> bool:
        owner = owner_of(name)
        if self.within:
            return owner == self.within
        return not self.owner or owner in (self.owner, *self.layers)
