"""FedAvg in other engines, each in a process of its own and in the environment of `engines.txt`:
prints the seconds of each round as JSON.

    python engines.py {pfl,flower,flower2} CLIENTS ROUNDS

The work is that of `benchmarks/parts/speed/engine.py`: an MLP 784-256-256-10 and 100 SGD steps of
64 at every client, random images, one thread. `pfl` is pfl-research's `SimulatedBackend`; `flower`
is Flower's simulation (Ray) as it comes, one actor, and `flower2` with one core a client, two
actors on two cores. Neither counts bytes or checks what arrives.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

WIDTHS, STEPS, BATCH, RATE = (784, 256, 256, 10), 100, 64, 0.05


def net() -> nn.Sequential:
    """Return the network."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in pairwise(WIDTHS):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@cache
def rows(client: int) -> tuple[Tensor, Tensor]:
    """Return a client's rows, as many as a round takes."""
    generator = torch.Generator().manual_seed(client)
    return torch.rand(STEPS * BATCH, WIDTHS[0], generator=generator), torch.randint(
        0, WIDTHS[-1], (STEPS * BATCH,), generator=generator
    )


def pfl(clients: int, rounds: int) -> list[float]:
    """Time pfl-research."""
    names = (
        "aggregate.simulate",
        "algorithm.federated_averaging",
        "algorithm.base",
        "callback.base",
        "data",
        "data.dataset",
    )
    simulate, averaging, base, callbacks, data, dataset = (
        import_module(f"pfl.{name}") for name in names
    )
    hyper, metrics, model, sampling = (
        import_module(f"pfl.{name}")
        for name in ("hyperparam", "metrics", "model.pytorch", "data.sampling")
    )

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = net()

        def loss(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> Tensor:
            return nn.functional.cross_entropy(self.layers(inputs), targets)

        def metrics(self, inputs: Tensor, targets: Tensor, eval: bool = False) -> dict[str, Any]:
            return {"loss": metrics.Weighted(0.0, len(inputs))}

    ends = [time.perf_counter()]

    class Note(callbacks.TrainingProcessCallback):  # type: ignore[name-defined,misc]
        def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Any]:
            ends.append(time.perf_counter())
            return False, metrics.Metrics()

    torch.set_num_threads(1)
    trained = Net()
    wrapped = model.PyTorchModel(
        trained, torch.optim.SGD, torch.optim.SGD(trained.parameters(), 1.0)
    )
    parts = data.FederatedDataset(
        lambda client: dataset.Dataset(raw_data=list(rows(client))),
        sampling.get_user_sampler("minimize_reuse", list(range(clients))),
    )
    for client in range(clients):
        rows(client)
    parameters = base.NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=10 * rounds,
        train_cohort_size=clients,
        val_cohort_size=0,
    )
    train = hyper.NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH
    )
    averaging.FederatedAveraging().run(
        algorithm_params=parameters,
        backend=simulate.SimulatedBackend(training_data=parts, val_data=None),
        model=wrapped,
        model_train_params=train,
        model_eval_params=hyper.NNEvalHyperParams(local_batch_size=BATCH),
        callbacks=[Note()],
    )
    return [late - early for early, late in pairwise(ends)]


def flower(clients: int, rounds: int, cores: float | None) -> list[float]:
    """Time Flower's simulation; the seconds of the first round count from the strategy's start."""
    os.environ |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_DISABLE_IMPORT_WARNING": "1",
    }
    app, client_side, server_side = (
        import_module(f"flwr.{name}") for name in ("app", "clientapp", "serverapp")
    )
    strategies, simulation = (
        import_module("flwr.serverapp.strategy"),
        import_module("flwr.simulation"),
    )
    client_app, server_app, ends = client_side.ClientApp(), server_side.ServerApp(), list[float]()

    @client_app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        torch.set_num_threads(1)
        inputs, targets = rows(int(context.node_config["partition-id"]))
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser, order = torch.optim.SGD(model.parameters(), RATE), torch.randperm(len(inputs))
        for step in range(STEPS):
            batch = order[step * BATCH : (step + 1) * BATCH]
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), targets[batch]).backward()
            optimiser.step()
        content = {
            "arrays": app.ArrayRecord(model.state_dict()),
            "metrics": app.MetricRecord({"num-examples": len(inputs)}),
        }
        return app.Message(app.RecordDict(content), reply_to=message)

    class Complete(strategies.FedAvg):  # type: ignore[name-defined,misc]
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            heard = list(replies)
            if (found := sum(not reply.has_error() for reply in heard)) < clients:
                raise RuntimeError(f"round {server_round}: {found} of {clients} clients trained")
            return super().aggregate_train(server_round, heard)

    @server_app.main()  # type: ignore[untyped-decorator]
    def serve(grid: Any, context: Any) -> None:
        def note(round: int, arrays: Any) -> Any:
            ends.append(time.perf_counter())
            return app.MetricRecord({"round": round})

        strategy = Complete(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=clients,
            min_available_nodes=clients,
        )
        strategy.start(
            grid=grid,
            initial_arrays=app.ArrayRecord(net().state_dict()),
            num_rounds=rounds,
            evaluate_fn=note,
        )

    resources = {"client_resources": {"num_cpus": cores, "num_gpus": 0.0}} if cores else None
    simulation.run_simulation(server_app, client_app, clients, backend_config=resources)
    if len(ends) != rounds + 1:
        raise SystemExit(f"{len(ends) - 1} of {rounds} rounds were made")
    return [late - early for early, late in pairwise(ends)]


def main() -> None:
    """Run one engine; whatever it prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    which, clients, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    np.random.seed(0)
    # Ray's workers import what the clients call by this name.
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder
    here = import_module("engines")
    seconds = (
        here.pfl(clients, rounds)
        if which == "pfl"
        else here.flower(clients, rounds, 1.0 if which == "flower2" else None)
    )
    print(json.dumps(seconds), file=answers, flush=True)


if __name__ == "__main__":
    main()
