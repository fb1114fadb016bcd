"""What the tests of ranks run in one process, and in every process of a job:
``torchrun ... ranks_job.py OUT FOLDER WHAT ...``.

WHAT is "cases", "paced", "until" and a number of rounds, or names of recipes.
"""

import math
import os
import pickle
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

import bayesfed as bf
from bayesfed.errors import BayesfedError
from bayesfed.federated import Digital, checkpoint, layered, newest
from tests.posteriors.test_exact_runs import line, rows, sites
from tests.support import recipes
from tests.support.logged import Logged
from tests.support.random_networks import KINDS, drawing_net
from tests.support.records import untimed

# Methods whose sums are added over ranks, with memories and without, and methods whose replies are
# sent to rank 0.
SAMPLE = ("stc", "hetero_fl", "fed_avg on air", "flex_lora")


def plain(run):
    """What of a run must not depend on the number of ranks."""
    return (
        run.snapshot.state,
        dict(run.snapshot.memories),
        [untimed(record) for record in run.history],
    )


def whole_runs(wrap, names, *, rounds=2):
    """Two rounds of recipes, by name."""
    made, result = recipes.tiny_recipes(), {}
    for name in names:
        tiny = made[name]()
        result[name] = plain(
            bf.run(
                tiny.algorithm,
                wrap(tiny.pool()),
                rounds=rounds,
                progress=False,
                on_client_error="drop",
            )
        )
    return result


def hard_cases(wrap, folder):
    """An idle rank, failing clients and callbacks, a callback that stops, clients that diverge, and
    a run resumed with memories.
    """
    tiny, result = recipes.tiny_recipes()["stc"](), {}
    clients = dict(tiny.pool().data)

    def ran(algorithm=tiny.algorithm, data=clients, memory_bytes=None, **options):
        pool = wrap(bf.InProcess(data, memory_bytes=memory_bytes))
        try:
            return plain(bf.run(algorithm, pool, **{"rounds": 2, "progress": False, **options}))
        except BayesfedError as problem:
            return type(problem).__name__, str(problem)
        except ZeroDivisionError:
            return "divided by zero"

    first, *others = clients
    result["idle"] = ran(data={first: clients[first]})
    narrow = clients | {
        name: replace(clients[name], inputs=clients[name].inputs[:, :1]) for name in others[:2]
    }
    result["raise"] = ran(data=narrow)
    result["drop"] = ran(data=narrow, on_client_error="drop")
    result["callback fails"] = ran(callbacks=[lambda report: 1 // 0])
    plainly = recipes.tiny_recipes()["fed_avg"]().algorithm
    unchecked = replace(
        plainly,
        phases=tuple(replace(phase, link=Digital(max_norm=math.inf)) for phase in plainly.phases),
    )
    for name, size in {"NaN": 1e30, "overflow": 1e10}.items():
        large = clients | {
            others[0]: replace(clients[others[0]], inputs=clients[others[0]].inputs * size)
        }
        result[name] = ran(unchecked, data=large, on_client_error="drop")

    def stop(report):
        report.metrics["seen"] = 3.0
        return report.round == 1

    result["stops"] = ran(rounds=5, callbacks=[stop])
    ran(callbacks=[checkpoint(folder)])
    result["resumed"] = ran(rounds=4, resume=newest(folder))
    counted = layered(plainly, Logged())
    ran(counted, callbacks=[checkpoint(folder / "counted")])
    for name in KINDS:
        drawing = drawing_net(name, recipes.FEATURES, recipes.CLASSES)
        result[name] = ran(bf.fed_avg(drawing, training=bf.Training(steps=2, batch_size=8)))
    result["own layer"] = ran(counted, rounds=4, resume=newest(folder / "counted"))
    masked = bf.secure(plainly, participants=4, largest=8.0, heaviest=100.0)
    result["secure"] = ran(masked, on_client_error="drop")
    ends = bf.federated_svi(line)
    result["ends by itself"] = ran(ends, sites(*rows()), rounds=None)
    # What is resumed from is on rank 0's disk, and rank 0 alone has it.
    lazy = bf.data.Population(
        list(clients), {name: len(rows) for name, rows in clients.items()}, clients.__getitem__
    )
    saved = {"callbacks": [checkpoint(folder / "lazy")], "records": folder / "records"}
    leads = os.environ.get("RANK", "0") == "0"
    for rounds in (2, 4):
        resume = newest(folder / "lazy") if leads else None
        result["population"] = ran(data=lazy, rounds=rounds, resume=resume, memory_bytes=0, **saved)
    return result


def until(wrap, folder, rounds):
    """Rounds with memories and checkpoints, from the last checkpoint there is."""
    tiny = recipes.tiny_recipes()["stc"]()
    callbacks = [checkpoint(folder / "saved")]
    return plain(
        bf.run(
            tiny.algorithm,
            wrap(tiny.pool()),
            rounds=rounds,
            progress=False,
            callbacks=callbacks,
            resume=newest(folder / "saved"),
        )
    )


def paced(folder, rounds):
    """Rounds that a test interrupts: checkpoints, and a note of every round of every rank."""
    tiny = recipes.tiny_recipes()["stc"]()
    pool = bf.federated.Ranks(tiny.pool(), timeout_s=8.0)

    def note(report):
        (folder / f"round-{report.round}").touch()
        time.sleep(0.3)

    (folder / f"process-{pool.group.rank}").write_text(str(os.getpid()))
    run = bf.run(
        tiny.algorithm,
        pool,
        rounds=rounds,
        progress=False,
        callbacks=[note, checkpoint(folder / "saved")],
        resume=newest(folder / "saved"),
    )
    return plain(run)


def main(out, folder, *what):
    """Run what is asked for, and write the outcome of this rank."""
    torch.set_num_threads(1)
    if what == ("paced",):
        outcome = paced(folder, 8)
    elif what[0] == "until":
        outcome = until(bf.federated.Ranks, folder, int(what[1]))
    else:
        outcome = (
            whole_runs(bf.federated.Ranks, SAMPLE) | hard_cases(bf.federated.Ranks, folder)
            if what == ("cases",)
            else whole_runs(bf.federated.Ranks, what)
        )
    out.with_suffix(f".{os.environ['RANK']}").write_bytes(pickle.dumps(outcome))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
