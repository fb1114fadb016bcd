"""A right call of every public callable: the arguments that it needs, by the callable's name."""

from __future__ import annotations

import functools
import pathlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pandas
import torch
from torch import nn

import bayesfed as bf
from bayesfed.compress.budgets import fit_flexible
from bayesfed.models.nets import norms
from tests.data.test_cifar import write_cifar10
from tests.data.test_data import write_mnist
from tests.support import recipes
from tests.support.recipes import KEY, adapted, line, lines, net, planner, rows

ROWS = rows()["client-0"]
CAPACITY = bf.fixed(sorted(rows()), 2)


def fed_avg() -> Any:
    """Return FedAvg of a small network."""
    return bf.fed_avg(net(), training=bf.Training(steps=1))


@functools.cache
def result() -> Any:
    """Return a finished run."""
    return bf.run(fed_avg(), rows(), rounds=2, progress=False)


def table() -> pathlib.Path:
    """Return the path of a table of two columns and a label."""
    path = pathlib.Path(tempfile.mkdtemp()) / "table.csv"
    path.write_text("a,b,y\n1,2,0\n3,4,1\n5,6,0\n")
    return path


@functools.cache
def folder() -> pathlib.Path:
    """Return a folder of results."""
    kept = pathlib.Path(tempfile.mkdtemp()) / "mine"
    result().save(kept)
    return kept


@functools.cache
def cifar10_folder() -> pathlib.Path:
    """Return a folder with CIFAR-10's files, of a few random pictures."""
    folder = pathlib.Path(tempfile.mkdtemp())
    write_cifar10(folder)
    return folder


@functools.cache
def fashion_mnist_folder() -> pathlib.Path:
    """Return a folder with Fashion-MNIST's files, of a few random pictures: those of the Debian
    package are not everywhere.
    """
    folder = pathlib.Path(tempfile.mkdtemp())
    write_mnist(folder, zipped=False)
    return folder


def fitted() -> Any:
    """Return the compression settings of the small network."""
    return fit_flexible([bf.trees.parameters(net())], KEY, shares=(1.0,))


def normed() -> Any:
    """Return a network with static batch norms."""
    norm = norms.norm_layer(4, "static", where="doors")
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(144, recipes.CLASSES))


def frames() -> dict[str, Any]:
    """Return a pandas frame for each of two sites."""
    table = pandas.DataFrame({"x": [0.0, 1.0, 2.0, 3.0] * 3, "y": [0.1, 0.8, 2.3, 2.9] * 3})
    return {"a": table, "b": table}


