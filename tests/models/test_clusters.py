"""Whole inputs and outputs: clusters that share one variable, summed exactly."""

import itertools

import networkx as nx
import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ToDensity
from bayesfed.errors import ArgumentError
from bayesfed.inference import infer
from bayesfed.inference.turbo.support_posterior import DeclaredPosterior
from bayesfed.keys import Key, forked
from bayesfed.models import (
    Clusters,
    Inputs,
    MarkovGrid,
    Neighbourhood,
    Outputs,
    SiteBelief,
    compact,
)
from bayesfed.models.random_fields.clusters import spread
from bayesfed.models.random_fields.sampling import ClusteredSupport
from bayesfed.models.random_fields.whole import makes, reads
from tests.support.beliefs import check_support, enumerate_log_odds

LAYERS = [
    (nn.Linear(4, 3), lambda i: torch.eye(4)[i][None]),
    (nn.Conv2d(4, 6, 3), lambda i: _channel(4, i)),
    (nn.Conv2d(4, 6, 3, groups=2), lambda i: _channel(4, i)),
    (nn.Conv2d(4, 4, 3, groups=4), lambda i: _channel(4, i)),
    (nn.ConvTranspose2d(4, 6, 3), lambda i: _channel(4, i)),
    (nn.ConvTranspose2d(4, 6, 3, groups=2), lambda i: _channel(4, i)),
    (nn.Embedding(4, 3), lambda i: torch.tensor([i])),
    (nn.EmbeddingBag(4, 3), lambda i: torch.tensor([[i]])),
]


def _channel(channels, number):
    picture = torch.zeros(1, channels, 5, 5)
    picture[0, number] = 1 + torch.arange(25.0).reshape(5, 5)
    return picture


@pytest.mark.parametrize(
    ("support", "inputs"),
    [
        (Inputs(), None),
        (Outputs(bf.Independent(0.3)), None),
        (bf.models.Channels(), None),
        (Inputs(MarkovGrid(0.6, 0.55)), None),
        (Inputs(MarkovGrid(0.6, 0.62, field=-0.3, patch=(2, 3))), 6),
        (Inputs(Neighbourhood(nx.cycle_graph(5), 0.6, -0.4)), 5),
    ],
)
def test_clusters_obey_the_laws_of_supports(support, inputs):
    check_support(support, inputs=inputs)


def test_a_column_is_the_sum_of_its_evidence_and_the_prior_like_enumeration():
    model = Inputs(bf.Independent(0.2)).lower((3, 4))
    evidence = torch.randn(3, 4, generator=Key(0, "evidence").generator(), dtype=torch.float64)
    result = infer(model, evidence)
    column = evidence.sum(0) + torch.logit(torch.tensor(0.2, dtype=torch.float64))
    assert result.method == "exact"
    assert result.trust == "exact"
    torch.testing.assert_close(result.belief, column.expand(3, 4), rtol=0, atol=1e-6)
    torch.testing.assert_close(result.belief, enumerate_log_odds(model, evidence))
    torch.testing.assert_close(result.extrinsic, result.belief - evidence)
    # Draws, the likeliest state and log Z are of the clusters too.
    drawn = result.sample(2000, Key(1, "draws")).double()
    assert bool((drawn == drawn[:, :1]).all())
    assert float((drawn.mean(0) - result.marginals).abs().max()) < 0.05
    torch.testing.assert_close(result.most_probable[0], (result.belief > 0).long())
    states = torch.tensor([*itertools.product([0.0, 1.0], repeat=4)], dtype=torch.float64)
    weights = states @ column
    torch.testing.assert_close(result.log_z, weights.logsumexp(0), rtol=0, atol=1e-6)


def test_log_z_of_clusters_has_the_marginals_as_its_gradient():
    evidence = torch.randn(3, 4, generator=Key(0, "evidence").generator(), requires_grad=True)
    result = infer(Outputs(MarkovGrid(0.6, 0.6)).lower((3, 4)), evidence)
    result.log_z.backward()
    torch.testing.assert_close(evidence.grad, result.marginals.detach())


