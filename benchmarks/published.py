"""Published D-Turbo-VBI: which settings that the paper leaves open keep 18.6 % of the weights.

Algorithm 1 as printed (mean-field guide, no density, temperature one, 16 bits), on the digits of
8 x 8 pixels, MLP 64-32-10, four clients by Dirichlet(0.5), 10 rounds of 20 steps. The paper prints
neither a, b, a-bar, b-bar nor what a-tilde, b-tilde and pi-tilde are at first.

    python benchmarks/published.py      # the table, from records/published.jsonl
    python benchmarks/published.py --measure
"""

import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import no_field
from bayesfed.inference import MeanField
from bayesfed.models import MarkovGrid

RECORDS = Path(__file__).parent / "records" / "published.jsonl"
# Share of non-zeros in Table I of the paper, and how near to it counts.
PRINTED, NEAR = 0.186, 0.1
SETTINGS = {
    "inclusion": (None, 0.9, 0.6),
    "shape": (1.0, 20.0),
    "spike_sd": (0.28, 0.05),
    "stay": (0.6,),
    "printed": (True, False),
}


def settings() -> Iterator[dict[str, Any]]:
    """Yield every combination."""
    for values in itertools.product(*SETTINGS.values()):
        yield dict(zip(SETTINGS, values, strict=True))


def measured(chosen: dict[str, Any]) -> dict[str, float]:
    """Return density and accuracy of a run with these settings."""
    train, test = bf.digits()
    parts = bf.dirichlet(train.targets, 4, 0.5, bf.Key(0, "parts"))
    shape = chosen["shape"]
    prior = bf.Prior(
        MarkovGrid(chosen["stay"], chosen["stay"]),
        bf.BernoulliGamma(spike_sd=chosen["spike_sd"], slab_shape=shape, spike_shape=shape),
    )
    algorithm = bf.d_turbo_vbi(
        bf.declare(bf.mlp([64, 32, 10], bf.Key(0, "net")), prior),
        observations=len(train),
        temperature=1.0,
        training=bf.Training(steps=20, batch_size=32, optimiser=bf.Adam(4e-3)),
        codec=bf.Cast(16),
        blocks=MeanField(as_printed=chosen["printed"]),
        field=no_field,
        before_averaging=chosen["printed"],
        initial_inclusion=chosen["inclusion"],
    )
    result = bf.run(algorithm, bf.federate(train, parts), rounds=10, test=test, progress=False)
    return {"density": result.final("density"), "accuracy": 100 * result.final("accuracy")}


def main() -> None:
    """Measure, or print what was measured."""
    if "--measure" in sys.argv[1:]:
        warnings.simplefilter("ignore")
        with RECORDS.open("w") as records:
            for one in settings():
                print(json.dumps(one | measured(one)), file=records, flush=True)
    rows = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    print(*SETTINGS, "density", "accuracy", sep="\t")
    for row in rows:
        print(*row.values(), sep="\t")
    near = [row for row in rows if abs(row["density"] - PRINTED) <= NEAR * PRINTED]
    print(
        f"{len(near)} of {len(rows)} settings keep {PRINTED:.1%} of the weights, within {NEAR:.0%}"
    )


if __name__ == "__main__":
    main()
