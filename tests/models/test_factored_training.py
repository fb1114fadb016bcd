"""Training factors: gradients, decay, spectra and trees, priors in Pyro, export."""

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule, PyroSample
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bayesfed.keys import Key
from bayesfed.models import (
    FactoredLayer,
    Gaussian,
    ProductGaussian,
    align,
    dense_or_thin,
    factorise,
    frobenius_decay,
    hybrid,
    hybrid_ranks,
    spectra,
    spectrum,
    unrollings,
)
from bayesfed.models.low_rank import factored_spectra
from bayesfed.trees import parameters, size
from tests.conftest import tree_equal
from tests.models.thin_nets import DOUBLE, SPLITS, close, error_at, randn, residual


def decaying(rows, columns, dtype=torch.float32, power=1.0):
    q, _ = torch.linalg.qr(randn(rows, min(rows, columns), name="left", dtype=DOUBLE))
    p, _ = torch.linalg.qr(randn(columns, min(rows, columns), name="right", dtype=DOUBLE))
    return ((q * torch.arange(1, min(rows, columns) + 1) ** -power) @ p.mT).to(dtype)


class Largest(TorchDispatchMode):
    """Note the entries of the largest tensor that any operation gives back."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.entries = max(
            self.entries,
            *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)),
            0,
        )
        return result


# -------------------------------------------------------------------------------------------------
# training
@pytest.mark.parametrize("split", SPLITS)
def test_gradients_are_those_of_equation_10(split):
    net, x = residual().eval(), randn(3, 2, 6, 6, dtype=DOUBLE)
    made = hybrid(net, 1 / 2, split=split)
    whole = residual().eval()
    layers = unrollings(made)
    for name, value in align(parameters(made), layers).items():
        whole.get_parameter(name).data = value
    for each in (made, whole):
        each(x).square().sum().backward()
    for name, layout in layers.items():
        layer, gradient = (
            made.get_submodule(name),
            layout.matrix(whole.get_submodule(name).weight.grad),
        )
        close(layer.u.grad, gradient @ layer.v, 1e-10)
        close(layer.v.grad, gradient.mT @ layer.u, 1e-10)


@pytest.mark.parametrize("split", SPLITS)
def test_zero_columns_stay_zero_and_change_no_iterate(split):
    net, x = residual().eval(), randn(3, 2, 6, 6, dtype=DOUBLE)
    made = hybrid(net, 1 / 4, split=split)
    small = parameters(made)
    wide = {
        name: functional.pad(leaf, (0, 3)) if name.endswith((".u", ".v")) else leaf
        for name, leaf in small.items()
    }
    iterates = []
    for tree in (small, wide):
        leaves = {name: leaf.clone().requires_grad_() for name, leaf in tree.items()}
        optimiser = torch.optim.SGD(leaves.values(), lr=0.05, momentum=0.9)
        for _ in range(5):
            optimiser.zero_grad()
            loss = functional_call(made, leaves, (x,)).square().mean() + frobenius_decay(
                leaves, 0.1
            )
            loss.backward()
            optimiser.step()
        iterates.append(leaves)
    assert not torch.allclose(iterates[0]["4.u"], small["4.u"])
    for name, leaf in iterates[0].items():
        padded = iterates[1][name]
        if padded.shape != leaf.shape:
            assert not padded[:, leaf.shape[1] :].any()
            padded = padded[:, : leaf.shape[1]]
        close(padded, leaf, 1e-12)


def test_a_step_on_factors_moves_the_product_by_two_projections():
    # -rate (G V V^T + U U^T G) + O(rate^2): not the dense step, so only whole networks train as
    # FedAvg does.
    u, v, target = (
        randn(6, 2, name="u", dtype=DOUBLE),
        randn(5, 2, name="v", dtype=DOUBLE),
        randn(6, 5, dtype=DOUBLE),
    )
    gradient = u @ v.mT - target
    errors = []
    for rate in (1e-3, 1e-4):
        moved = (u - rate * gradient @ v) @ (v - rate * gradient.mT @ u).mT - u @ v.mT
        errors.append((moved + rate * (gradient @ v @ v.mT + u @ u.mT @ gradient)).norm())
    assert math.isclose(errors[0] / errors[1], 100, rel_tol=1e-6)


def test_frobenius_decay_and_its_gradient():
    made = hybrid(residual(), 1 / 2)
    leaves = {name: leaf.requires_grad_() for name, leaf in parameters(made).items()}
    decay = frobenius_decay(leaves, 0.3)
    products = sum(
        (layer.u @ layer.v.mT).square().sum()
        for layer in (made.get_submodule(name) for name in unrollings(made))
    )
    close(decay, 0.15 * products, 1e-12)
    decay.backward()
    (0.15 * products).backward()
    for name, leaf in leaves.items():
        if name.endswith((".u", ".v")):
            close(leaf.grad, made.get_parameter(name).grad, 1e-12)
    assert float(frobenius_decay({"0.weight": randn(3, 3)}, 0.3)) == 0
    # What has a core is a point of fixed rank, not two factors.
    point = {"0.u": randn(3, 1), "0.s": randn(1, 1), "0.v": randn(3, 1)}
    assert float(frobenius_decay(point, 1.0)) == 0


def test_decay_is_the_gaussian_prior_on_the_product():
    u, v, like = (
        randn(6, 2, name="u", dtype=DOUBLE),
        randn(10, 2, name="v", dtype=DOUBLE),
        torch.zeros(6, 10, dtype=DOUBLE),
    )
    leaves = {name: factor.clone().requires_grad_() for name, factor in (("w.u", u), ("w.v", v))}
    prior = ProductGaussian(rank=2, precision=0.7)
    trace = poutine.trace(
        poutine.condition(lambda: prior.sample("w", like), data=leaves)
    ).get_trace()
    factor = trace.nodes["w.decay"]["fn"].log_prob(trace.nodes["w.decay"]["value"])
    close(-factor, frobenius_decay(leaves, 0.7), 1e-12)
    # And of a Gaussian declared on the dense weight, up to its constant.
    with pyro.poutine.trace() as found, pyro.poutine.condition(data={"w": u @ v.mT}):
        Gaussian(0.7**-0.5).sample("w", like)
    constant = dist.Normal(like, 0.7**-0.5).log_prob(like).sum()
    close(constant - found.trace.log_prob_sum(), frobenius_decay(leaves, 0.7), 1e-12)


def test_nothing_dense_is_formed_by_a_step():
    whole, x = nn.Linear(300, 400, bias=False), randn(5, 300)
    layer = FactoredLayer(whole, randn(400, 3, name="u"), randn(300, 3, name="v"))
    with Largest() as largest:
        (layer(x).square().sum() + frobenius_decay(dict(layer.named_parameters()), 0.1)).backward()
    assert largest.entries <= 5 * 400


# -------------------------------------------------------------------------------------------------
# trees
@pytest.mark.parametrize("split", SPLITS)
def test_one_svd_serves_all_ranks(split, monkeypatch):
    net = residual()
    tree, layers = parameters(net), unrollings(hybrid(net, 1 / 8, split=split))
    sizes = [hybrid_ranks(net, ratio, split=split) for ratio in (1 / 2, 1 / 4, 1 / 8)]
    calls = []
    svd = torch.linalg.svd
    monkeypatch.setattr(
        torch.linalg, "svd", lambda *arguments, **named: calls.append(1) or svd(*arguments, **named)
    )
    found = spectra(tree, layers, *sizes)
    assert len(calls) == len(layers)
    for ratio, ranks in zip((1 / 2, 1 / 4, 1 / 8), sizes, strict=True):
        cut, own = factorise(tree, layers, ranks, found), hybrid(net, ratio, split=split)
        assert tree_equal(cut, parameters(own))
        assert tree_equal(cut, factorise(tree, layers, ranks))
        aligned = align(cut, layers)
        for name, rank in ranks.items():
            error = float((aligned[f"{name}.weight"] - tree[f"{name}.weight"]).norm())
            assert math.isclose(error_at(found[name], rank), error, abs_tol=1e-12)
    # A spectrum keeps no more of the SVD alive than it needs.
    assert all(
        part.untyped_storage().nbytes() == part.numel() * 8
        for part in (found["4"].u, found["4"].v, found["4"].values)
    )


def test_aligning_takes_factors_of_any_rank_beside_whole_layers():
    net = residual()
    ranks = hybrid_ranks(net, 1 / 2)
    layers = unrollings(hybrid(net, ranks))
    tree = parameters(net)
    some = {"4": 2, "2.conv1": 1}
    mixed = align(factorise(tree, layers, some), layers)
    assert list(mixed) == list(tree)
    assert {name for name in tree if not torch.equal(mixed[name], tree[name])} == {
        "4.weight",
        "2.conv1.weight",
    }
    assert tree_equal(align(tree, layers), tree)
    assert all(leaf.is_contiguous() for leaf in mixed.values())
    linear = hybrid(nn.Linear(5, 4), {"": 2})
    assert align(parameters(linear), unrollings(linear)).keys() == {"weight", "bias"}


@pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 1e-5), (DOUBLE, 1e-13)], ids=str)
@pytest.mark.parametrize("shape", [(120, 80), (80, 120)], ids=str)
def test_subspace_iteration_is_within_its_stated_error(shape, dtype, slack, monkeypatch):
    monkeypatch.setattr(factored_spectra, "PASSES", 0)
    matrix = decaying(*shape, dtype=dtype)
    exact, found = spectrum(matrix, 10), spectrum(matrix, 10, key=Key(0))
    assert exact.residual == 0
    assert found.residual > 0.01
    for rank in (1, 4, 10):
        u, v = found.factors(rank)
        error, best = float((matrix - u @ v.mT).norm()), error_at(exact, rank)
        assert math.isclose(error, error_at(found, rank), rel_tol=slack)
        assert best * (1 - slack) <= error
        assert error**2 - found.residual**2 <= best**2 * (1 + slack)


def test_a_warm_start_is_better_than_a_cold_one_and_reaches_the_svd(monkeypatch):
    before = decaying(120, 80, DOUBLE)
    after = before + 0.002 * randn(120, 80, dtype=DOUBLE) / 10
    exact, last = spectrum(after, 10), spectrum(before, 10)
    monkeypatch.setattr(factored_spectra, "PASSES", 0)
    cold, warm = (spectrum(after, 10, key=Key(0), warm=start) for start in (None, last))
    assert error_at(exact, 10) <= error_at(warm, 10) < error_at(cold, 10)
    assert error_at(warm, 10) < 1.001 * error_at(exact, 10)
    monkeypatch.setattr(factored_spectra, "PASSES", 60)
    converged = spectrum(after, 10, key=Key(0), warm=last)
    monkeypatch.undo()
    close(
        converged.u * converged.values @ converged.v.mT, exact.u * exact.values @ exact.v.mT, 1e-9
    )
    # A start from another rank, and all of the space, where nothing is missed.
    assert error_at(spectrum(after, 4, key=Key(0), warm=last), 4) >= error_at(
        spectrum(after, 4), 4
    ) * (1 - 1e-12)
    assert spectrum(after, 78, key=Key(0)).residual < 1e-12


def test_spectra_may_be_warm_and_name_their_streams():
    net = residual()
    tree, ranks = parameters(net), hybrid_ranks(net, 1 / 4)
    layers = unrollings(hybrid(net, ranks))
    one, two, other = (spectra(tree, layers, ranks, key=key) for key in (Key(0), Key(0), Key(1)))
    assert torch.equal(one["2.conv1"].u, two["2.conv1"].u)
    assert not torch.equal(one["2.conv1"].u, other["2.conv1"].u)
    again = spectra(tree, layers, ranks, key=Key(1), warm=one)
    assert sum(found.rest for found in again.values()) < sum(found.rest for found in one.values())
    assert factorise(tree, layers, ranks, again).keys() == factorise(tree, layers, ranks).keys()


# -------------------------------------------------------------------------------------------------
# Pyro, export
def test_there_is_no_sample_site_and_the_store_stays_empty():
    pyro.clear_param_store()
    made = hybrid(residual().eval(), 1 / 2)
    trace = poutine.trace(made).get_trace(randn(2, 2, 6, 6, dtype=DOUBLE))
    assert not [name for name, node in trace.nodes.items() if node["type"] in ("sample", "param")]
    assert not list(pyro.get_param_store().keys())


def test_a_factor_may_be_given_a_prior():
    made = hybrid(nn.Linear(4, 3), {"": 2})
    made.u = PyroSample(dist.Normal(torch.zeros(3, 2), 1.0).to_event(2))
    trace = poutine.trace(made).get_trace(randn(2, 4))
    assert trace.nodes["u"]["type"] == "sample"
    pyro.clear_param_store()
    whole = PyroModule("net")
    whole.layer = hybrid(nn.Linear(4, 3), {"": 2})
    trace = poutine.trace(whole.layer).get_trace(randn(2, 4))
    assert {"net.layer.u", "net.layer.v", "net.layer.bias"} <= trace.nodes.keys()
    pyro.clear_param_store()


@pytest.mark.parametrize("form", ["smaller", "thin", "dense"])
@pytest.mark.parametrize("split", SPLITS)
def test_export_is_the_same_function_without_pyro(split, form):
    made, x = hybrid(residual().eval(), 1 / 2, split=split), randn(2, 2, 6, 6, dtype=DOUBLE)
    plain = dense_or_thin(made, form=form)
    close(plain(x), made(x), 1e-12)
    assert all(
        type(module).__module__.startswith(("torch.", "tests.")) for module in plain.modules()
    )
    assert not any(isinstance(module, PyroModule) for module in plain.modules())
    numbers = [
        size(parameters(dense_or_thin(made, form=each))) for each in ("smaller", "thin", "dense")
    ]
    assert numbers[0] <= min(numbers[1:])
    layer = nn.Linear(6, 5)
    kept = dense_or_thin(hybrid(layer, {"": 3}), form=form)
    assert isinstance(
        kept, nn.Linear if form != "thin" else nn.Sequential
    )  # 33 numbers are more than 30
    tree = align(parameters(made), unrollings(made))
    if form == "dense":
        assert list(parameters(plain)) == list(tree)
    other = {
        name: leaf[:, :1].contiguous() if name.endswith((".u", ".v")) else leaf + 1
        for name, leaf in parameters(made).items()
    }
    close(dense_or_thin(made, other, form=form)(x), functional_call(made, other, (x,)), 1e-12)
    assert isinstance(dense_or_thin(made, form="thin")[2].conv1, nn.Sequential)
    assert tree_equal(parameters(dense_or_thin(residual())), parameters(residual()))
