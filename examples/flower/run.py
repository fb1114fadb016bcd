"""A federation of three over Flower on this machine: started, run and stopped by one script, and no
call leaves the machine.

    pip install 'bayesfed[flower]' python examples/flower/run.py [--rounds 5] [--secure] [--recipe
    d_turbo_vbi] [--out results/flower]

Starts a SuperLink and three SuperNodes on 127.0.0.1, with a worker beside each that keeps model and
data in memory; submits the app beside this file, which is a configuration (``pyproject.toml``, no
dependencies) and an experiment (``experiment.py``); waits, prints the rounds, and stops everything.
``--secure``: with TLS and a registered key for each node. What the script does by hand on three
machines is in `docs/tutorials/flower.md`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from bayesfed.inspect import table

sys.path.append(str(Path(__file__).resolve().parents[2]))

from examples.flower.loopback import Loopback

APP = Path(__file__).parent
CLIENTS = ("ward-a", "ward-b", "ward-c")


def main() -> None:
    """Start, run, print, stop."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--recipe", choices=["d_turbo_vbi", "fed_avg"], default="d_turbo_vbi")
    arguments.add_argument(
        "--secure", action="store_true", help="TLS, and SuperNodes that show a registered key"
    )
    arguments.add_argument("--out", type=Path, default=Path("results/flower"))
    chosen = arguments.parse_args()
    os.environ["ROUNDS"] = str(chosen.rounds)
    shutil.rmtree(chosen.out, ignore_errors=True)
    experiment = f"experiment:{chosen.recipe}"
    with (
        tempfile.TemporaryDirectory() as folder,
        Loopback(folder, CLIENTS, secure=chosen.secure, worker=experiment, path=APP) as net,
    ):
        print(f"a SuperLink at 127.0.0.1:{net.port}, {net.online()} SuperNodes online")
        ended = net.run(
            APP,
            {
                "experiment": experiment,
                "clients": ",".join(CLIENTS),
                "out": str(chosen.out.resolve()),
            },
        )
    print((chosen.out / "rounds.txt").read_text())
    traffic = ended.get("network-traffic", {})
    print(
        table(
            ["Flower's own count", "MB"],
            [[name, int(count) / 1e6] for name, count in traffic.items()],
        )
    )
    print(f"rounds.jsonl, rounds.txt and checkpoints in {chosen.out}/; everything is stopped")


if __name__ == "__main__":
    main()
