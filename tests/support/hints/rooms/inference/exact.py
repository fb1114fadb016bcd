"""Messages of `federated_svi` of a model alone."""

import functools
import tempfile
import warnings
from dataclasses import replace

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.own import inside
from bayesfed.inference.exact.traced import doubled, traced
from tests.posteriors.test_exact_runs import line, rows, run, sites

COMPLETE = ("bayesfed/inference/exact", "bayesfed/algorithms/federated_svi/exact")
CLIENTS = sites(*rows())
FAR = {name: replace(part, inputs=part.inputs + 1000) for name, part in CLIENTS.items()}
LARGE = {name: replace(part, targets=part.targets * 1e8) for name, part in CLIENTS.items()}
DEEP = {"s0": bf.Dataset(torch.ones(3, *[1] * 9), torch.ones(3))}


def named(part):
    """Return rows whose inputs have names."""
    return bf.Dataset({"x": part.inputs[:, 0], "z": part.inputs[:, 1]}, part.targets)


@functools.cache
def done(model=line):
    """Return a finished run."""
    return run(CLIENTS, model)


def short():
    """Return a run that ended too early."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(CLIENTS, rounds=2)


def at(width):
    """Predict rows of a width."""
    posterior, key = done().posterior, bf.Key(0)
    return posterior.observe(posterior.draw(key), torch.ones(3, width), key)


def large(inputs, targets=None):
    pyro.sample("w", dist.Normal(torch.zeros(20_000), 1.0).to_event(1))
    line(inputs, targets)


def tied(inputs, targets=None, count=12):
    """Own values with long tails, all of which every row enters."""
    line(inputs, targets)
    with pyro.plate("client", count):
        own = pyro.sample("own", dist.Cauchy(torch.tensor(0.0), 3.0))
    with pyro.plate("again", len(inputs)):
        pyro.sample("z", dist.StudentT(2.0, own.sum(-1), 1.0), obs=targets)


def batches(size=None):
    """Fit a line to rows of which a model takes some."""

    def model(inputs, targets=None):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        with pyro.plate("rows", len(inputs), subsample_size=size) as chosen:
            pyro.sample("y", dist.Normal(slope * inputs[chosen, 0], 1.0), obs=targets[chosen])

    return done(model)


def lagged(column):
    """Fit a series, its lag in a column or in the model."""

    def model(inputs, targets=None):
        slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
        before, now = (inputs[:, 0], targets) if column else (targets[:-1], targets[1:])
        with pyro.plate("times", len(now)):
            pyro.sample("y", dist.Normal(slope * before, 1.0), obs=now)

    return done(model)


def checked_own(count):
    """Check the integrals over so many own values."""
    rows = CLIENTS["s0"]
    model = functools.partial(tied, count=count)
    point = torch.zeros(2, dtype=torch.float64)
    with doubled():
        inside(traced(model, Form.of(rows), "client"), rows, point).check(point)


def discrete(inputs, targets=None):
    kind = pyro.sample("kind", dist.Bernoulli(torch.tensor(0.5)))
    pyro.factor("y", dist.Normal(kind, 1.0).log_prob(targets).sum())


def summed_out(inputs, targets=None):
    line(inputs, targets)
    likely = torch.stack([dist.Normal(kind, 1.0).log_prob(targets).sum() for kind in (0.0, 1.0)])
    pyro.factor("kind", likely.logsumexp(0))


def several(inputs, targets=None):
    line(inputs, targets)
    with pyro.plate("again", len(inputs)):
        pyro.sample("z", dist.Normal(0.0, 1.0), obs=targets)


def further(inputs, targets=None):
    line(inputs, targets)
    if bool((inputs > 100).any()):
        pyro.sample("more", dist.Normal(0.0, 1.0))


def under(inputs, targets=None):
    line(inputs, targets)
    with pyro.plate("client", 1 + int((inputs > 100).any())):
        pyro.sample("more", dist.Normal(0.0, 1.0))


def moved(inputs, targets=None):
    pyro.sample("a", dist.Normal((inputs > 100).any().double(), 1.0))
    line(inputs, targets)


def informed(inputs, targets=None):
    pyro.sample("a", dist.Normal(inputs.mean(), 1.0))
    line(inputs, targets)


def averaged(inputs, targets=None):
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    pyro.factor("y", dist.Normal(inputs @ beta, 1.0).log_prob(targets).mean())


def bounded(inputs, targets=None, least=0.0):
    a = pyro.sample("a", dist.Normal(torch.tensor(2.0), 1.0))
    pyro.factor("least", torch.where(a > least, 3 * a.log(), -torch.inf))
    pyro.sample("y", dist.Normal(a, 1.0).expand(targets.shape).to_event(1), obs=targets)


def noisy(inputs, targets=None):
    line(torch.dropout(inputs, 0.5, train=True), targets)


def centred(inputs, targets=None):
    line(inputs - inputs.mean(0), targets)


def free(inputs, targets=None):
    beta = pyro.param("beta", torch.zeros(2, dtype=torch.float64))
    pyro.factor("y", -(targets - inputs @ beta).square().sum())
    pyro.sample("a", dist.Normal(torch.tensor(0.0), 1.0))


def unseen(inputs, targets=None):
    pyro.sample("a", dist.Normal(torch.tensor(0.0), 1.0))


def guided(model):
    """Declare a fit of a guide."""
    return lambda: bf.federated_svi(
        model, AutoNormal, example=bf.Dataset(torch.ones(2, 2), torch.ones(2))
    )


def observed(model):
    """Observe at a draw."""
    posterior = done(model).posterior
    return posterior.observe(posterior.draw(bf.Key(0)), CLIENTS["s0"].inputs, bf.Key(1))


def regression(**given):
    """Run the line with arguments."""
    return bf.run(bf.federated_svi(line, **given), CLIENTS, progress=False)


def few(**given):
    """Run sites of which one has five rows."""
    clients = CLIENTS | {"s3": CLIENTS["s0"][:5]}
    return bf.run(bf.federated_svi(line, **given), clients, progress=False)


ONES = bf.Dataset(torch.ones(2, 2), torch.ones(2))
OTHER = bf.Dataset(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))


def other(inputs, targets=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.factor("y", dist.Normal(a, 1.0).log_prob(targets).sum())


def weighed(model=line, **settings):
    """Weigh a fit of another number of rounds, at its first guide."""
    fit = bf.federated_svi(line, AutoNormal, example=bf.Dataset(torch.ones(2, 2), torch.ones(2)))
    return bf.federated_svi(model, fit.posterior(fit.initial), **settings)


def apart(inputs, targets=None):
    """State rows that tell a sum of two unknowns alone, whose priors are flat."""
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    at = pyro.sample("a", flat) + pyro.sample("b", flat)
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(at, 1.0), obs=targets)


def coin(most=3, cast=torch.Tensor.float, family=lambda at: dist.Bernoulli(logits=at)):
    """Run labels below a number, of 0, 1 and 2, under a family."""

    def model(inputs, targets=None):
        beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", family(inputs @ beta), obs=cast(targets))

    labels = torch.arange(20) % 3
    data = bf.Dataset(CLIENTS["s0"].inputs[:20], labels)
    return run({"s0": data[(labels < most).nonzero()[:, 0]]}, model)


def logged(inputs, targets=None, centre=0.0, inside=lambda at: at):
    """State rows by a logarithm, over inputs of which the half are negative."""
    a = pyro.sample("a", dist.Normal(torch.tensor(centre), 1.0))
    b = pyro.sample("b", dist.Normal(torch.tensor(0.0), 1.0))
    with pyro.plate("rows", len(inputs)):
        mean = inside(a + 9 * b * inputs[:, 0]).log()
        pyro.sample("y", dist.Normal(mean, 1.0), obs=targets)


def left_out(name):
    """Leave a site out."""
    return done().posterior.leave_out(done().snapshot.memories[name])


def twice(name="s0"):
    """Leave the first site out, and another or the same."""
    return left_out("s0").leave_out(done().snapshot.memories[name])


def everybody():
    """Leave out all sites, the last with a warning."""
    memories = done().snapshot.memories
    return left_out("s0").leave_out(memories["s1"]).without(memories["s2"])


def levels(inputs, targets=None):
    """State rows by a line and a level of their site."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    with pyro.plate("client", 1):
        level = pyro.sample("level", dist.Normal(torch.tensor(0.0), 1.0))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ beta + level, 1.0), obs=targets)


