"""What the engine costs: FedAvg rounds against a bare PyTorch loop that does the same work.

    python benchmarks/engine.py [--check]

10 clients x 100 SGD steps of 64 on an MLP 784-256-256-10 with random images, one thread, float32 messages as real bytes in
both directions. The bare loop copies weights in memory, trains and averages: no messages, no checks, no ledger.
"""

from __future__ import annotations

import statistics
import sys

import torch
from targets import interleaved, is_check, ratio, target
from torch.nn import functional

import bayesfed as bf
from bayesfed.federated import rounds

CLIENTS, ROWS, STEPS, BATCH = 10, 3000, 100, 64


def main() -> int:
    """Measure and print; return the exit status."""
    check = is_check(__doc__ or "")
    torch.set_num_threads(1)
    generator = bf.Key(0, "data").generator()
    data = {
        f"client-{k}": bf.Dataset(torch.rand(ROWS, 28, 28, generator=generator), torch.randint(0, 10, (ROWS,), generator=generator))
        for k in range(CLIENTS)
    }
    net = bf.mlp([784, 256, 256, 10], bf.Key(0, "net"))
    algorithm = bf.fed_avg(net, steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(0.05))
    pool = bf.InProcess(data)
    work = {"engine": lambda: list(rounds(algorithm, pool, rounds=1)), "bare": lambda: bare(net, list(data.values()))}
    seconds = interleaved(work, 5 if check else 15)
    for name, values in seconds.items():
        print(f"{name:<7} median {statistics.median(values):.3f} s a round, {min(values):.3f} to {max(values):.3f}")
    return 0 if target("engine round / bare loop", ratio(seconds["engine"], seconds["bare"]), 1.10) else 1


def bare(net: torch.nn.Module, data: list[bf.Dataset]) -> dict[str, torch.Tensor]:
    """Run one FedAvg round by hand."""
    initial = {name: value.detach().clone() for name, value in net.named_parameters()}
    total = {name: torch.zeros_like(value) for name, value in initial.items()}
    twin = bf.mlp([784, 256, 256, 10], bf.Key(0, "twin"))
    for number, part in enumerate(data):
        twin.load_state_dict(initial)
        optimiser = torch.optim.SGD(twin.parameters(), 0.05)
        generator = torch.Generator().manual_seed(number)
        order, start = torch.randperm(len(part), generator=generator), 0
        for _ in range(STEPS):
            if start + BATCH > len(part):
                order, start = torch.randperm(len(part), generator=generator), 0
            rows = order[start : start + BATCH]
            start += BATCH
            optimiser.zero_grad()
            functional.cross_entropy(twin(part.inputs[rows]), part.targets[rows]).backward()
            optimiser.step()
        for name, value in twin.named_parameters():
            total[name] += value.detach() / len(data)
    return total


if __name__ == "__main__":
    sys.exit(main())
