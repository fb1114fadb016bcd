"""What people bring: networks and rows of strangers by four methods.

    python benchmarks/bring.py [--check]

Each of 17 networks with its rows goes through `fed_avg`, `federated_svi` of a network whose head
has a posterior, `d_turbo_vbi` and `fed_lora`. A body is trained by `fed_avg` before its head gets a
posterior: `bayesian` keeps parameters without a prior as they are, and a drawn body tells rows
badly apart. BERT's head reaches 0.6 on it in 1,000 steps of maximum likelihood, ResNet's 0.6 in 50;
a posterior of ResNet's or ViT's 0.5 to 0.8 with any prior and number of steps that was tried.

A case runs and reaches 0.8 of its own rows (chance is 0.5), or it is refused by an error of the
package that says why. Anything else is raw: an error of another kind, or a refusal for another
reason.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable

from parts.bring.networks import ROWS, Brought, brought
from parts.shared.parts import command_line
from parts.shared.targets import at_least, target
from torch import nn

import bayesfed as bf
from bayesfed.errors import BayesfedError
from bayesfed.federated import Algorithm

WANTED = 0.8
WORK = bf.Training(steps=12, batch_size=16, optimiser=bf.Adam(1e-2))
Method = Callable[[nn.Module, bf.Dataset, bf.models.Likelihood], Algorithm]


def head(name: str, module: nn.Module) -> bool:
    """Select the weight of the output layer, whatever its owner calls it."""
    return name.rpartition(".")[0] in ("classifier", "score", "fc", "lin") and name.endswith(
        "weight"
    )


def matrices(name: str, module: nn.Module) -> bool:
    """Select linear layers, convolutions and Conv1D."""
    return bf.models.linear_weights(name, module) or bf.models.weight_matrices(name, module)


METHODS: dict[str, Method] = {
    "fed_avg": lambda net, data, scored: bf.fed_avg(net, likelihood=scored, training=WORK),
    "federated_svi head": lambda net, data, scored: bf.federated_svi(
        bf.models.bayesian(net, where=head, likelihood=scored),
        example=data[:2],
        observations=ROWS,
        training=WORK,
    ),
    "d_turbo_vbi": lambda net, data, scored: bf.d_turbo_vbi(
        bf.models.declare(net, likelihood=scored), observations=ROWS, training=WORK
    ),
    "fed_lora": lambda net, data, scored: bf.fed_lora(
        bf.lora(net, 4, bf.Key(0, "lora"), where=matrices, head=_heads(net)),
        likelihood=scored,
        training=WORK,
    ),
}


def _heads(net: nn.Module) -> list[str]:
    return [name for name, _ in net.named_children() if head(f"{name}.weight", net)]


def verdict(one: Brought, method: str) -> tuple[str, str]:
    """Return what came out, "runs", "low", "refused" or "raw", and its score or its words."""
    try:
        data = bf.Dataset(one.inputs, one.targets)  # type: ignore[arg-type]
        parts = bf.iid(ROWS, 2, bf.Key(0, "parts"))
        clients, net = bf.federate(data, parts), one.net().train()
        if method == "federated_svi head" and not one.refused:
            first = bf.run(METHODS["fed_avg"](net, data, one.likelihood), clients, rounds=4)
            net.load_state_dict(first.model.parameters, strict=False)
        algorithm = METHODS[method](net, data, one.likelihood)
        found = bf.run(algorithm, clients, rounds=4, test=data)
        score = float(found.final("accuracy"))
    except BayesfedError as problem:
        words = str(problem)
        wanted = one.refused.get(method, one.refused.get("", ""))
        right = bool(wanted) and re.search(wanted, words)
        return ("refused" if right else "raw"), f"{type(problem).__name__}: {words}"
    except Exception as problem:
        return "raw", f"{type(problem).__name__}: {problem}"
    if one.refused:
        return "raw", f"{score:.2f}, where it should be refused"
    return ("runs" if score >= WANTED else "low"), f"{score:.2f}"


def main() -> int:
    """Run and print; return the exit status."""
    command_line(__doc__).parse_args()
    warnings.simplefilter("ignore")
    came, cases = Counter[str](), brought()
    for name, one in cases.items():
        for method in METHODS:
            what, words = verdict(one, method)
            came[what] += 1
            print(f"{name:28} {method:20} {what:8} {words[:400]}", flush=True)
    total = len(cases) * len(METHODS)
    met = [
        at_least("networks with rows, times methods", total, 68),
        target("score below 0.8", came["low"], 0),
        target("raw, or refused for another reason", came["raw"], 0),
    ]
    print(f"{came['runs']} run, {came['refused']} are refused with the reason")
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
