"""Laplace: the sums of clients are the central GGN, the posterior is the dense Gaussian, and
predictions are those of laplace-torch.
"""

import math
import time
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev, vmap
from torch.nn.functional import cross_entropy

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError, UndeterminedWarning
from bayesfed.inference.laplace.evidence import best_precision, log_evidence
from bayesfed.inference.laplace.layers import last_layer
from bayesfed.inference.laplace.posterior import LaplacePosterior
from bayesfed.inference.laplace.roots import roots
from bayesfed.inference.laplace.structures import DiagonalLayers, Kronecker
from bayesfed.keys import Key
from bayesfed.trees import parameters
from tests.conftest import tree_equal


def problem(net, count=60, shape=(5,), classes=3):
    noise = Key(0, "laplace").generator()
    inputs = torch.randn(count, *shape, generator=noise, dtype=torch.float64)
    data = bf.Dataset(inputs, torch.randint(classes, (count,), generator=noise))
    return net.double(), data, {"a": data[:7], "b": data[7:50], "c": data[50:50], "d": data[50:]}


def small(bias=True):
    return nn.Sequential(nn.Linear(5, 4, bias=bias), nn.Tanh(), nn.Linear(4, 3, bias=bias))


class Odd(nn.Module):
    """Registers its output layer first."""

    def __init__(self, inputs=5, classes=3):
        super().__init__()
        self.out, self.body = nn.Linear(4, classes), nn.Linear(inputs, 4)

    def forward(self, inputs):
        return self.out(torch.relu(self.body(inputs)))


def fitted(net, clients, **options):
    return bf.run(bf.laplace(net, **options), clients, rounds=1, progress=False)


def dense(net, data, names):
    """The GGN of all rows by automatic differentiation, flat in the order of the names."""
    own = {name: leaf.detach() for name, leaf in net.named_parameters()}

    def outputs(given, row):
        return functional_call(net, own | given, (row[None],))[0]

    by_name = vmap(jacrev(outputs), (None, 0))({name: own[name] for name in names}, data.inputs)
    jacobian = torch.cat([by_name[name].flatten(2) for name in names], 2)
    p = net(data.inputs).softmax(1).detach()
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    return torch.einsum("bcp,bcd,bdq->pq", jacobian, middle, jacobian), jacobian


@pytest.mark.parametrize("subset", ["last", "all"])
def test_full_and_diagonal_are_the_central_ones(subset):
    net, data, clients = problem(small())
    names = ("2.weight", "2.bias") if subset == "last" else tuple(parameters(net))
    hessian, jacobian = dense(net, data, names)
    full, diagonal = (
        fitted(net, clients, subset=subset, structure=form, prior_precision=0.7).posterior
        for form in ("full", "diagonal")
    )
    block = full.blocks["flat"]
    assert torch.allclose(
        block.right @ torch.diag(block.values[0]) @ block.right.mT, hessian, atol=1e-9
    )
    ridge = 0.7 * torch.eye(len(hessian), dtype=torch.float64)
    covariance = torch.einsum("bcp,pq,bdq->bcd", jacobian, (hessian + ridge).inverse(), jacobian)
    assert torch.allclose(full.outputs(data.inputs)[1], covariance, atol=1e-9)
    variance = 1 / (hessian.diagonal() + 0.7)
    assert torch.allclose(
        diagonal.outputs(data.inputs)[1],
        torch.einsum("bcp,p,bdp->bcd", jacobian, variance, jacobian),
        atol=1e-9,
    )
    sds = torch.cat([diagonal.constants[f"{name}.sd"].flatten() for name in names])
    assert torch.allclose(sds, variance.sqrt(), atol=1e-9)
    # The log determinant of the evidence, from its definition.
    norm = sum(float(net.get_parameter(name).detach().square().sum()) for name in names)
    fit = -float(
        nn.functional.cross_entropy(net(data.inputs).detach(), data.targets, reduction="sum")
    )
    expected = (
        fit
        - 0.35 * norm
        + (len(hessian) * math.log(0.7) - float(torch.logdet(hessian + ridge))) / 2
    )
    assert full.log_evidence == pytest.approx(expected, abs=1e-8)


