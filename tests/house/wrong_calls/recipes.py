"""Wrong calls of recipes."""

import pyro
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import (
    ArgumentError,
    KeywordError,
)
from tests.house.wrong_calls.given import DATA, KEY, done, net, no_obs, svi

WRONG = {
    "fed_avg class": (
        lambda: bf.fed_avg(nn.Linear),
        ArgumentError,
        "; try mlp([64, 32, 10], Key(0))",
    ),
    "fed_avg state dict": (
        lambda: bf.fed_avg(net().state_dict()),
        ArgumentError,
        "; try mlp([64, 32, 10], Key(0))",
    ),
    "fed_avg step": (
        lambda: bf.fed_avg(net(), step=5),
        KeywordError,
        "; try training=Training(steps=50)",
    ),
    "fed_avg rounds": (
        lambda: bf.fed_avg(net(), rounds=3),
        KeywordError,
        "; try rounds=10 of run",
    ),
    "calibrated result": (
        lambda: bf.calibrated(done()),
        ArgumentError,
        "; try result.model",
    ),
    "fed_avg lr": (
        lambda: bf.fed_avg(net(), lr=0.1),
        KeywordError,
        "; try training=Training(optimiser=Sgd(0.1))",
    ),
    "fed_avg steps": (
        lambda: bf.fed_avg(net(), steps=5),
        KeywordError,
        "; try training=Training(steps=50)",
    ),
    "fed_avg training dict": (
        lambda: bf.fed_avg(net(), training={"steps": 5}),
        ArgumentError,
        "; try Training(steps=50, batch_size=64)",
    ),
    "fed_avg training class": (
        lambda: bf.fed_avg(net(), training=bf.Training),
        ArgumentError,
        "; try Training(steps=50, batch_size=64)",
    ),
    "fed_avg likelihood str": (
        lambda: bf.fed_avg(net(), likelihood="normal"),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0) for num",
    ),
    "fed_avg likelihood class": (
        lambda: bf.fed_avg(net(), likelihood=bf.Normal),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0) for ",
    ),
    "fed_avg loss": (
        lambda: bf.fed_avg(net(), likelihood=nn.CrossEntropyLoss()),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0) for ",
    ),
    "fed_avg codec class": (
        lambda: bf.fed_avg(net(), codec=bf.Cast),
        ArgumentError,
        "; try Cast(16)",
    ),
    "fed_avg codec int": (lambda: bf.fed_avg(net(), codec=8), ArgumentError, "; try Cast(16)"),
    "fed_avg link class": (
        lambda: bf.fed_avg(net(), link=bf.OverTheAir),
        ArgumentError,
        "; try Digital(), or OverTheAir(snr_db=20.0)",
    ),
    "fed_avg link str": (
        lambda: bf.fed_avg(net(), link="air"),
        ArgumentError,
        "; try Digital(), or OverTheAir(snr_db=20.0)",
    ),
    "fed_avg buffers": (
        lambda: bf.fed_avg(net(), buffers="average"),
        ArgumentError,
        "; try 'static'",
    ),
    "fed_avg frozen": (
        lambda: bf.fed_avg(net().requires_grad_(False)),
        ArgumentError,
        "; try requires_grad_()",
    ),
    "fed_avg batch norm": (
        lambda: bf.fed_avg(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))),
        ArgumentError,
        '; try nn.GroupNorm, norm="s',
    ),
    "fedavg name": (lambda: bf.fedavg, AttributeError, "did you mean fed_avg"),
    "FedAvg name": (lambda: bf.FedAvg, AttributeError, "did you mean fed_avg"),
    "fed_prox strength": (lambda: bf.fed_prox(net(), strength=-1), ArgumentError, "; try 0.01"),
    "fed_prox mu": (lambda: bf.fed_prox(net(), mu=0.1), KeywordError, "; try strength=0.01"),
    "fed_paq bits": (
        lambda: bf.fed_paq(net(), bits=0),
        ArgumentError,
        "expected an integer from 2 to 24, found 0;",
    ),
    "qsgd levels": (
        lambda: bf.qsgd(net(), levels=0),
        ArgumentError,
        "Qsgd, levels: expected an integer from 1 to 16777216, found 0; try 16",
    ),
    "stc share": (
        lambda: bf.stc(net(), share=2),
        ArgumentError,
        "Ternary, share: expected a share above 0 and at most 1, found 2; try 0.1",
    ),
    "uveqfed bits": (lambda: bf.uveqfed(net(), bits=-1), ArgumentError, "; try Lattice(bits=4)"),
    "dssm share": (
        lambda: bf.dssm(net(), share=0),
        ArgumentError,
        "TopK, share: expected a share above 0 and at most 1, found 0; try 0.1",
    ),
    "hetero_fl net": (
        lambda: bf.hetero_fl(net(), bf.fixed(["a", "b"], 1)),
        ArgumentError,
        "; try [mlp([64, 32, 10], Key(0)), ...]",
    ),
    "hetero_fl capacity": (
        lambda: bf.hetero_fl([net()], 0.5),
        ArgumentError,
        "; try fixed(sorted(clients), 2) or dynamic(2) or",
    ),
    "hetero_fl capacity list": (
        lambda: bf.hetero_fl([net()], [1.0, 0.5]),
        ArgumentError,
        "; try fixed(sorted(clients), 2) or dynamic(2) or",
    ),
    "dynamic list": (
        lambda: bf.federated.dynamic([1.0, 0.5]),
        ArgumentError,
        "; try the number of sizes",
    ),
    "fixed int": (lambda: bf.fixed(4, 2), ArgumentError, "; try sorted(clients)"),
    "fixed zero": (
        lambda: bf.fixed(["a"], 0),
        ArgumentError,
        "fixed, count: expected a whole number >= 1",
    ),
    "fed_hm ratios": (
        lambda: bf.fed_hm(net(), 0.5, bf.federated.dynamic(1)),
        ArgumentError,
        "; try [1.0, 0.5, 0.25]",
    ),
    "fed_rlr rank": (
        lambda: bf.fed_rlr(net(), 0),
        ArgumentError,
        "expected a rank from 1 to 3, found 0; try 3",
    ),
    "fed_rlr rank str": (
        lambda: bf.fed_rlr(net(), "8"),
        ArgumentError,
        "expected a rank from 1 to 3, found 8; try 3",
    ),
    "fed_lora no adapters": (lambda: bf.fed_lora(net()), ArgumentError, "; try lora(net, 8, key)"),
    "lora rank": (
        lambda: bf.lora(net(), 0, KEY),
        ArgumentError,
        "expected a rank from 1 to 1048576, found 0; tr",
    ),
    "d_turbo net": (
        lambda: bf.d_turbo_vbi(net(), observations=6),
        ArgumentError,
        "; try declare(net)",
    ),
    "d_turbo observations": (
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=0),
        ArgumentError,
        "; try len(train)",
    ),
    "d_turbo observations data": (
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=DATA),
        ArgumentError,
        "; try len(train)",
    ),
    "d_turbo field": (
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=6, field=-1.5),
        ArgumentError,
        "; try lambda round: -1.5",
    ),
    "d_turbo scale": (
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=6, likelihood_scale="all"),
        ArgumentError,
        "; try 'global'",
    ),
    "svi fusion": (
        lambda: svi(fusion="pvi"),
        ArgumentError,
        "; try PVI(damping=0.3), or SummedGradients()",
    ),
    "svi fusion class": (lambda: svi(fusion=bf.PVI), ArgumentError, "; try an instance, PVI()"),
    "PVI damping": (lambda: bf.PVI(3.0), ArgumentError, "; try 1 / len(clients)"),
    "PVI damping bool": (
        lambda: bf.PVI(damping=True),
        ArgumentError,
        "found True; try 1 / len(clients)",
    ),
    "swag begin": (
        lambda: bf.swag(bf.fed_avg(net()), begin=1.5),
        ArgumentError,
        "expected a whole number >= 0, found 1.5; try 20",
    ),
    "fed_pa samples": (
        lambda: bf.fed_pa(net(), samples=True),
        ArgumentError,
        "expected a whole number >= 1, found True; try 3",
    ),
    "fed_be draws": (
        lambda: bf.fed_be(net(), draws=2.5),
        ArgumentError,
        "expected a whole number >= 1, found 2.5; try 10",
    ),
    "PVI kind": (lambda: bf.PVI(damping=0.5, adds=True), KeywordError, "; try damping"),
    "svi no obs": (
        lambda: svi(no_obs),
        ArgumentError,
        "; try pyro.sample('y', ..., obs=targets), or p",
    ),
    "svi model net": (
        lambda: svi(net()),
        ArgumentError,
        "; try def model(inputs, targets=None), or baye",
    ),
    "svi guide str": (lambda: svi(guide="AutoNormal"), ArgumentError, "; try AutoNormal"),
    "svi example tensor": (lambda: svi(example=DATA.inputs), ArgumentError, "; try train[:2]"),
    "svi observations": (lambda: svi(observations=0), ArgumentError, "; try len(train)"),
    "svi scale": (lambda: svi(scale="all"), ArgumentError, "; try 'local'"),
    "svi elbo class": (
        lambda: svi(elbo=pyro.infer.Trace_ELBO),
        ArgumentError,
        "; try Trace_ELBO()",
    ),
    "conjugate": (
        lambda: bf.conjugate({}, lambda d: {}),
        ArgumentError,
        "; try {'h': torch.zeros(8)}",
    ),
    "conjugate stats": (
        lambda: bf.conjugate({"h": torch.zeros(1)}, {"h": torch.zeros(1)}),
        ArgumentError,
        "; try lambda rows: {'h': rows.targe",
    ),
}
