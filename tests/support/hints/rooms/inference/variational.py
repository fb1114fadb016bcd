"""Messages of `federated_svi` and `conjugate`, and of `bayesfed.inference.variational`."""

import functools

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

import bayesfed as bf
from bayesfed.federated import NaturalGradient
from bayesfed.inference import MeanParameters, ReverseKL, Wasserstein
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inference.variational.families import NormalFamily
from tests.house.wrong_calls.given import DATA, KEY, go, line, net, svi
from tests.posteriors import test_model_terms as terms
from tests.posteriors import test_own_posteriors as own
from tests.posteriors.test_fusion_rules import HeavyBall, Partial, Silent

COMPLETE = (
    "bayesfed/algorithms/federated_svi/conjugate.py",
    "bayesfed/algorithms/federated_svi/defaults.py",
    "bayesfed/algorithms/federated_svi/fitting.py",
    "bayesfed/algorithms/federated_svi/local.py",
    "bayesfed/algorithms/federated_svi/network.py",
    "bayesfed/algorithms/federated_svi/recipe.py",
    "bayesfed/algorithms/federated_svi/server.py",
    "bayesfed/algorithms/federated_svi/tempering.py",
    "bayesfed/inference/variational/families.py",
    "bayesfed/inference/variational/fusion",
    "bayesfed/inference/variational/posterior.py",
    "bayesfed/inference/variational/program.py",
    "bayesfed/inference/variational/reading.py",
    "bayesfed/inference/variational/traced.py",
)
NETWORK = bf.bayesian(net(), bf.Gaussian(0.1))
PRIOR = {"h": torch.zeros(2)}
SMALL = {name: own.CLIENTS[name][:4] for name in ("a", "b")}
ONES = {name: bf.Dataset(torch.ones(4, 1), torch.rand(4)) for name in ("a", "b")}


def counts(rows):
    """Return sufficient statistics."""
    return {"h": rows.inputs.sum() + torch.zeros(2)}


def conjugate(statistics=counts, **options):
    """Infer a conjugate model."""
    return go(bf.conjugate(PRIOR, statistics), **options)


def work(optimiser=None, steps=2):
    """Return local work."""
    return bf.Training(steps, batch_size=None, optimiser=optimiser)


WIDE = bf.mlp([4, 16, 2], KEY)


def of_network(model=NETWORK, guide=None, **options):
    """Declare the inference of a network."""
    given = {"observations": 6, "example": DATA[:2], **options}
    return bf.federated_svi(model, guide, **given)


def ivon(**options):
    """Declare the inference of a network by IVON."""
    return of_network(**{"training": work(bf.federated.Ivon()), **options})


def declared(guide=AutoNormal, model=terms.plain, **options):
    """Declare a model of three inputs."""
    return bf.federated_svi(model, guide, example=terms.DATA[:3], **options)


def fused(guide=AutoNormal, fusion=None, **options):
    """Run a model under a rule."""
    algorithm = declared(guide, fusion=fusion, training=work(), observations=48, **options)
    go(algorithm, {"a": terms.DATA})


def cold(inputs, targets=None):
    """Weigh the likelihood in the model."""
    with pyro.poutine.scale(scale=2.0):
        return line(inputs, targets)


class Loud(HeavyBall):
    """A rule that says what its payloads mean."""

    kind = "value"


def in_air(snr_db, fusion):
    """Average posteriors through a channel."""
    link = bf.OverTheAir(bf.wireless.ChannelInversion(0.3), snr_db=snr_db)
    algorithm = of_network(guide=AutoNormal, fusion=fusion, link=link, training=work(steps=1))
    go(algorithm)


def fixed(inputs, targets=None):
    """Draw from what no parameter moves."""
    pyro.sample("w", dist.Normal(torch.zeros(3), 1.0).to_event(1))


def partly(inputs, targets=None):
    """Leave a site out."""
    pyro.sample("v", dist.Normal(pyro.param("loc", torch.zeros(3)), 1.0).to_event(1))


