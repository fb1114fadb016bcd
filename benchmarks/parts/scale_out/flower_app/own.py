"""Flower's own FedAvg strategy with the same model, the same rows and the same local step: the peer
of benchmarks/parts/scale_out/flower.py.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import recipes
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import bayesfed as bf
from bayesfed.flower.client_app import client_name


def serve(grid: Grid, context: Context) -> None:
    """Run the strategy and write the seconds at which its rounds ended."""
    initial = recipes.fed_avg().algorithm.initial
    strategy = FedAvg(
        fraction_train=1.0,
        fraction_evaluate=0.0,
        min_train_nodes=recipes.CLIENTS,
        min_available_nodes=recipes.CLIENTS,
    )
    ends: list[float] = []

    def note(round: int, arrays: ArrayRecord) -> MetricRecord:
        ends.append(time.perf_counter())
        return MetricRecord({"round": round})

    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(dict(initial)),
        num_rounds=recipes.ROUNDS,
        evaluate_fn=note,
    )
    out = Path(str(context.run_config["out"]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "seconds.json").write_text(json.dumps([late - early for early, late in pairwise(ends)]))


def train(message: Message, context: Context) -> Message:
    """Take the same steps as bayesfed's client does."""
    torch.set_num_threads(1)
    name, algorithm = client_name(context.node_config), recipes.fed_avg().algorithm
    data = recipes.clients()[name]
    model: dict[str, Any] = message.content["arrays"].to_torch_state_dict()
    fit = algorithm.phases[0].local.fit(
        model, {}, data, bf.Key(0, name), bf.federated.LocalOptions()
    )
    content = RecordDict(
        {"arrays": ArrayRecord(fit.payload), "metrics": MetricRecord({"num-examples": len(data)})}
    )
    return Message(content, reply_to=message)


server_app = ServerApp()
server_app.main()(serve)
client_app = ClientApp()
client_app.train()(train)