def test_kronecker_factors_do_not_depend_on_the_partition():
    net, data, clients = problem(
        nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(32, 3)
        ),
        shape=(1, 4, 4),
    )
    split, central = (
        fitted(net, part, subset="all").posterior for part in (clients, {"all": data})
    )
    assert split.precision == pytest.approx(central.precision, rel=1e-6)
    assert torch.allclose(split.probit(data.inputs), central.probit(data.inputs), atol=1e-7)
    values, norm = (
        central.values,
        sum(float(leaf.square().sum()) for leaf in central.centre.values()),
    )
    best = best_precision(values, norm)
    assert all(
        log_evidence(values, 0.0, norm, best) > log_evidence(values, 0.0, norm, best * factor)
        for factor in (0.97, 1.03)
    )
    # MacKay's condition at the maximum.
    assert best * norm == pytest.approx(float((values / (values + best)).sum()), rel=1e-3)


@pytest.mark.parametrize("options", [{"structure": "full"}, {"subset": "all"}])
def test_draws_agree_with_the_covariance_of_the_outputs(options):
    net, data, clients = problem(small())
    result = fitted(net, clients, prior_precision=2.0, **options)
    _, covariance = result.posterior.outputs(data.inputs[:4])
    draws = [result.posterior.draw(Key(number, "draw")) for number in range(1000)]
    logits = torch.stack(
        [given.logits for given in result.posterior.observe_draws(draws, data.inputs[:4])]
    )
    # Softmax leaves a shift open: differences from the first output count.
    shift = torch.cat([torch.zeros(1000, 4, 1), (logits - logits[..., :1])[..., 1:]], 2)
    rotated = torch.eye(3, dtype=torch.float64)
    rotated[:, 0] -= 1
    expected = rotated @ covariance @ rotated.mT
    sample = torch.stack([shift[:, row].mT.cov() for row in range(4)])
    assert torch.allclose(sample, expected, atol=0.2 * float(expected.abs().max()))
    one = result.posterior.observe(draws[0], data.inputs[:4], Key(0))
    assert torch.allclose(one.logits, logits[0], atol=1e-9)
    by_draws = result.predictive(data.inputs, draws=400).mean
    assert float((by_draws - result.posterior.probit(data.inputs)).abs().max()) < 0.06


@pytest.mark.laplace
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("subset", ["last", "all"])
@pytest.mark.parametrize("structure", ["full", "diagonal", "kronecker"])
def test_laplace_torch_agrees(subset, structure):
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    net, data, clients = problem(small())
    ours = fitted(
        net, clients, subset=subset, structure=structure, prior_precision=0.7, biases="apart"
    ).posterior
    names = (
        {"full": "full", "diagonal": "diag", "kronecker": "kron"},
        {"last": "last_layer", "all": "all"},
    )
    theirs = Laplace(
        net,
        "classification",
        subset_of_weights=names[1][subset],
        hessian_structure=names[0][structure],
    )
    theirs.fit(DataLoader(TensorDataset(data.inputs, data.targets), batch_size=len(data)))
    theirs.prior_precision = torch.tensor(0.7, dtype=torch.float64)
    assert ours.log_evidence == pytest.approx(float(theirs.log_marginal_likelihood()), abs=1e-5)
    assert torch.allclose(
        ours.probit(data.inputs), theirs(data.inputs, link_approx="probit"), atol=1e-5
    )


def test_in_last_layer_the_draws_are_those_of_the_network():
    net, data, clients = problem(small())
    posterior = fitted(net, clients).posterior
    draw = posterior.draw(Key(1))
    network = functional_call(net, {**parameters(net), **draw}, (data.inputs,))
    assert torch.allclose(
        posterior.observe(draw, data.inputs, Key(0)).logits, network.log_softmax(1), atol=1e-9
    )


