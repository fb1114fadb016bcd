"""Where partial pooling pays: clients with few rows, clients never seen, one round, and a hierarchy
whose truth is known.

    python benchmarks/pooling.py [--check] [--only images hierarchy one_round]
    # sentences of one domain or author: `parts/pooling/sentiment.py`
    python benchmarks/pooling.py --only sentiment --data FOLDER [--check]
    # personal models, and methods against drift: `parts/pooling/personal.py`
    python benchmarks/pooling.py --only personal [--check | --tune]

100 clients of 10 to 60 rows and 40 that are never seen (`parts/pooling/problems.py`): digits by
rotated writers, and Fashion-MNIST by Dirichlet(0.1) with one corruption a client. A fifth of each
client's rows chooses every strength: FedAvg's rate, the steps and rate of fine-tuning and of local
training, Ditto's lambda, the temperature, and what is a client's own in `pooled`. "own" is the mean
over clients of the NLL of 50 test rows, "unseen" the same for the clients that are never seen, of
FedAvg at its temperature and of the population of `pooled`. "inputs seen" predicts half of its rows
given the inputs of the other half, without labels: these tell class shares, or factors with
covariates. Beside it are shares with a flat prior; or factors by the inputs of another client, and
FedAvg with the covariates as further inputs. Intervals are of paired bootstraps over clients.

All have the same rounds. `pooled` goes on from FedAvg's network after two thirds of them, with
class shares, heads or offsets as clients' own; with factors it begins anew. Fine-tuning and Ditto's
own models begin with FedAvg's last network.

The hierarchy has 100 regressions with parameters of their own; coverage is that of 90 % intervals
of all parameters of all clients, over several data sets. One round: ten clients of Fashion-MNIST by
Dirichlet(0.1) that train from the same network until they are fused once.

The program without an option runs three seeds. `--check` runs one, and keeps one or two strengths
of every search of the images: those that held-out rows chose at that seed, or next to them
(`CHECKED` in `parts/pooling/images.py`). It takes four data sets of each hierarchy instead of
twelve, and one seed of the fusion instead of five.
"""

from __future__ import annotations

import sys
from pathlib import Path

from parts.shared.parts import add_only, command_line, measured


def main() -> int:
    """Measure and print; return the exit status."""
    parser = command_line(__doc__)
    add_only(parser, ("images", "hierarchy", "one_round"), aside=("personal", "sentiment"))
    parser.add_argument(
        "--tune",
        action="store_true",
        help="personal: choose rates and strengths on rows that are not scored",
    )
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="sentiment: folder of the ratings"
    )
    return measured("pooling", parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