def before(inputs, targets=None):
    """Draw one value for all rows."""
    w = pyro.sample("w", dist.Normal(torch.zeros(3), 2.0).to_event(1))
    with pyro.plate("data", len(inputs)):
        pyro.sample("y", dist.Normal((inputs * w).sum(-1), 0.5), obs=targets)


class Before(terms.Inside):
    """Draws its weights before the plate."""

    def forward(self, inputs, targets=None):
        w = self.w
        with pyro.plate("data", len(inputs)):
            pyro.sample("y", dist.Normal((inputs * w).sum(-1), 0.5), obs=targets)


def summed_out(inputs, targets=None):
    """Sum over a state of each row."""
    w = terms.weights()
    with pyro.plate("data", len(inputs)):
        state = pyro.sample("state", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        pyro.sample("y", dist.Normal(inputs @ w, 0.5 + state), obs=targets)


def of_wards(guide):
    """Declare a model whose latents stay with clients."""
    return bf.federated_svi(own.offsets, guide, example=own.CLIENTS["a"][:2])


@functools.cache
def local(model=own.offsets):
    """Return a run whose latents stay with clients."""
    clients = ONES if model is own.wards else SMALL
    algorithm = bf.federated_svi(
        model, AutoNormal, observations=8, example=clients["a"], training=work()
    )
    return bf.run(algorithm, clients, rounds=1, progress=False)


@functools.cache
def plain(rate=1e-2, model=terms.plain, **options):
    """Return the posterior of a model of three inputs."""
    given = {"training": work(bf.Adam(rate), 5), "observations": 48, **options}
    algorithm = declared(model=model, **given)
    return go(algorithm, {"a": terms.DATA}).posterior


@functools.cache
def twofold():
    """Return a run of a model of two observed sites."""
    algorithm = declared(model=twice_seen, training=work(), observations=48)
    return go(algorithm, {"a": terms.DATA})


def weights(rows):
    """Return importance weights of a run whose latents stay with clients."""
    return local().posterior.log_weights_with_clients(local().snapshot.memories, rows, KEY, draws=2)


def unseen(posterior):
    """Predict without targets."""
    return posterior.observe(posterior.draw(KEY), terms.DATA.inputs, KEY)


def twice_seen(inputs, targets=None):
    """Observe the targets at two sites."""
    lik = terms.of(inputs)
    with pyro.plate("data", len(inputs)):
        pyro.sample("y", lik, obs=targets)
        pyro.sample("again", lik, obs=targets)


def silent(inputs, targets=None):
    """Draw targets where there are some."""
    lik = terms.of(inputs)
    if targets is not None:
        with pyro.plate("data", len(inputs)):
            pyro.sample("y", lik, obs=targets)


def damped(damping):
    """Run partitioned inference."""
    go(svi(fusion=bf.PVI(damping=damping)))


CASES = [
    (
        lambda: declared(plain(), training=work()),
        "the model and this posterior alone",
        lambda: bf.federated_svi(terms.plain, plain()),
    ),
    (
        lambda: declared(least_rows=20),
        "leaving out least_rows, or guide, fusion and training",
        lambda: (declared(), bf.federated_svi(terms.plain, least_rows=20)),
    ),
    # Conjugate models.
    (lambda: conjugate(test=DATA), "no `test` rows", conjugate),
    (
        lambda: conjugate(lambda rows: {"k": torch.zeros(2)}),
        "one leaf for each of the prior's",
        conjugate,
    ),
    (
        lambda: conjugate(lambda rows: {"h": torch.full((2,), torch.inf)}),
        "a look at the rows",
        conjugate,
    ),
    (lambda prior: bf.conjugate(prior, counts), {}),
    # Declarations.
    (
        lambda: plain(1e30, fusion=ReverseKL()),
        "a smaller learning rate",
        lambda: plain(1e-3, fusion=ReverseKL()),
    ),
    (
        lambda elbo: declared(elbo=elbo),
        Trace_ELBO(num_particles=4, vectorize_particles=True, max_plate_nesting=1),
    ),
    (
        lambda: ivon(fusion=bf.SummedGradients()),
        "Adam(1e-2), which is not used",
        lambda: ivon(fusion=bf.SummedGradients(), training=work(bf.Adam(1e-2))),
    ),
    (
        lambda: svi(training=work(bf.federated.Ivon())),
        "bayesian(net, Gaussian(0.1)) with AutoNormal",
        lambda: ivon(guide=AutoNormal),
    ),
    (
        lambda: svi(training=work(bf.federated.Ivon())),
        "NaturalGradient(0.1)",
        lambda: svi(training=work(NaturalGradient(0.1))),
    ),
    (
        lambda: ivon(guide=AutoMultivariateNormal),
        "AutoNormal",
        lambda: ivon(guide=AutoNormal),
    ),
    (
        lambda: ivon(elbo=Trace_ELBO()),
        "NaturalGradient(0.1)",
        lambda: ivon(elbo=Trace_ELBO(), training=work(NaturalGradient(0.1))),
    ),
    (
        lambda: bf.federated_svi(terms.plain, AutoNormal),
        "example=train[:2]",
        lambda: bf.federated_svi(terms.plain, AutoNormal, example=terms.DATA[:2]),
    ),
    (
        lambda: bf.federated_svi(terms.plain, AutoNormal),
        "the model alone",
        lambda: bf.federated_svi(terms.plain),
    ),
    (
        lambda: bf.federated_svi(bf.bayesian(WIDE)),
        "example=train[:2], observations=",
        lambda: of_network(bf.bayesian(WIDE)),
    ),
    (lambda scale: svi(scale=scale), "global"),
    (lambda: svi(temperature=0.5), "poutine.scale in the model", lambda: svi(cold)),
    (lambda: svi(fusion=bf.PVI), "PVI()", lambda: svi(fusion=bf.PVI())),
    (lambda fusion: svi(fusion=fusion), Partial()),
    (
        lambda: svi(fusion=Silent()),
        'kind = "value" in Silent',
        lambda: svi(fusion=Loud(), scale="global"),
    ),
    (
        lambda: in_air(-30.0, Wasserstein()),
        "a higher SNR",
        lambda: in_air(60.0, Wasserstein()),
    ),
    (
        lambda: in_air(-30.0, Wasserstein()),
        "SummedGradients(), whose sum may be noisy",
        lambda: in_air(-30.0, bf.SummedGradients()),
    ),
    (
        lambda: of_network(temperature="auto", fusion=bf.PVI(0.3)),
        "fusion=ReverseKL(), training=Training(optimiser=Ivon()), and a likelihood",
        lambda: ivon(temperature="auto", fusion=ReverseKL()),
    ),
    (lambda number: of_network(bf.bayesian(WIDE), observations=number), None),
    # Guides and rules.
    (
        lambda: NormalFamily().parameters({"h": torch.ones(1), "precision": -torch.ones(1)}, "w"),
        "half the damping",
        lambda: damped(0.25),
    ),
    (lambda fusion: fused(AutoMultivariateNormal, fusion), MeanParameters()),
    (
        lambda: fused(fixed, bf.SummedGradients()),
        "AutoNormal",
        lambda: fused(AutoNormal, bf.SummedGradients()),
    ),
    (
        lambda: fused(AutoNormal, bf.SummedGradients(), stay=("*",)),
        "stay=()",
        lambda: fused(AutoNormal, bf.SummedGradients(), stay=()),
    ),
    (
        lambda: fused(AutoLowRankMultivariateNormal, bf.PVI()),
        "SummedGradients(), which serves any guide",
        lambda: fused(AutoLowRankMultivariateNormal, bf.SummedGradients()),
    ),
    (
        lambda: fused(AutoMultivariateNormal, Wasserstein()),
        "AutoNormal",
        lambda: fused(AutoNormal, Wasserstein()),
    ),
    (
        lambda: fused(AutoMultivariateNormal, Wasserstein()),
        "PVI()",
        lambda: fused(AutoMultivariateNormal, bf.PVI()),
    ),
    (lambda: bf.PVI(mixing=0.5), "PVI(0.3, mixing=0.5)", lambda: bf.PVI(0.3, mixing=0.5)),
    (declared, 3),
    (
        lambda: declared(model=lambda inputs: inputs),
        "def model(inputs, targets=None)",
        declared,
    ),
    (lambda: declared(model=lambda inputs: inputs), "bayesian(net, Gaussian(1.0))", of_network),
    (of_wards, AutoDiagonalNormal),
    (
        lambda: declared(model=terms.row_latents),
        "an amortised guide",
        lambda: declared(terms.amortised, terms.row_latents, fusion=bf.SummedGradients()),
    ),
    (
        lambda: declared(model=terms.row_latents),
        "enumeration",
        lambda: declared(AutoNormal(pyro.poutine.block(summed_out, hide=["state"])), summed_out),
    ),
    (
        lambda: declared(model=terms.row_latents),
        "a plate named client",
        lambda: bf.federated_svi(own.wards, AutoNormal, example=ONES["a"]),
    ),
    (
        lambda: declared(model=terms.Inside()),
        "w = self.w before the plate",
        lambda: declared(model=Before()),
    ),
    (
        lambda: declared(terms.of_rows),
        "pyro.param in place of figures of rows",
        lambda: declared(AutoNormal(terms.plain)),
    ),
    (
        lambda: declared(AutoNormal(terms.wider)),
        "AutoNormal, which is made of the model",
        lambda: declared(AutoNormal),
    ),
    (lambda: declared(partly), "AutoNormal(model)", lambda: declared(AutoNormal(terms.plain))),
    (declared, AutoDelta),
    # Posteriors.
    (
        lambda: twofold().posterior.observe({}, terms.DATA.inputs, KEY),
        "Result.to_arviz, which has every site",
        lambda: twofold().to_arviz(terms.DATA, draws=2),
    ),
    (
        lambda: plain().observe(plain().draw(KEY), torch.zeros(2, 5), KEY),
        "rows of the width and type that were fitted",
        lambda: plain().observe(plain().draw(KEY), torch.zeros(2, 3), KEY),
    ),
    (lambda: unseen(plain(model=silent)), "targets=None", lambda: unseen(plain())),
    (lambda draws: plain().log_weights(terms.DATA, KEY, draws=draws), 0),
    (
        lambda: local().posterior.log_weights(SMALL["a"], KEY),
        "log_weights_with_clients(memories, rows by client, key)",
        lambda: weights(SMALL),
    ),
    (
        lambda: local().posterior.log_weights(SMALL["a"], KEY),
        "Result.k_hat(rows by client)",
        lambda: local().k_hat(SMALL, draws=100),
    ),
    (
        lambda draws: local().posterior.log_weights_with_clients(
            local().snapshot.memories, SMALL, KEY, draws=draws
        ),
        0,
    ),
    (
        lambda: weights({"a": SMALL["a"]}),
        "the rows of all clients that were fitted, {name: rows}",
        lambda: weights(SMALL),
    ),
    (
        lambda: local().posterior.at_client({}),
        "a client that took part",
        lambda: local().posterior.at_client(local().snapshot.memories["a"]),
    ),
    (
        lambda: local().posterior.at_client({}),
        "`Predictive(result.posterior, ...)` for a new one",
        lambda: Predictive(local().posterior, SMALL["a"].inputs, KEY, count=2).mean,
    ),
    (
        lambda: local(own.wards).posterior.at_client(
            local(own.wards).snapshot.memories["a"], ONES["a"][:2]
        ),
        "the client's own rows, as they were fitted",
        lambda: local(own.wards).posterior.at_client(
            local(own.wards).snapshot.memories["a"], ONES["a"]
        ),
    ),
]
