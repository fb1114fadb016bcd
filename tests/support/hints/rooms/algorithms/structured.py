"""Messages of D-Turbo-VBI, FedRLR and methods of adapters."""

from dataclasses import replace

import torch
from pyro.infer.autoguide import AutoLowRankMultivariateNormal

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi.changes import Changes
from bayesfed.algorithms.d_turbo_vbi.density import ToDensity
from bayesfed.algorithms.d_turbo_vbi.returns import Returns
from bayesfed.algorithms.fed_rlr.encodings import Points, Tangents
from bayesfed.algorithms.fed_rlr.local import sent_shapes
from bayesfed.federated import Digital, Keep, Sum, Update
from bayesfed.geometry import metric_retraction, orthographic_retraction
from bayesfed.models import SliceNormal, fixed_rank, lora, merged
from bayesfed.wireless import ChannelInversion
from tests.support import recipes
from tests.support.recipes import KEY, rows

COMPLETE = (
    "bayesfed/algorithms/d_turbo_vbi",
    "bayesfed/algorithms/fed_rlr",
    "bayesfed/algorithms/lora",
)
SOON = ToDensity(0.3, keep=0.5, patience=0)
TWO = bf.fixed(sorted(rows()), 2)


def air(snr_db):
    """Return a link with so much noise."""
    return bf.OverTheAir(ChannelInversion(0.0, "weakest"), snr_db=snr_db)


def go(algorithm, rounds=1):
    """Run an algorithm."""
    return bf.run(algorithm, rows(), rounds=rounds, progress=False)


def turbo(rounds=1, rate=2e-3, steps=2, **options):
    """Run D-Turbo-VBI."""
    work = bf.Training(steps=steps, batch_size=8, optimiser=bf.Adam(rate))
    return go(recipes.turbo(training=work, **options), rounds)


def noisy(snr_db, spread="weight"):
    """Run it over the air."""
    turbo(4, density=0.3, link=air(snr_db), spread=spread, sample=False)


def wild(factor=1.0, **options):
    """Run it with steps that grow."""
    schedule = lambda round: 1.0 if round < 2 else factor  # noqa: E731
    work = bf.Training(steps=2, batch_size=8, schedule=schedule, optimiser=bf.Adam(0.05))
    declared = bf.declare(recipes.net(), likelihood=bf.Categorical(temperature=0.2))
    algorithm = bf.d_turbo_vbi(declared, observations=12, training=work, density=SOON, **options)
    bf.run(algorithm, {"a": rows()["client-0"]}, rounds=8, progress=False)


def fed_rlr(rank=2, rounds=1, rate=0.05, **options):
    """Run FedRLR."""
    work = bf.Training(steps=2, batch_size=8, optimiser=bf.Sgd(rate))
    go(bf.fed_rlr(recipes.net(), rank, **{"training": work, **options}), rounds)


def regressed(size):
    """Fit numbers of this size by FedRLR."""
    data = replace(rows()["client-0"], targets=size * torch.ones(12, 3))
    work = bf.Training(steps=1, optimiser=bf.Sgd(1e-25))
    algorithm = bf.fed_rlr(recipes.net(), 2, likelihood=bf.Normal(1.0), training=work)
    bf.run(algorithm, {"a": data}, rounds=1, progress=False)


def stuck(point, tangent):
    """Retract a step that takes all of the core."""
    return orthographic_retraction(point, replace(tangent, core=-point.s))


def received(reducer=Sum, kind="tangent", factor=0.0, retraction=orthographic_retraction):
    """Take a step of FedRLR with a client's message in a reducer."""
    sent = Tangents(retraction)
    algorithm = bf.fed_rlr(recipes.net(), 2, transmission=sent)
    phase = algorithm.phases[0]
    state, _ = phase.scope.parted(algorithm.initial)
    shapes = sent_shapes(state, sent)
    gathered = reducer()
    update = {name: torch.zeros(shape) for name, shape in shapes.items()}
    gathered.add("a", Update(update | {"1.core": factor * state["1.s"]}, 1.0, kind))
    phase.server.step(state, gathered, 0)


def ranked(ranks):
    """Return HeteroLoRA with these ranks."""
    return bf.hetero_lora(recipes.adapted(), ranks, TWO)


def sliced(ranks=(2, 1), **options):
    """Return a posterior of adapters."""
    net = recipes.adapted()
    model = bf.bayesian(net, bf.models.adapter_prior(net))
    given = {"fusion": bf.SummedGradients(0.05), "scale": "local", "observations": 48}
    example = rows()["client-0"][:3]
    return bf.bayesian_lora(model, list(ranks), TWO, example=example, **{**given, **options})