def test_after_training_in_every_round(net, digits, clients):
    """The wrapped method is the method, bit for bit; sums are 32-bit triangles."""
    _, test = digits
    work = bf.Training(steps=5)
    plain = bf.run(bf.fed_avg(net, training=work), clients, rounds=2, progress=False)
    both = bf.run(bf.laplace(bf.fed_avg(net, training=work)), clients, rounds=2, progress=False)
    after = bf.run(bf.laplace(plain.model), clients, rounds=1, progress=False)
    assert tree_equal(plain.model.parameters, both.model.parameters)
    assert torch.allclose(both.posterior.probit(test.inputs), after.posterior.probit(test.inputs))
    rows = [row for row in after.ledger if row.direction == "up"]
    inputs = dict(net.named_parameters())["3.weight"].shape[1] + 1
    assert all(row.cost.bits < 32 * (inputs * (inputs + 1) // 2 + 55 + 1) + 4000 for row in rows)
    scores = after.scores(test, draws=20)["all"]
    assert scores["mutual_information"] > 0
    assert after.final("determined") < 10 * inputs
    groups = after.to_arviz(test[:3], draws=4)
    assert {"posterior", "prior", "posterior_predictive"} & set(groups.groups())


def test_numbers_are_a_ridge_regression():
    """With squared errors and one linear layer, the Laplace approximation is the exact
    posterior.
    """
    noise = Key(2).generator()
    inputs = torch.randn(40, 3, generator=noise, dtype=torch.float64)
    data = bf.Dataset(
        inputs,
        inputs @ torch.ones(3, 1, dtype=torch.float64)
        + 0.1 * torch.randn(40, 1, generator=noise, dtype=torch.float64),
    )
    net = nn.Sequential(nn.Linear(3, 1, bias=False)).double()
    posterior = fitted(
        net,
        {"a": data[:10], "b": data[10:]},
        likelihood=bf.Normal(0.1),
        structure="full",
        prior_precision=3.0,
    ).posterior
    exact = (inputs.mT @ inputs / 0.01 + 3 * torch.eye(3, dtype=torch.float64)).inverse()
    assert torch.allclose(
        posterior.outputs(inputs)[1][:, 0, 0], torch.einsum("bi,ij,bj->b", inputs, exact, inputs)
    )


def test_a_network_that_fits_its_rows_exactly_is_told(digits):
    """Its draws are worth nothing, and the evidence does not know."""
    train, test = digits[0][:200], digits[1]
    work = bf.Training(steps=1500, batch_size=32, optimiser=bf.Adam(3e-3))
    trained = bf.run(
        bf.fed_avg(bf.mlp([64, 32, 10], Key(0)), training=work),
        {"a": train},
        rounds=1,
        progress=False,
    ).model
    with pytest.warns(
        UndeterminedWarning,
        match=r"fits its rows exactly \(NLL .* a row\).*try fewer rounds or prior_precision=",
    ):
        wide = fitted(trained, {"a": train})
    narrow = fitted(trained, {"a": train}, prior_precision=30.0)
    plain = float(cross_entropy(trained(test.inputs), test.targets))
    assert wide.scores(test)["all"]["nll"] > 1.5 * plain
    assert narrow.scores(test)["all"]["nll"] < 1.2 * plain


@pytest.mark.parametrize(("rows", "worse"), [(200, True), (1437, False)])
def test_draws_that_predict_worse_than_a_network_that_fits_closely_are_told(digits, rows, worse):
    """The sums over rows say what other rows show."""
    train, test = digits[0][:rows], digits[1]
    work = bf.Training(steps=300, batch_size=32, optimiser=bf.Adam(3e-3))
    trained = bf.run(
        bf.fed_avg(bf.mlp([64, 32, 10], Key(0)), training=work),
        {"a": train},
        rounds=1,
        progress=False,
    ).model
    plain = float(cross_entropy(trained(test.inputs), test.targets))
    for precision in ("evidence", 1.0):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            draws = fitted(trained, {"a": train}, prior_precision=precision)
        said = [str(warning.message) for warning in caught]
        assert [words for words in said if "fits its rows closely" in words] == said
        assert bool(said) is worse
        assert (draws.scores(test)["all"]["nll"] > 1.4 * plain) is worse


def test_what_does_not_fit_is_refused(net, digits):
    with pytest.raises(ArgumentError, match="at most 20,000 parameters"):
        bf.laplace(bf.mlp([784, 64, 10], Key(0)), subset="all", structure="full")
    with pytest.raises(ArgumentError, match="linear and convolution layers"):
        bf.laplace(nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2)), subset="all")
    with pytest.raises(ArgumentError, match="a network with a linear layer"):
        bf.laplace(nn.Conv2d(1, 1, 3))
    for wrong in (
        {"subset": "first"},
        {"prior_precision": 0.0},
        {"prior_precision": "most"},
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"structure": "block"},
    ):
        with pytest.raises(ArgumentError, match=r"laplace"):
            bf.laplace(net, **wrong)
    with pytest.raises(ArgumentError, match="one model and no posterior"):
        bf.laplace(bf.p_fed_bayes(net))
    with pytest.raises(ArgumentError, match="expected a Module or a Predictor"):
        bf.laplace("net")
    with pytest.raises(ArgumentError, match="names of the network's parameters, found 'nowhere'"):
        bf.laplace(net, {"nowhere": torch.zeros(2)})
    shifted = nn.Sequential(nn.Linear(64, 10), nn.Tanh())
    with pytest.raises(ClientError, match="outputs of the last linear layer"):
        bf.run(
            bf.laplace(nn.Sequential(nn.Flatten(), shifted)),
            {"a": digits[1]},
            rounds=1,
            progress=False,
        )