def own_of(name):
    """Return what a site with a level keeps."""
    return done(levels).snapshot.memories[name]


CASES = [
    (
        lambda: run({name: named(part) for name, part in CLIENTS.items()}),
        "Dataset(torch.stack([column, ...], 1), targets)",
        lambda: bf.Dataset(torch.stack([torch.ones(3), torch.zeros(3)], 1), torch.ones(3)),
    ),
    (lambda: batches(2), "pyro.plate('rows', len(inputs))", batches),
    (lambda: lagged(column=False), "a column with the lag", lambda: lagged(column=True)),
    (
        lambda: run(CLIENTS, logged),
        "a prior of values where it is",
        lambda: run(CLIENTS, functools.partial(logged, centre=30.0)),
    ),
    (
        lambda: run(CLIENTS, logged),
        "softplus(...) in a log or root",
        lambda: run(CLIENTS, functools.partial(logged, inside=torch.nn.functional.softplus)),
    ),
    (lambda: run(LARGE), "or rows in other units", done),
    (coin, "such values", lambda: coin(2)),
    (coin, "or another distribution", lambda: coin(family=lambda at: dist.Poisson(at.exp()))),
    (
        lambda: coin(cast=torch.Tensor.long),
        "targets.float()",
        lambda: coin(2),
    ),
    (lambda: weighed(seed=0, averaging=0.2), "this posterior alone", weighed),
    (lambda: weighed(other), "the model that was fitted", weighed),
    (
        lambda: regression(example=OTHER),
        "example=rows[:2] of a site",
        lambda: regression(example=CLIENTS["s0"][:2]),
    ),
    (lambda: regression(example=OTHER), "or none", regression),
    (lambda: few(least_rows=6), "least_rows=5", lambda: few(least_rows=5)),
    (lambda: few(least_rows=6), "a run without this site", lambda: regression(least_rows=6)),
    (few, "secure=", lambda: few(secure=4)),
    (
        lambda: bf.federated_svi(line, vault=tempfile.mkdtemp()),
        "secure=, the largest number of sites",
        lambda: bf.federated_svi(line, vault=tempfile.mkdtemp(), secure=3),
    ),
    (few, "a larger site", regression),
    (few, "least_rows=", lambda: few(least_rows=1)),
    (
        lambda: bf.federated_svi(line, fusion=bf.PVI(), example=ONES, secure=3),
        "leaving out secure",
        lambda: bf.federated_svi(line, fusion=bf.PVI(), example=ONES),
    ),
    (
        lambda: bf.federated_svi(line, fusion=bf.PVI(), example=ONES, secure=3),
        "or guide, fusion and training",
        lambda: bf.federated_svi(line, example=CLIENTS["s0"][:2], secure=3),
    ),
    (
        lambda: run(CLIENTS, sampler=bf.fraction(0.5)),
        "sampler=everyone",
        lambda: run(CLIENTS, sampler=bf.federated.everyone),
    ),
    (
        lambda: run({**DEEP, "empty": CLIENTS["s1"][:0]}, on_client_error="drop"),
        "clients with rows",
        done,
    ),
    (
        lambda: run(CLIENTS | {"s1": bf.Dataset(torch.zeros(3, 4), torch.zeros(3))}),
        "the same columns everywhere",
        done,
    ),
    (lambda: run(CLIENTS, large), "example=, and a guide", guided(large)),
    (
        lambda: done(apart).posterior.verdict,
        "proper priors",
        lambda: done().posterior.verdict,
    ),
    (lambda: short().posterior.verdict, "without rounds=", lambda: done().posterior.verdict),
    (
        lambda: done().posterior.without({}),
        "snapshot.memories[name] of a run in this process, without secure sums",
        lambda: done().posterior.without(done().snapshot.memories["s0"]).k_hat,
    ),
    (twice, "the memory of another site", lambda: twice("s1")),
    (twice, "or result.posterior, which has all rows", lambda: left_out("s0").draw(bf.Key(0))),
    (
        lambda: left_out("s0").at_client(done().snapshot.memories["s0"]),
        "the memory of another site",
        lambda: left_out("s0").at_client(done().snapshot.memories["s1"]),
    ),
    (
        lambda: done(levels).posterior.at_client(own_of("s0")).leave_out(own_of("s0")),
        "result.posterior.without(memory)",
        lambda: done(levels).posterior.leave_out(own_of("s0")),
    ),
    (
        lambda: done().posterior.without(done().snapshot.memories["s0"]),
        "a fit of the other sites alone",
        lambda: run({name: CLIENTS[name] for name in ("s1", "s2")}),
    ),
    (
        everybody,
        "draw_prior(key)",
        lambda: done().posterior.draw_prior(bf.Key(0)),
    ),
    (lambda memories: [*done().posterior.by_site(memories)], "s0"),
    (lambda name: done().posterior.constants[name], "beta.maen"),
    (
        lambda: short().posterior.constants["beta.mean"],
        "a run that is finished",
        lambda: done().posterior.constants["beta.mean"],
    ),
    (lambda: at(1), "rows of the width and type that were fitted", lambda: at(2)),
    (
        lambda: observed(several),
        "or draws of the posterior",
        lambda: done(several).posterior.draw(bf.Key(0)),
    ),
    (
        lambda: checked_own(12),
        "fewer own values that a term ties",
        lambda: checked_own(1),
    ),
    (lambda: run(CLIENTS, discrete), "summing it out in the model", lambda: done(summed_out)),
    (lambda: run(DEEP), "float32 or int64", done),
    (lambda: run(FAR, further), "constants in place of figures of rows", done),
    (
        lambda: run(FAR, further),
        "pyro.plate('client', ...) around own latents",
        lambda: run({"s0": FAR["s0"]}, under),
    ),
    (lambda: run(FAR, moved), "constants in place of figures of rows", done),
    (lambda: run(CLIENTS, informed), "constants in place of figures of rows", done),
    (lambda: run(CLIENTS, averaged), "sums, not means", done),
    (lambda: run(CLIENTS, centred), "figures of all rows as constants", done),
    (
        lambda: run(CLIENTS, functools.partial(bounded, least=1.0)),
        "or a term of the prior that is finite at values of order one",
        lambda: run(CLIENTS, functools.partial(bounded, least=0.1)),
    ),
    (lambda: run(CLIENTS, noisy), "or a constant", done),
    (lambda: run(CLIENTS, free), "pyro.sample, or a guide", done),
    (lambda: run(CLIENTS, unseen), "obs=targets", done),
]
