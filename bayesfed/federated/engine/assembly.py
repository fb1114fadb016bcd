"""`assembled`: a phase with layers as one without, whose parts walk the list of layers once in each
direction.

The rest of the engine knows no layers: it is given plain parts, on states, messages and memories in
which every name has its owner (`bayesfed.federated.core.owners`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import shown
from bayesfed.federated.aggregation.reducers import Admitted, BoundedSum, Keep
from bayesfed.federated.clients import ClientSide
from bayesfed.federated.core import (
    Assignment,
    Info,
    Kind,
    Moment,
    Phase,
    Profile,
    Reducer,
    Server,
    Skip,
    Stale,
    Sum,
    Turn,
    Update,
    View,
    check_order,
    seams,
    unwired,
    wired,
)
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree


def assembled(phase: Phase) -> Phase:
    """Return a phase without layers that does what the phase does with them.

    Raises
    ------
    ArgumentError
        If the layers make no sense in their order, or around this core.
    """
    check_order(phase)
    server, link = ServerSide(phase), phase.link
    for layer in reversed(phase.layers):
        link = layer.link(link)
    each = any(layer.traits.needs == "each" for layer in phase.layers)
    bounding = [layer.owner for layer in phase.layers if layer.traits.bounds]
    reducer = partial(BoundedSum, bounding[0]) if bounding else phase.reducer
    return Phase(
        phase.name,
        server.plan,
        ClientSide.of(phase),
        server,
        link,
        Keep if each else reducer,
        owner="",
    )


@dataclass(frozen=True)
class ServerSide:
    """The server's half of a phase: the core's plans and server, and the layers around them.

    Parameters
    ----------
    phase
        The phase.
    """

    phase: Phase

    @property
    def server(self) -> Server:
        """The core's server."""
        return self.phase.server

    @property
    def steps_alone(self) -> bool:
        """Whether the core or a layer acts in a round in which nobody was heard."""
        alone = seams.steps_alone(self.phase.server)
        return alone or any(layer.traits.silent for layer in self.phase.layers)

    @property
    def stale(self) -> Stale | None:
        """How late answers are taken: as the core takes them, unless a layer says otherwise."""
        found = seams.stale(self.phase.server) if seams.adds(self.phase) else None
        for layer in reversed(self.phase.layers):
            late = layer.traits.late if layer.traits.needs != "each" else "refused"
            if late == "refused" or (late == "as changes" and found != "rebased"):
                return None
            found = "scaled" if late == "as changes" else found
        return found

    def plan(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        """Plan a client's turn: the core first, then the layers from the innermost."""
        core, owns = self.phase.scope.parted(state)
        planned = self.phase.assign(core, round, profile, key)
        turn = Turn(core, round, profile, key)
        for layer in reversed(self.phase.layers):
            if not isinstance(planned, Skip):
                planned = layer.plan(owns[layer.owner], turn, planned)
        if isinstance(planned, Skip):
            return planned
        if seams.inner_codec(planned.up)[1]:
            raise ArgumentError(
                f"phase {self.phase.name!r}",
                "a plain codec",
                "an ErrorFeedback in an assignment",
                "layered(algorithm, feedback())",
            )
        if not self.phase.layers:
            return planned
        return replace(planned, view=Through(planned.view, self, owns, self._moment(core, round)))

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what clients see, by names on the wire: the core's leaves first, then as the
        layers change them.
        """
        core, owns = self.phase.scope.parted(state)
        moment, told = self._moment(core, round), dict[str, Tree]()
        message = moment.shown(core, round, version)
        for layer in reversed(self.phase.layers):
            message, own = layer.publish(owns[layer.owner], message, moment, version)
            if own:
                told[layer.owner] = own
        return wired(message, told) if self.phase.layers else message

    def shown(self, state: Tree, round: int) -> Tree:
        """Return what a client that never heard from the server sees of the core's leaves, by their
        own names.
        """
        seen = self.publish(state, round, None)
        return unwired(seen)[0] if self.phase.layers else seen

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Take the step: the layers from the outermost, the core within them all."""
        core, owns = self.phase.scope.parted(state)
        moment, layers = self._moment(core, round), self.phase.layers
        figures, held = Info(), list[Tree]()

        def inner(depth: int, total: Update | None) -> tuple[Tree, Info]:
            if depth == len(layers):
                return self._core_step(core, reducer, total, round)
            layer = layers[depth]
            kept = seams.gathered(reducer, Keep) if layer.traits.needs == "each" else None
            if kept and kept.updates:
                updates = {name: kept.updates[name] for name in sorted(kept.updates)}
                total, info = layer.combine(owns[layer.owner], updates, moment)
                figures.update(info)
            within = partial(inner, depth + 1)
            owns[layer.owner], model, info = layer.step(owns[layer.owner], moment, total, within)
            if layer.traits.holds:
                held.append(model)
            return model, info

        model, info = inner(0, seams.total_of(reducer))
        if any(one is not model for one in held):
            raise UpdateError(
                f"phase {self.phase.name!r}",
                "the model of which clients hold the changes",
                "another one",
                "a layer that moves the model, around a method that sends it whole",
            )
        return self.phase.scope.joined(state, model, owns), {**info, **figures}

    def _moment(self, core: Tree, round: int) -> Moment:
        return Moment(round, core, partial(seams.published, self.phase.server))

    def _core_step(
        self, core: Tree, gathered: Reducer, total: Update | None, round: int
    ) -> tuple[Tree, Info]:
        server = self.phase.server
        if seams.adds(self.phase):
            if total is None and not seams.steps_alone(server):
                return core, {}
            gathered = Sum(total)
        elif seams.gathered(gathered, Sum):
            # Nobody was heard.
            if not seams.steps_alone(server):
                return core, {}
            gathered = self.phase.reducer()
        step = server.step(core, gathered, round)
        if not (
            isinstance(step, tuple)
            and len(step) == 2
            and all(isinstance(part, dict) for part in step)
        ):
            raise UpdateError(
                f"{type(server).__name__}.step, phase {self.phase.name!r}",
                "(state, figures)",
                shown(step),
                "return state, {}",
            )
        return step


@dataclass(frozen=True)
class Through:
    """A client's view, through which its update passes the layers from the innermost.

    Parameters
    ----------
    view
        The core's view.
    side
        The server's half of the phase.
    owns
        The layers' leaves of the state.
    moment
        The round.
    """

    view: View
    side: ServerSide
    owns: Mapping[str, Tree] = field(repr=False)
    moment: Moment = field(repr=False)

    @property
    def leaves(self) -> tuple[Shapes, bool] | None:
        """The leaves of an update, as the core's view has them."""
        return seams.leaves_of(self.view)

    def restrict(self, tree: Tree) -> Tree:
        """Restrict the core's leaves; what layers tell is told to all."""
        core, told = unwired(tree)
        return wired(self.view.restrict(core), told)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Check, weigh and lift the core's leaves, and let the layers admit the update."""
        core, strange = unwired(payload)
        if strange:
            where, hint = sorted(strange), "the method of this run"
            raise UpdateError("payload", "leaves of the model", where, hint, field="leaves")
        update = self.view.lift(core, weight, kind)
        for layer in reversed(self.side.phase.layers):
            update = layer.admit(self.owns[layer.owner], update, self.moment)
        return Admitted.of(update)