BY_NAME: Mapping[str, Callable[[], Any]] = {
    "net": net,
    "algorithm": fed_avg,
    "key": lambda: KEY,
    "capacity": lambda: CAPACITY,
    "ranks": lambda: [2, 1],
    "model": net,
    "observations": lambda: 48,
    "example": lambda: lines()["client-0"][:3],
    "planner": planner,
    "sample": lambda: torch.zeros(1, recipes.FEATURES),
    "strength": lambda: 0.1,
    "deadline_s": lambda: 1e6,
    "clip": lambda: 1.0,
    "noise": lambda: 1.0,
    "participants": lambda: 4,
    "share": lambda: 0.5,
    "begin": lambda: 0,
    "rank": lambda: 2,
    "nets": recipes.widths,
    "parameters": lambda: bf.trees.parameters(net()),
}
BY_CALLABLE: Mapping[str, Mapping[str, Callable[[], Any]]] = {
    "ClusteredSupport": {"model": lambda: bf.models.MarkovGrid().lower((3, 3))},
    "FactorGraph": {"model": lambda: bf.models.MarkovGrid().lower((3, 3))},
    "Dataset": {"inputs": lambda: torch.zeros(3, 2), "targets": lambda: torch.tensor([0, 1, 0])},
    "FedBuff": {"size": lambda: 2, "concurrency": lambda: 3},
    "Gaussian": {"sd": lambda: 1.0},
    "InProcess": {"data": rows},
    "Key": {"seed": lambda: 0},
    "Laplace": {"scale": lambda: 1.0},
    "regression": {"formula": lambda: "y ~ x", "data": frames},
    "Method": {
        "name": lambda: "fed_avg",
        "make": lambda: bf.fed_avg,
        "cites": lambda: ("mcmahan2017",),
    },
    "Planner": {"sizes": lambda: planner().sizes},
    "Result": {
        "algorithm": fed_avg,
        "history": lambda: result().history,
        "snapshot": lambda: result().snapshot,
    },
    "SpikeAndSlab": {"inclusion": lambda: 0.5, "spike": lambda: 0.01, "slab": lambda: 1.0},
    "bayesian_lora": {
        "model": lambda: bf.models.bayesian(adapted(), bf.models.adapter_prior(adapted())),
        "fusion": lambda: bf.SummedGradients(0.05),
        "scale": lambda: "local",
        "example": lambda: ROWS[:3],
    },
    "Turn": {
        "state": lambda: bf.trees.parameters(net()),
        "round": lambda: 0,
        "profile": lambda: bf.InProcess(rows()).profiles[0],
        "size": lambda: 10,
    },
    "batch_statistics": {
        "net": normed,
        "parameters": lambda: bf.trees.parameters(normed()),
        "sample": lambda: torch.zeros(1, 1, 8, 8),
    },
    "cifar10": {"folder": cifar10_folder},
    "cnn": {"image": lambda: (1, 8, 8), "classes": lambda: 3},
    "compose": {"name": lambda: "own"},
    "conjugate": {
        "prior": lambda: {"precision": torch.eye(2), "linear": torch.zeros(2)},
        "statistics": lambda: recipes.regression,
    },
    "d_turbo_vbi": {
        "declared": lambda: bf.declare(net(), likelihood=bf.Categorical(temperature=0.1))
    },
    "dirichlet": {"labels": lambda: ROWS.targets, "clients": lambda: 2, "alpha": lambda: 0.5},
    "ensemble": {"algorithms": lambda: [fed_avg(), fed_avg()]},
    "epsilon": {"rounds": lambda: 3, "delta": lambda: 1e-5},
    "fed_hm": {"ratios": lambda: [1.0, 0.5]},
    "fed_hq": {
        "planner": lambda: replace(planner(), beta=(fitted().least, 1.0)),
        "settings": fitted,
    },
    "federate": {"data": lambda: ROWS, "parts": lambda: bf.iid(len(ROWS), 2, KEY)},
    "federated_svi": {"model": lambda: line},
    "fixed": {"clients": lambda: ["a", "b"], "count": lambda: 2},
    "fleet": {"names": lambda: ["a", "b"]},
    "fraction": {},
    "from_csv": {"path": table, "label": lambda: "y"},
    "held_out": {"strata": ROWS.targets.tolist},
    "iid": {"rows": lambda: 12, "clients": lambda: 2},
    "infer": {"graph": lambda: bf.models.MarkovGrid().lower((3, 3))},
    "open": {"folder": folder},
    "mlp": {"widths": lambda: [4, 3]},
    "public_settings": {"public": lambda: ROWS},
    "robust": {"rule": bf.federated.Median},
    "run": {"clients": rows},
    "secure": {"largest": lambda: 1.0},
    "server_optimised": {"optimiser": bf.FedAvgM},
    "split_mix": {
        "make": lambda: lambda key: bf.mlp([recipes.FEATURES, 4, recipes.CLASSES], key),
        "nets_of": lambda: [3, 2],
    },
    "timed": {"macs": lambda: 100.0},
    **{
        name: {"net": adapted}
        for name in ("fed_lora", "ffa_lora", "fs_lora", "hetero_lora", "flex_lora")
    },
    "fed_stack_lora": {"net": adapted},
    "mc_dropout": {
        "algorithm": lambda: bf.fed_avg(recipes.dropping(), training=bf.Training(steps=1))
    },
}


# What a right call needs beside the arguments without a default.
BESIDE: Mapping[str, Mapping[str, Any]] = {
    "fashion_mnist": {"folder": fashion_mnist_folder()},
    "OverTheAir": {"snr_db": 20.0},
    "open": {"algorithm": fed_avg()},
    "federated_svi": {"observations": 48, "example": lines()["client-0"][:3]},
    "run": {"rounds": 1},
}


def of(name: str, parameter: str) -> Any:
    """Return a right argument of a callable."""
    return {**BY_NAME, **BY_CALLABLE.get(name, {})}[parameter]()