@pytest.mark.parametrize("structure", ["kronecker", "diagonal", "full"])
def test_a_layer_that_is_not_the_last_is_refused(structure):
    net, _, clients = problem(Odd())
    with pytest.raises(ClientError, match="'body', to be used last, found 'out'"):
        fitted(net, clients, structure=structure)


@pytest.mark.parametrize("structure", ["kronecker", "diagonal", "full"])
def test_a_frozen_last_layer_has_the_gaussian_of_a_trained_one(structure):
    net, data, clients = problem(small())
    plain = fitted(net, clients, structure=structure)
    net.requires_grad_(False)
    net[0].weight.requires_grad_()
    frozen = fitted(net, clients, structure=structure)
    # Sent is what is trained.
    assert frozen.model.parameters.keys() == {"0.weight"}
    assert tree_equal(plain.posterior.constants, frozen.posterior.constants)
    assert tree_equal(plain.posterior.draw(Key(1)), frozen.posterior.draw(Key(1)))
    assert torch.equal(plain.posterior.probit(data.inputs), frozen.posterior.probit(data.inputs))


@pytest.mark.parametrize(
    "frozen", [["0.weight", "0.bias"], ["2.weight", "2.bias"], ["0.bias"], ["2.bias"]]
)
def test_layers_are_those_with_trained_parameters(frozen):
    net, data, clients = problem(small())
    for name in frozen:
        net.get_parameter(name).requires_grad_(False)
    kronecker, diagonal, full = (
        fitted(net, clients, subset="all", structure=form, prior_precision=0.7)
        for form in ("kronecker", "diagonal", "full")
    )
    trained = {name for name, _ in net.named_parameters()} - set(frozen)
    assert (
        kronecker.posterior.centre.keys()
        == diagonal.posterior.centre.keys()
        == full.posterior.centre.keys()
        == trained
    )
    hessian, _ = dense(net, data, tuple(full.posterior.centre))
    sds = torch.cat(
        [diagonal.posterior.constants[f"{name}.sd"].flatten() for name in full.posterior.centre]
    )
    assert torch.allclose(sds, (hessian.diagonal() + 0.7).rsqrt(), atol=1e-9)


def test_what_layers_cannot_hold_is_refused():
    net, data, clients = problem(
        nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
    )
    net[2].weight = net[0].weight
    with pytest.raises(ArgumentError, match="tied or in a layer of groups; try structure='full'"):
        bf.laplace(net, subset="all")
    hessian, _ = dense(net, data, tuple(parameters(net)))
    diagonal = fitted(
        net, clients, subset="all", structure="diagonal", prior_precision=0.7
    ).posterior
    sds = torch.cat([diagonal.constants[f"{name}.sd"].flatten() for name in parameters(net)])
    assert torch.allclose(sds, (hessian.diagonal() + 0.7).rsqrt(), atol=1e-9)
    half = small()
    half[0].weight.requires_grad_(False)
    with pytest.raises(ArgumentError, match="trained parameters elsewhere"):
        bf.laplace(half, subset="all")
    with pytest.raises(ArgumentError, match="a trained parameter, found all frozen"):
        bf.laplace(small().requires_grad_(False), subset="all", structure="full")
    square = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    square[2].weight = square[0].weight
    with pytest.raises(ArgumentError, match=r"the last layer alone, found tied \['2.weight'\]"):
        bf.laplace(square)
    with pytest.raises(
        ArgumentError, match=r"running statistics, found \['1'\]; try .*batch_statistics"
    ):
        bf.laplace(
            nn.Sequential(
                nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)
            )
        )


