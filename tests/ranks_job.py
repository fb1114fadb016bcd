"""What the tests of ranks run in one process, and in every process of a job: ``torchrun ... tests/ranks_job.py OUT FOLDER [NAME ...]``."""

import os
import pickle
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import bayesfed as bf
from bayesfed.errors import BayesfedError
from bayesfed.federated import checkpoint, newest, untimed
from bayesfed.testing import recipes

SAMPLE = ("fed_avg", "scaffold", "stc", "fed_avg on air", "flex_lora", "fed_rlr points", "hetero_fl", "d_turbo_vbi")


def plain(run):
    """What of a run must not depend on the number of ranks."""
    return run.snapshot.state, run.snapshot.memories, [untimed(record) for record in run.history]


def whole_runs(wrap, names, *, rounds=2):
    """Two rounds of recipes, by name."""
    made, result = recipes.tiny_recipes(), {}
    for name in names:
        tiny = made[name]()
        result[name] = plain(bf.run(tiny.algorithm, wrap(tiny.pool()), rounds=rounds, progress=False, on_client_error="drop"))
    return result


def hard_cases(wrap, folder):
    """An idle rank, failing clients and callbacks, a callback that stops, a client that diverges, and a run resumed with memories."""
    tiny, result = recipes.tiny_recipes()["stc"](), {}
    clients = dict(tiny.pool().data)

    def ran(algorithm=tiny.algorithm, data=clients, **options):
        try:
            return plain(bf.run(algorithm, wrap(bf.InProcess(data)), **{"rounds": 2, "progress": False, **options}))
        except BayesfedError as problem:
            return type(problem).__name__, str(problem)
        except ZeroDivisionError:
            return "divided by zero"

    first, *others = clients
    result["idle"] = ran(data={first: clients[first]})
    narrow = clients | {name: replace(clients[name], inputs=clients[name].inputs[:, :1]) for name in others[:2]}
    result["raise"] = ran(data=narrow)
    result["drop"] = ran(data=narrow, on_client_error="drop")
    result["callback fails"] = ran(callbacks=[lambda report: 1 // 0])
    nan = clients | {others[1]: replace(clients[others[1]], inputs=clients[others[1]].inputs * 1e30)}
    result["NaN"] = ran(data=nan, on_client_error="drop")

    def stop(report):
        report.metrics["seen"] = 3.0
        return report.round == 1

    result["stops"] = ran(rounds=5, callbacks=[stop])
    ran(callbacks=[checkpoint(folder)])
    result["resumed"] = ran(rounds=4, resume=newest(folder))
    return result


def paced(folder, rounds):
    """Rounds that a test interrupts: checkpoints, and a note of every round of every rank."""
    tiny = recipes.tiny_recipes()["stc"]()
    pool = bf.Ranks(tiny.pool(), timeout_s=8.0)

    def note(report):
        (folder / f"round-{report.round}").touch()
        time.sleep(0.3)

    (folder / f"process-{pool.group.rank}").write_text(str(os.getpid()))
    run = bf.run(tiny.algorithm, pool, rounds=rounds, progress=False, callbacks=[note, checkpoint(folder / "saved")], resume=newest(folder / "saved"))
    return plain(run)


if __name__ == "__main__":
    torch.set_num_threads(1)
    out, place, *wanted = Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
    cases = {} if wanted else hard_cases(bf.Ranks, place)
    outcome = paced(place, 8) if wanted == ["paced"] else (whole_runs(bf.Ranks, wanted or SAMPLE), cases)
    out.with_suffix(f".{os.environ['RANK']}").write_bytes(pickle.dumps(outcome))