def trained():
    """Return a network with adapters that were trained."""
    net = recipes.adapted()
    for name, value in net.named_parameters():
        if "lora_b" in name:
            value.data.fill_(0.1)
    return net


def stacked(net):
    """Return FedStackLoRA."""
    return bf.fed_stack_lora(net, [2, 1], TWO)


def fs_lora(**options):
    """Return FSLoRA."""
    return bf.fs_lora(recipes.adapted(), [2, 1], TWO, **options)


def summed(**options):
    """Run FlexLoRA with another reducer."""
    algorithm = bf.flex_lora(recipes.adapted(), [2, 1], TWO, training=bf.Training(steps=1))
    go(replace(algorithm, phases=(replace(algorithm.phases[0], **options),)))


CASES = [
    (lambda: noisy(-40.0), "a higher SNR", lambda: noisy(40.0)),
    (lambda: noisy(-10.0), "spread='shared'", lambda: noisy(-10.0, "shared")),
    (lambda: Changes(learn=False), "start=0.1", lambda: Changes(learn=False, start=0.1)),
    (lambda: wild(300.0), "weights are active again", None),
    (lambda: wild(300.0), "a smaller learning rate", wild),
    (
        lambda: turbo(field=lambda round: -30.0),
        "density=...",
        lambda: turbo(density=0.3),
    ),
    (lambda: ToDensity(0.01), "floor=0.0025", lambda: ToDensity(0.01, floor=0.0025)),
    (lambda share: turbo(density=share), 2.0),
    (
        lambda: turbo(density=0.3, field=lambda round: -1.0),
        "density=0.3",
        lambda: turbo(density=0.3),
    ),
    (
        lambda: turbo(returns=Returns(), codec=bf.Cast(16)),
        "returns=None",
        lambda: turbo(returns=None, codec=bf.Cast(16)),
    ),
    (
        lambda: turbo(changes=Changes(), codec=bf.Cast(16)),
        "changes=None",
        lambda: turbo(changes=None, codec=bf.Cast(16)),
    ),
    (lambda: fed_rlr(rate=1e30), "a smaller learning rate", fed_rlr),
    (lambda: regressed(1e20), "targets that are scaled to about 1", lambda: regressed(1.0)),
    (
        lambda: fed_rlr(retraction=stuck),
        "a shorter step, or metric_retraction",
        lambda: fed_rlr(retraction=metric_retraction),
    ),
    (
        lambda: fed_rlr(training=bf.Training(optimiser=bf.Adam())),
        "Sgd(0.05)",
        lambda: fed_rlr(training=bf.Training(optimiser=bf.Sgd(0.05))),
    ),
    (lambda pull: fed_rlr(consensus=pull), 2.0),
    (lambda pull: fed_rlr(consensus=lambda round: pull), 2.0),
    (lambda: fed_rlr(None), "a rank", fed_rlr),
    (
        lambda: fed_rlr(None),
        "fixed_rank(net, rank)",
        lambda: go(bf.fed_rlr(fixed_rank(recipes.net(), 2), None)),
    ),
    (
        lambda: fed_rlr(transmission=Points(), link=air(20.0)),
        "Tangents(), or Digital()",
        lambda: (
            fed_rlr(transmission=Tangents(), link=air(20.0)),
            fed_rlr(transmission=Points(), link=Digital()),
        ),
    ),
    (
        lambda: received(factor=-1.0),
        "metric_retraction",
        lambda: received(factor=-1.0, retraction=metric_retraction),
    ),
    (lambda: received(kind="value"), "fed_rlr's own phase", received),
    (ranked, [1, 2]),
    (
        lambda: sliced(guide=AutoLowRankMultivariateNormal),
        "SliceNormal, or ranks=[r]",
        lambda: (
            sliced(guide=SliceNormal),
            sliced([2], guide=AutoLowRankMultivariateNormal),
        ),
    ),
    (
        lambda: sliced(fusion=bf.inference.ProductOfExperts()),
        "PVI(0.3)",
        lambda: sliced(fusion=bf.PVI(0.3)),
    ),
    (
        lambda: stacked(trained()),
        "lora(merged(net), 8, key)",
        lambda: stacked(lora(merged(trained()), 8, KEY)),
    ),
    (
        lambda: fs_lora(by_coverage=True),
        "anchored=False",
        lambda: fs_lora(by_coverage=True, anchored=False),
    ),
    (
        lambda: fs_lora(anchored=False, train_a=False),
        "anchored=True",
        lambda: fs_lora(train_a=False),
    ),
    (
        lambda: fs_lora(train_a=False, sampling="singular"),
        'sampling="uniform"',
        lambda: fs_lora(train_a=False, sampling="uniform"),
    ),
    (lambda: summed(reducer=Keep), "reducer=partial(Stack, layers)", summed),
]
