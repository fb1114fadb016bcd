"""The way back by own data: evidence for weights that are off, what clients say, what returns."""

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import Changes, Returns, ToDensity
from bayesfed.algorithms.d_turbo_vbi.returns import CODEC, SAID, STANDS, heard, seen_at, standing
from bayesfed.compress import Coded, gather_active
from bayesfed.errors import ArgumentError
from bayesfed.federated import rounds
from bayesfed.inference.turbo.elbo import MeanFieldElbo
from bayesfed.inference.turbo.returning import steps_from_zero, ternary

WORK = bf.Training(steps=4, batch_size=16, optimiser=bf.Adam(1e-2))


def turbo(declared, clients, start=0.2, **options):
    return bf.d_turbo_vbi(
        declared,
        observations=sum(map(len, clients.values())),
        training=WORK,
        changes=Changes.ternary(start, learn=options.pop("learn", True)),
        density=ToDensity(start, patience=0),
        **options,
    )


@pytest.mark.parametrize("in_place", [False, True])
def test_the_evidence_at_zero_is_that_of_slopes_row_by_row(in_place):
    """log BF of the expansion, from each row's own slope, in every entry that is off."""
    random = bf.Key(0, "rows").generator()
    data = bf.Dataset(torch.randn(20, 5, generator=random), torch.arange(20) % 3)
    net, scale, tempered, sd = bf.mlp([5, 4, 3], bf.Key(0, "net")), 2.5, 0.5, 0.03
    for module in net.modules():
        if isinstance(module, torch.nn.ReLU):
            module.inplace = in_place
    declared = bf.declare(net, likelihood=bf.Categorical(temperature=tempered))
    masks = {
        name: torch.rand(site.matrix, generator=random) < 0.5
        for name, site in declared.sites.items()
    }
    full = {name: leaf.detach().clone() for name, leaf in net.named_parameters()}
    for name, mask in masks.items():
        full[name] *= mask
    message = {f"support/{name}": mask for name, mask in masks.items()} | {
        f"mean/{name}" if name in masks else f"point/{name}": leaf[masks[name]]
        if name in masks
        else leaf
        for name, leaf in full.items()
    }
    message["shared/sd"] = torch.tensor(sd)
    steps = steps_from_zero(MeanFieldElbo(declared), message, data, scale * 20, bf.Key(1))
    for name, site in declared.sites.items():
        own = {key: leaf.requires_grad_() for key, leaf in full.items()}
        rows = torch.stack(
            [
                torch.autograd.grad(
                    -torch.nn.functional.cross_entropy(
                        torch.func.functional_call(net, own, (data.inputs[row : row + 1],)),
                        data.targets[row : row + 1],
                    ),
                    own[name],
                )[0]
                for row in range(20)
            ]
        )
        slope, curvature = (scale / tempered * each.sum(0) for each in (rows, rows.square()))
        slab = site.precision.rates[1] / site.precision.shapes[1]
        wanted = slope**2 * slab / (2 * (1 + curvature * slab))
        off = ~masks[name]
        assert not steps[name][~off].any()
        torch.testing.assert_close(((steps[name] / sd) ** 2 / 2)[off], wanted[off])
        assert torch.equal(steps[name][off].sign(), slope[off].sign())


def test_what_a_client_says_is_ternary_and_comes_through_its_codec_as_it_is():
    steps = torch.tensor([[0.0, -3.0, 1.0], [2.0, 0.5, 0.0]])
    said = ternary(steps, 3)
    assert torch.equal(said, torch.tensor([[0.0, -2.0, 2.0], [2.0, 0.0, 0.0]]))
    assert torch.equal(ternary(steps, 9) != 0, steps != 0)
    assert not ternary(torch.zeros(2, 3), 2).any()
    codec, name = Coded(exceptions=CODEC), f"{SAID}1.weight"
    wide = ternary(torch.randn(64, 784), 50)
    message = codec.encode({name: wide}, {}, bf.Key(0))
    assert torch.equal(codec.decode(message, bf.Key(0))[0][name], wide)
    assert len(message) < 200


