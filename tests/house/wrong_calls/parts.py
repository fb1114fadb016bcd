"""Wrong calls of wrappers, links, codecs, inference and of one's own methods."""

import networkx
import torch

import bayesfed as bf
from bayesfed.errors import (
    ArgumentError,
    ClientError,
    UpdateError,
)
from bayesfed.federated import Digital
from tests.house.wrong_calls.given import KEY, Half, Loc, StateOnly, avg, go, grid, net, own

WRONG = {
    "robust str": (
        lambda: bf.robust(avg(), "median"),
        ArgumentError,
        "; try Median() or TrimmedMean(0.2)",
    ),
    "robust class": (
        lambda: bf.robust(avg(), bf.federated.Median),
        ArgumentError,
        "; try Median() or TrimmedMean(0.2)",
    ),
    "robust net": (
        lambda: bf.robust(net(), bf.federated.Median()),
        ArgumentError,
        "; try fed_avg(net)",
    ),
    "trimmed": (lambda: bf.federated.TrimmedMean(0.7), ArgumentError, "; try TrimmedMean(0.2)"),
    "krum": (lambda: bf.federated.Krum(-1), ArgumentError, "; try Krum(4, 8)"),
    "gate": (lambda: bf.federated.NormGate(0), ArgumentError, "; try NormGate(2.0)"),
    "private key": (
        lambda: bf.private(avg(), clip=1.0, noise=1.0, participants=2, key=0),
        ArgumentError,
        "; try Key(0, 'purpose')",
    ),
    "private clip": (
        lambda: bf.private(avg(), clip=0, noise=1.0, participants=2, key=KEY),
        ArgumentError,
        "; try 1.0",
    ),
    "private net": (
        lambda: bf.private(net(), clip=1, noise=1.0, participants=2, key=KEY),
        ArgumentError,
        "; try fed_avg(net)",
    ),
    "private participants": (
        lambda: bf.private(avg(), clip=1, noise=1.0, participants=2.5, key=KEY),
        ArgumentError,
        "expected a whole number",
    ),
    "private fraction": (
        lambda: bf.private(avg(), clip=1, noise=1.0, participants=0.5, key=KEY),
        ArgumentError,
        "expected a whole number >= 1, found 0.5",
    ),
    "on_devices": (
        lambda: bf.on_devices(avg(), None),
        ArgumentError,
        "; try Planner(shrunk_shares(...), deadline_s=5",
    ),
    "equal_weights": (lambda: bf.equal_weights(net()), ArgumentError, "; try fed_avg(net)"),
    # links codecs
    "OverTheAir none": (bf.OverTheAir, ArgumentError, "; try OverTheAir(snr_db=25.0)"),
    "OverTheAir both": (
        lambda: bf.OverTheAir(snr_db=1.0, power_w=1.0),
        ArgumentError,
        "; try OverTheAir(snr_db=25.0)",
    ),
    "OverTheAir power": (
        lambda: bf.OverTheAir(snr_db=1.0, power="gbma"),
        ArgumentError,
        "; try Gbma(), or ChannelInversion(0.3)",
    ),
    "OverTheAir int": (
        lambda: bf.OverTheAir(noise_w=-1, snr_db=1.0),
        ArgumentError,
        "; try noise_w=1.0",
    ),
    "Digital": (lambda: Digital(max_norm=0), ArgumentError, "; try 1e6"),
    "Cast": (lambda: bf.Cast(12), ArgumentError, "; try Cast(32)"),
    "Cast str": (lambda: bf.Cast("8"), ArgumentError, "; try Cast(32)"),
    "Coded": (lambda: bf.compress.Coded("topk"), ArgumentError, "; try TopK(0.1) or Qsgd(8)"),
    "Coded class": (
        lambda: bf.compress.Coded(bf.compress.TopK),
        ArgumentError,
        "; try TopK(0.1) or Qsgd(8)",
    ),
    "TopK": (
        lambda: bf.compress.TopK(0),
        ArgumentError,
        "TopK, share: expected a share above 0 and at most 1, found 0; try 0.1",
    ),
    "ErrorFeedback": (
        lambda: bf.compress.ErrorFeedback(8),
        ArgumentError,
        "; try Cast(16), Coded(TopK(0.1))",
    ),
    "PosteriorGrid": (lambda: bf.compress.PosteriorGrid(0), ArgumentError, "; try 0.01"),
    # infer
    "infer net": (
        lambda: bf.infer(net()),
        ArgumentError,
        "; try FactorGraph.from_networkx(graph), or a s",
    ),
    "infer none": (
        lambda: bf.infer(None),
        ArgumentError,
        "; try FactorGraph.from_networkx(graph), or a s",
    ),
    "infer method": (lambda: bf.infer(grid(), method="gibbs"), ArgumentError, "; try 'auto'"),
    "infer tol": (lambda: bf.infer(grid(), tol=-1), ArgumentError, "; try 1e-4"),
    "infer damping": (lambda: bf.infer(grid(), damping=2), ArgumentError, "; try 0.5"),
    "infer evidence": (
        lambda: bf.infer(grid(), torch.zeros(2)),
        ArgumentError,
        "; try 0 where nothing is known",
    ),
    "infer networkx": (
        lambda: bf.infer(networkx.path_graph(3)),
        ArgumentError,
        "; try FactorGraph.from_networkx(graph), or a s",
    ),
    "epsilon": (lambda: bf.algorithms.epsilon(0, 1, 1e-5), ArgumentError, "; try 1.0"),
    "epsilon delta": (lambda: bf.algorithms.epsilon(1, 1, 2), ArgumentError, "; try 0.2"),
    # own methods
    "info tensor": (
        lambda: go(own(local=Loc(info={"loss": torch.tensor(1.0)}))),
        ClientError,
        "; try Fit(info={'loss': float(loss)})",
    ),
    "info array": (
        lambda: go(own(local=Loc(info={"loss": torch.ones(2)}))),
        ClientError,
        "; try Fit(info={'loss': float(loss)})",
    ),
    "server state only": (
        lambda: go(own(local=Loc(), server=StateOnly())),
        UpdateError,
        "; try return state, {}",
    ),
    "local returns tree": (
        lambda: go(own(local=Loc(result={"w": torch.zeros(1)}))),
        ClientError,
        "; try Fit(tree, {}, {})",
    ),
    "payload names": (
        lambda: go(own(local=Loc(payload={"w": torch.zeros(1)}))),
        ClientError,
        "; try leaves of these names",
    ),
    "payload list": (
        lambda: go(own(local=Loc(payload=[1]))),
        ClientError,
        "; try Fit(tree, {}, {})",
    ),
    "local class": (lambda: go(own(local=Loc)), ArgumentError, "; try an instance of its class"),
    "compose no net": (
        lambda: bf.compose("own", None),
        ArgumentError,
        "; try mlp([64, 32, 10], Key(0))",
    ),
    "half posterior": (
        lambda: go(own(posterior=lambda s: Half())),
        ArgumentError,
        "; try a property or method constants",
    ),
    "local kind": (
        lambda: go(own(local=Loc(kind="weights"))),
        UpdateError,
        "; try a local whose kind is 'value'",
    ),
}