@pytest.mark.parametrize("form", [Kronecker, DiagonalLayers])
@pytest.mark.parametrize(
    "likelihood", [bf.Categorical(temperature=0.5), bf.Normal(0.3, temperature=2.0)]
)
def test_the_closed_form_of_a_last_layer_is_that_of_gradients(form, likelihood):
    """Sums, covariance and draws of a layer as the last are those of the same layer as any other,
    whose gradients are taken output by output.
    """
    net, data, _ = problem(small())
    own, last = parameters(net), last_layer(net)
    closed, twin = form((last,)), form((replace(last, last=False),))
    columns = roots(likelihood)
    tree_close(*(one.sums(net, own, data.inputs, columns)[1] for one in (closed, twin)))
    sums = {
        name: leaf / 60 for name, leaf in closed.sums(net, own, data.inputs, columns)[1].items()
    }
    pair = [
        LaplacePosterior(net, likelihood, own, one, sums, 60.0, 1.0, 0.7) for one in (closed, twin)
    ]
    torch.testing.assert_close(*(one.outputs(data.inputs) for one in pair))
    drawn = [one.observe(one.draw(Key(1)), data.inputs, Key(2)) for one in pair]
    torch.testing.assert_close(*(one.log_prob(one.sample() * 0) for one in drawn))


def test_a_thousand_classes_take_no_gradient_each():
    """Gradients class by class would take 10,000 times as long as with ten classes, and 8 MB of
    double precision a row.
    """

    def seconds(classes):
        data = bf.Dataset(torch.randn(250, 6), torch.arange(250) % classes)
        begin = time.process_time()
        result = fitted(nn.Linear(6, classes), {"a": data}, structure="diagonal")
        assert result.predictive(data.inputs[:20], draws=2).mean.shape == (20, classes)
        return time.process_time() - begin

    ten, thousand = (min(seconds(classes) for _ in range(3)) for classes in (10, 1000))
    assert thousand < 100 * ten


def tree_close(first, second):
    """Compare trees to rounding."""
    assert first.keys() == second.keys()
    for name, leaf in first.items():
        torch.testing.assert_close(leaf, second[name], rtol=1e-10, atol=1e-12)


class Scaled(nn.Module):
    """A linear layer times one number, which is a parameter without an axis."""

    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 2), nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.scale * self.linear(x)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_a_scalar_parameter_has_a_curvature(structure):
    torch.manual_seed(0)
    net, rows = Scaled(), bf.Dataset(torch.randn(30, 3), torch.randn(30, 2))
    options = {"likelihood": bf.Normal(1.0), "prior_precision": 2.0, "subset": "all"}
    posterior = fitted(net, {"a": rows}, structure=structure, **options).posterior
    drawn = [posterior.draw(Key(0, number))["scale"] for number in range(400)]
    with torch.no_grad():
        gradients = net.linear(rows.inputs)
    if structure == "diagonal":
        precision = 2.0 + float(gradients.double().square().sum())
        assert float(torch.stack(drawn).std()) == pytest.approx(precision**-0.5, rel=0.15)
    assert drawn[0].shape == ()


def test_a_body_with_weight_norm_has_a_last_layer():
    norm = nn.utils.parametrizations.weight_norm
    rows = bf.Dataset(torch.randn(30, 3), torch.arange(30) % 2)
    body, head = nn.Linear(3, 4), nn.Linear(4, 2)
    found = fitted(nn.Sequential(norm(body), nn.Tanh(), head), {"a": rows})
    assert found.posterior.draw(Key(0, "draw"))["2.weight"].shape == (2, 4)
    with pytest.raises(ArgumentError, match="found 2.weight, which is computed from others"):
        bf.laplace(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), norm(nn.Linear(4, 2))))