@pytest.mark.parametrize(("layer", "only"), LAYERS, ids=lambda one: type(one).__name__)
def test_inputs_and_outputs_are_what_a_layer_reads_and_makes(layer, only):
    """A weight belongs to an input if it has a gradient when only this input is not zero, and to an
    output if that output alone gives it one.
    """
    shape, entries = tuple(layer.weight.shape), layer.weight[0].numel()
    matrix = shape[0], entries
    read, made = (
        spread(torch.arange(matrix[0] * entries // (unit[0] * unit[1])), unit, matrix)
        for unit in (reads(layer, shape), makes(layer, shape))
    )
    for number in range(4):
        outputs = layer(only(number))
        width = outputs.flatten(2).shape[1] if outputs.ndim > 2 else outputs.shape[1]
        seen = torch.zeros(shape, dtype=torch.bool)
        for output in range(width):
            (gradient,) = torch.autograd.grad(
                outputs[:, output].sum(), layer.weight, retain_graph=True
            )
            touched = (gradient != 0).reshape(-1, entries)
            assert bool((made[touched] == output).all())
            seen |= touched.reshape(shape)
        torch.testing.assert_close(seen.reshape(-1, entries), read == number)


def test_draws_of_the_prior_are_whole_and_as_dense_as_it_says():
    support = ClusteredSupport(Inputs(bf.Independent(0.3)).lower((5, 7)))
    with forked(Key(0, "draws")):
        drawn = support.sample((2000,))
    assert bool((drawn == drawn[:, :1]).all())
    assert abs(float(drawn.mean()) - 0.3) < 0.02
    whole = drawn[0]
    on = int(whole[0].sum())
    log_p = on * torch.log(torch.tensor(0.3)) + (7 - on) * torch.log(torch.tensor(0.7))
    torch.testing.assert_close(support.log_prob(whole), log_p)
    broken = whole.clone()
    broken[0, 0] = 1 - broken[0, 0]
    assert support.log_prob(broken) == -torch.inf


def test_what_is_no_clustering_is_refused():
    for unit, shape in (((2, 1), (3, 3)), ((0, 1), (2, 3)), ((1, 3), (2, 3))):
        with pytest.raises(ArgumentError, match="blocks that divide the matrix, and a variable"):
            Clusters(bf.Independent().lower((1, 3)), unit, shape)
    with pytest.raises(ArgumentError, match="one by one"):
        Inputs(Outputs()).lower((3, 4))


def posterior(support, odds):
    """Return a posterior of a linear layer's supports with these log-odds ``(M, N)``."""
    net = nn.Sequential(nn.Linear(odds.shape[1], odds.shape[0]))
    declared = bf.declare(net, bf.Prior(support))
    unit = torch.ones(2, 1, 1)
    belief = {"0.weight": SiteBelief(odds, torch.ones(()), odds, unit, unit)}
    return DeclaredPosterior(declared, belief, {"0.bias": torch.zeros(odds.shape[0])})


def test_probabilities_of_inputs_are_those_of_their_variables():
    column = torch.tensor([-1.0, 0.5, 3.0])
    odds = column.expand(4, 3).contiguous()
    found = posterior(Inputs(), odds).inputs(["age", "dose", "sex"])
    assert list(found) == ["age", "dose", "sex"]
    torch.testing.assert_close(torch.tensor(list(found.values())), column.sigmoid())
    # Without clusters an input has as many chances as it has weights, one for each row.
    alone = posterior(bf.Independent(), odds).inputs()
    torch.testing.assert_close(
        torch.tensor([alone["0"], alone["1"], alone["2"]]), 1 - (1 - column.sigmoid()) ** 4
    )
    rows = column.new_tensor([-1.0, 0.2])[:, None].expand(2, 3).contiguous()
    (one, *_) = posterior(Outputs(), rows).inputs().values()
    assert one == pytest.approx(float(1 - (1 - rows[:, 0].sigmoid()).prod()))
    with pytest.raises(ArgumentError, match="3, all distinct, found 2 of 3"):
        posterior(Inputs(), odds).inputs(["age", "age", "sex"])
    with pytest.raises(ArgumentError, match="inputs, site"):
        posterior(Inputs(), odds).inputs(site="1.weight")


def test_a_network_finds_its_inputs_and_is_compacted_to_them():
    random = Key(0, "rows").generator()
    inputs = torch.randn(240, 12, generator=random)
    data = bf.Dataset(inputs, (inputs[:, 3] + inputs[:, 8] > 0).long())
    net = bf.mlp([12, 16, 2], Key(0, "net"))
    prior = {"1.weight": bf.Prior(Inputs()), "3.weight": bf.Prior(bf.Independent())}.__getitem__
    work = bf.Training(steps=15, optimiser=bf.Adam(2e-2))
    algorithm = bf.d_turbo_vbi(
        bf.declare(net, prior),
        observations=len(data),
        density=ToDensity(0.2, keep=0.6, patience=1),
        training=work,
    )
    result = bf.run(
        algorithm, bf.federate(data, bf.iid(240, 3, Key(0, "who"))), rounds=8, progress=False
    )
    found = result.inputs()
    likeliest = sorted(found, key=found.__getitem__)[-2:]
    assert sorted(likeliest) == ["3", "8"]
    weight = result.model.parameters["1.weight"]
    columns = (weight != 0).any(0)
    assert int(columns.sum()) <= 4
    assert [number for number, share in enumerate(found.values()) if share > 0.5] == (
        columns.nonzero()[:, 0].tolist()
    )
    small = compact(net, result.model.parameters)
    torch.testing.assert_close(small(inputs), result.model(inputs), rtol=0, atol=1e-5)


def test_inputs_that_are_not_used_are_never_multiplied():
    net = bf.mlp([400, 64, 3], Key(0, "net"))
    values = {name: value.detach().clone() for name, value in net.named_parameters()}
    values["1.weight"][:, 40:] = 0
    rows = torch.randn(9, 400, generator=Key(0, "rows").generator())
    small = compact(net, values)
    assert small.forms["1"] == "dropped 64 x 400, 10.0%"
    net.load_state_dict(values)
    torch.testing.assert_close(small(rows), net(rows), rtol=0, atol=1e-5)