def test_what_was_said_stands_until_the_mean_is_larger_and_fades():
    before, after = (torch.tensor([[on, False, False, True]]) for on in (False, True))
    state, mean = {f"{STANDS}w": torch.zeros(1, 4)}, torch.tensor([[0.0, 0.0, 0.0, 0.9]])
    told = {f"{SAID}w": torch.tensor([[0.8, -0.6, 0.1, 0.0]]), "mean/w": mean}
    # Of one active entry's number of entries: the clients' largest.
    state, left = heard(state, told, {"w": before}, 1.0)
    assert left.keys() == {"mean/w"}
    assert torch.equal(seen_at("w", mean, state), torch.tensor([[0.8, 0.0, 0.0, 0.9]]))
    assert torch.equal(standing(state, {"w": before})[f"{STANDS}w"], torch.zeros(1, 4))
    state |= standing(state, {"w": after})
    assert torch.equal(state[f"{STANDS}w"], torch.tensor([[0.8, 0.0, 0.0, 0.0]]))
    assert float(seen_at("w", -2 * torch.ones(1, 4), state)[0, 0]) == -2
    again, _ = heard(state, {f"{SAID}w": torch.zeros(1, 4)}, {"w": after}, 1.0)
    assert float(again[f"{STANDS}w"][0, 0]) == pytest.approx(0.4)
    assert torch.equal(heard(state, {}, {"w": after}, 1.0)[0][f"{STANDS}w"], state[f"{STANDS}w"])


def test_weights_return_by_their_own_data_and_no_others_do(net, clients):
    """Without couplings an entry's neighbours say nothing: only its own rows can bring it back."""
    prior = bf.Prior(bf.Independent(0.5))
    declared = bf.declare(net, prior, likelihood=bf.Categorical(temperature=0.01))
    back = {}
    for share in (0.0, 0.2):
        algorithm, back[share], before = turbo(declared, clients, returns=Returns(share, 1)), 0, {}
        for report in rounds(algorithm, bf.InProcess(clients), rounds=6):
            now = {name: report.state[f"log_odds/{name}"] > 0 for name in declared.sites}
            back[share] += sum(
                int((now[name] & ~support).sum()) for name, support in before.items()
            )
            assert all(
                bool((report.state[f"mean/{name}"][~on] == 0).all()) for name, on in now.items()
            )
            before = now
        assert report.server["density"] == pytest.approx(0.2, rel=0.02)
        assert (f"{STANDS}1.weight" in report.state) == bool(share)
    assert back[0.0] == 0
    assert back[0.2] > 10
    assert not any(
        key.startswith(f"exchange/error/{SAID}") and leaf.any()
        for memory in report.snapshot.memories.values()
        for key, leaf in memory.items()
    )


def test_clients_speak_every_third_round_and_by_default_from_a_sparse_start(declared, clients):
    asked = [Returns().asked(round, 1.0) for round in range(6)]
    assert asked == [0.0, 0.0, 0.1, 0.0, 0.0, 0.1]
    assert Returns().asked(2, 0.2) == 0.0
    on = {
        start: f"{STANDS}1.weight" in turbo(declared, clients, start).initial
        for start in (0.03, 0.2)
    }
    assert on == {0.03: True, 0.2: False}
    assert f"{STANDS}1.weight" not in turbo(declared, clients, 0.03, learn=False).initial
    silent = turbo(declared, clients, 0.03, returns=Returns(0.0))
    assert f"{STANDS}1.weight" not in silent.initial
    with pytest.raises(ArgumentError, match="changes of a support that is learned"):
        turbo(declared, clients, returns=Returns(), learn=False)
    with pytest.raises(ArgumentError, match="changes of a support that is learned"):
        bf.d_turbo_vbi(declared, observations=10, codec=bf.Cast(16), returns=Returns())


def test_a_message_in_which_all_are_active_says_nothing(declared, clients):
    message = (
        turbo(declared, clients).phases[0].server.publish(turbo(declared, clients).initial, 0, None)
    )
    full = {
        name: torch.ones(site.matrix, dtype=torch.bool) for name, site in declared.sites.items()
    }
    message = gather_active(
        message | {f"support/{name}": mask for name, mask in full.items()}, full
    )
    steps = steps_from_zero(
        MeanFieldElbo(declared), message, next(iter(clients.values())), 1.0, bf.Key(0)
    )
    assert not any(step.any() for step in steps.values())
