"""Whether printed epsilons hold: `local_privacy` and `private` around every recipe, and with every
layer around them and within, are attacked or refused.

    python benchmarks/privacy.py [--check]

The attacks are in `parts/privacy/attack.py`: what one client's rows move, beside the noise that is
found on it, gives a lower bound on epsilon by the exact test of the likelihood ratio. It must be
below what is printed. Whatever moves and has no noise is an epsilon of infinity. Mechanisms that
are broken on purpose must be found.

Without --check the record `records/privacy.jsonl` and the tables in SECURITY.md are written anew;
with it every order must come out as the record says: refused for its reason, or attacked.
"""

from __future__ import annotations

import math

import torch
from parts.privacy.orders import KINDS, broken, layers, methods
from parts.privacy.page import recorded, run_of, tables, write
from parts.shared.parts import command_line
from parts.shared.targets import at_least, target
from tqdm import tqdm


def main() -> int:
    """Attack, print, and return the exit status."""
    options = command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    orders = [(order, kind) for order in [*methods(), *layers()] for kind in KINDS]
    runs = {
        f"{order.name}, {kind}": run_of(order.audited(kind))
        for order, kind in tqdm(orders, unit="order", disable=None)
    }
    found = dict(broken())
    print(tables(runs))
    print("\n".join(f"{name}: {one.bound:.2f} of {one.printed:.2f}" for name, one in found.items()))
    shares = {
        name: math.inf if run["bound"] is None else run["bound"] / run["printed"]
        for name, run in runs.items()
        if "refused" not in run
    }
    print("\n".join(f"too high: {name} {runs[name]}" for name, one in shares.items() if one > 1))
    met = [
        at_least("orders that were attacked", len(shares), 80),
        target("largest share of a printed epsilon that an attack proves", max(shares.values()), 1),
        at_least(
            "broken mechanisms that were found",
            sum(one.bound > one.printed for one in found.values()),
            len(found),
        ),
    ]
    if options.check:
        before = recorded()
        other = [
            name
            for name in before.keys() | runs.keys()
            if before.get(name, {}).get("refused", 0) != runs.get(name, {}).get("refused", 0)
        ]
        print("\n".join(f"not as recorded: {name}" for name in sorted(other)))
        met.append(target("orders that came out unlike the record", len(other), 0))
    else:
        write(runs)
    return 0 if all(met) else 1


if __name__ == "__main__":
    raise SystemExit(main())
