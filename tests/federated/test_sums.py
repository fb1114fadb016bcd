"""Which recipes' messages are plain sums, and so survive secure aggregation: every recipe runs a
round of which the server sees the sum alone.

The table that this makes is the one in SECURITY.md.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bayesfed.compress.codecs import Cast
from bayesfed.federated import OverTheAir, Sum, Update, rounds
from bayesfed.federated.engine.assembly import assembled
from bayesfed.keys import Key
from tests.support.recipes import tiny_recipes

RECIPES = tiny_recipes()
SECURITY = (Path(__file__).parents[2] / "SECURITY.md").read_text()
LEVELS = 2.0**32


class Masked(Sum):
    """Secure aggregation in miniature: a client hands in integers that are uniform to whoever lacks
    the masks, which cancel in the sum alone.
    """

    def __init__(self):
        super().__init__()
        self.generator, self.heard, self.by_entry = Key(0, "masks").generator(), {}, False

    def add(self, client, update):
        """Add masked integers modulo 2^64; decode the sum of all so far."""
        weight = (
            update.weight
            if isinstance(update.weight, dict)
            else {"": torch.tensor(float(update.weight)).double()}
        )
        leaves = {f"total/{name}": leaf for name, leaf in update.total.items()} | {
            f"weight/{name}": leaf for name, leaf in weight.items()
        }
        for name, leaf in leaves.items():
            own = (leaf.double() * LEVELS).round().long()
            mask = torch.randint(-(2**63), 2**63 - 1, own.shape, generator=self.generator)
            sent, masks, dtype = self.heard.get(
                name, (torch.zeros_like(own), torch.zeros_like(own), leaf.dtype)
            )
            self.heard[name] = (sent + (own + mask), masks + mask, dtype)
        found = {
            name: ((sent - masks).double() / LEVELS).to(dtype)
            for name, (sent, masks, dtype) in self.heard.items()
        }
        total = {
            name.removeprefix("total/"): leaf
            for name, leaf in found.items()
            if name.startswith("total/")
        }
        weights = {
            name.removeprefix("weight/"): leaf
            for name, leaf in found.items()
            if name.startswith("weight/")
        }
        Sum.__init__(
            self,
            Update(
                total,
                weights if isinstance(update.weight, dict) else float(weights[""]),
                update.kind,
            ),
        )
        self.by_entry = isinstance(update.weight, dict)


class Watching:
    """A link that notes which codecs came up, and that may mask the sum: then the server is given
    what the masks leave of all updates, and no update.
    """

    def __init__(self, link, masks=None):
        self.link, self.masks, self.codecs = link, masks, set()

    def pack(self, payload, codec, meta, key):
        return self.link.pack(payload, codec, meta, key)

    def collect(self, arrivals, reducer, key):
        def noted():
            for arrival in arrivals:
                self.codecs.add(type(arrival.assignment.up))
                yield arrival

        if self.masks is None:
            yield from self.link.collect(noted(), reducer, key)
            return
        self.masks.append(Masked())
        yield from self.link.collect(noted(), self.masks[-1], key)
        if self.masks[-1].total is not None:
            reducer.add("all", self.masks[-1].total)


def last(algorithm, pool):
    *_, report = rounds(algorithm, pool, rounds=1)
    return report


def row(name):
    """Run a recipe's round plainly and masked; return its line of the table, and both states."""
    tiny = RECIPES[name]()
    masks, links = [], [Watching(phase.link) for phase in tiny.algorithm.phases]

    def linked(links):
        phases = zip(tiny.algorithm.phases, links, strict=True)
        phases = tuple(replace(phase, link=link) for phase, link in phases)
        return replace(tiny.algorithm, phases=phases)

    state = last(linked(links), tiny.pool()).state
    codecs = set().union(*(link.codecs for link in links))
    kinds = sorted({assembled(phase).local.kind for phase in tiny.algorithm.phases})
    if any(phase.reducer is not Sum for phase in tiny.algorithm.phases):
        return [name, ", ".join(kinds), "no: updates apart", "", ""], state, None
    hidden = last(linked([Watching(link.link, masks) for link in links]), tiny.pool()).state
    air = any(isinstance(link.link, OverTheAir) for link in links)
    weights = "for each entry" if any(mask.by_entry for mask in masks) else "one number"
    sent = "added by the channel" if air else "yes" if codecs == {Cast} else "no: coded"
    return [name, ", ".join(kinds), "yes", weights, sent], state, hidden


def line(cells):
    return f"| {' | '.join([f'`{cells[0]}`', *cells[1:]])} |"


@pytest.mark.parametrize("name", RECIPES)
def test_the_server_needs_the_sum_alone_where_the_table_says_so(name):
    cells, state, hidden = row(name)
    assert line(cells) in SECURITY
    if hidden is None:
        return
    assert hidden.keys() == state.keys()
    for leaf, value in state.items():
        if value.is_floating_point():
            torch.testing.assert_close(hidden[leaf], value, rtol=2e-3, atol=2e-4)
        else:
            assert torch.equal(hidden[leaf], value)


def test_the_table_has_every_recipe_and_nothing_else():
    listed = [
        cells.split("`")[1]
        for cells in SECURITY.partition("## Which messages are plain sums")[2].splitlines()
        if cells.startswith("| `")
    ]
    assert listed == list(RECIPES)


def test_masked_integers_hide_a_client_and_keep_the_sum():
    reducer, updates = (
        Masked(),
        [Update({"w": torch.tensor([0.5, -2.0, float(k)])}, 1.0 + k, "delta") for k in range(3)],
    )
    for number, update in enumerate(updates):
        reducer.add(str(number), update)
    assert (reducer.total.weight, reducer.total.kind) == (6.0, "delta")
    torch.testing.assert_close(reducer.total.total["w"], torch.tensor([1.5, -6.0, 3.0]))
    sent, _, _ = reducer.heard["total/w"]
    assert float((sent.double() / LEVELS).abs().min()) > 1e3
