"""What tests of posteriors of adapters share: models, settings, runs, messages."""

import torch

import bayesfed as bf
from bayesfed.federated.core.owners import owned
from bayesfed.federated.core.protocols import Profile

KEY, R, K = bf.Key(0, "bayesian_lora"), 4, 2
FIRST = {"capacity": lambda profile, round, key: 0}
AVERAGES = {
    "mean": (bf.inference.MeanParameters(), "global"),
    "wasserstein": (bf.inference.Wasserstein(), "global"),
    "reverse KL": (bf.inference.ReverseKL(), "global"),
}
RULES = AVERAGES | {"pvi": (bf.PVI(0.5), "local"), "gradients": (bf.SummedGradients(0.05), "local")}


def adapted(rank=R):
    net = bf.lora(
        bf.mlp([64, 12, 10], bf.Key(0, "net")),
        rank,
        bf.Key(0, "lora"),
        where=lambda name, module: name == "1.weight",
        head=["3"],
    )
    for name, leaf in net.named_parameters():
        if name.endswith("lora_b"):
            leaf.data = 0.1 * torch.randn(leaf.shape, generator=bf.Key(0, "b").generator())
    return net


def declared(**changes):
    net = adapted()
    return bf.bayesian(net, bf.models.adapter_prior(net, a=0.1, b=0.2, head=0.3, **changes))


def settings(data, rule="gradients", **changes):
    fusion, scale = RULES[rule]
    work = bf.Training(steps=3, batch_size=8, optimiser=bf.Adam(0.02))
    return {
        "fusion": fusion,
        "scale": scale,
        "observations": len(data),
        "example": data[:3],
        "training": work,
        **changes,
    }


def few(digits, clients=2, each=20):
    data = digits[0][: clients * each]
    return {f"client-{k}": data[each * k : each * (k + 1)] for k in range(clients)}, data


def run(algorithm, clients, rounds=2):
    return bf.run(algorithm, clients, rounds=rounds, progress=False)


def message_of(algorithm, name="client-0", rows=20):
    """What a client is sent in round 0, with the view that cut it and its options."""
    phase = algorithm.phases[0]
    state = owned(algorithm.initial, "model")
    given = phase.assign(state, 0, Profile(name, rows), KEY)
    return (
        given.view.restrict(phase.server.publish(state, 0, None)),
        given.view,
        given.options,
    )
