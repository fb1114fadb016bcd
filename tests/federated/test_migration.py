"""Snapshots that 0.2 wrote: a run goes on from them as if leaves had always had names of now."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.federated import load
from tests.support import recipes

# After one round of the tiny recipes, written on the commit 402f1f7.
FOLDER = Path(__file__).parent / "snapshots_0_2"
NAMES = [name for name in recipes.tiny_recipes() if (FOLDER / name.replace(" ", "_")).exists()]


def old(name):
    return load(FOLDER / name.replace(" ", "_"))


def run(tiny, **options):
    with tiny.pool() as pool:
        return bf.run(
            tiny.algorithm, pool, rounds=2, progress=False, on_client_error="drop", **options
        ).snapshot


def close(left, right, values=True):
    assert left.keys() == right.keys()
    for name, leaf in left.items():
        assert leaf.dtype == right[name].dtype
        if values:
            torch.testing.assert_close(leaf, right[name], rtol=1e-3, atol=1e-4)


def test_every_folder_is_tested():
    assert len(NAMES) == len(list(FOLDER.iterdir())) == 12


def test_factors_that_are_larger_than_their_layer_are_no_longer_made():
    with pytest.raises(ArgumentError, match=r"leaves \['svd/1/residual'.* not of this method"):
        run(recipes.tiny_recipes()["fed_hm"](), resume=old("fed_hm"))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "fed_hm"])
def test_a_run_goes_on_from_a_snapshot_of_0_2(name):
    tiny = recipes.tiny_recipes()[name]()
    again, whole = run(tiny, resume=old(name)), run(tiny)
    # D-Turbo-VBI makes of the same answers something else now, and so were the rounds before.
    values = not name.startswith("d_turbo_vbi")
    close(again.state, whole.state, values)
    assert again.memories.keys() == whole.memories.keys()
    for client, memory in whole.memories.items():
        close(again.memories[client], memory, values)
    assert again.owned


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: {"x": state["1.bias"]}, "no leaf that is 'model"),
        (lambda state: state | {"x": state["1.bias"]}, r"leaves \['x'\] that are not of this"),
    ],
)
def test_a_state_of_another_method_is_refused(change, words):
    tiny, snapshot = recipes.tiny_recipes()["fed_avg"](), old("fed_avg")
    with pytest.raises(ArgumentError, match=words):
        run(tiny, resume=replace(snapshot, state=change(snapshot.state)))


def test_other_clients_are_still_noticed():
    tiny = recipes.tiny_recipes()["fed_avg"]()
    fewer = dict(list(tiny.data.items())[1:])
    with pytest.raises(ArgumentError, match="rows of clients|clients"):
        bf.run(tiny.algorithm, fewer, rounds=2, progress=False, resume=old("fed_avg"))
