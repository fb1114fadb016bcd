"""The posterior of pooled rows without pooling them: `federated_svi` of a model alone against the
reference draws of posteriordb, on problems of which it must not say "exact", beside NUTS of the
pooled rows, on hospitals, and on data sets that models made themselves.

    python benchmarks/exact.py [--check] [--data posteriordb.tar.xz] [--only arK sblrc told nuts]
    python benchmarks/exact.py --only heart --heart FOLDER
    python benchmarks/exact.py --only calibration --simulations 1000
    python benchmarks/exact.py --only pathfinder    # needs `pip install blackjax`

For each posterior: the error of the worst mean in reference sds, the range of ratios of sds,
rounds, kB up a client, seconds, the status. Not all of posteriordb is part of this repository: give
its archive or folder by --data or the environment variable POSTERIORDB; without either it is looked
for in shared/data beside the repository, and eleven small posteriors of records/posteriordb.json
stand in if it is not there. `hierarchies` are six over sites whose posterior is known by
quadrature, as that of the eight schools is; `rats`, `counties`, `nested` and `crossed` are four
more, which take minutes. Simulated regressions, whose exact answers are computed here, and the
problems of `told` always run; `nuts`, `heart` and `calibration` where they are named. What
records/exact.jsonl has of NUTS, of what is beside it, and of calibration, in blocks of fifty data
sets, is not run again, so that a run that was ended goes on; --measure runs all anew, and records
what else was run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from parts.exact import hierarchies
from parts.exact.bad import away, bad
from parts.exact.central import (
    beside_nuts,
    by_hospital,
    by_pathfinder,
    calibrated,
    rounded,
    write,
)
from parts.exact.classics import known_schools
from parts.exact.hierarchies import HIERARCHIES
from parts.exact.limits import CERTAIN, KILOBYTES, ROUNDS, is_near
from parts.exact.models import case
from parts.exact.problems import simulated
from parts.exact.scores import Score, exact, fitted, scored
from parts.shared.parts import command_line
from parts.shared.targets import at_least, target

import bayesfed as bf
from bayesfed.errors import ClientError, PosteriorError, UndeterminedWarning
from bayesfed.inspect import table

# Share of the posteriors that are to meet it: 25 of posteriordb's 29.
WANTED = 25 / 29
ASIDE = {
    "nuts": beside_nuts,
    "pathfinder": by_pathfinder,
    "heart": by_hospital,
    "calibration": calibrated,
}
PACKED = Path(__file__).parent / "records" / "posteriordb.json"
BESIDE = Path(__file__).parents[2] / "shared" / "data" / "posteriordb.tar.xz"


def main() -> int:
    """Run and print; return the exit status."""
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, help="archive or folder of posteriordb")
    parser.add_argument("--only", nargs="+", help="names of posteriors, 'simulated', 'told'")
    parser.add_argument("--seeds", type=int, default=10, help="simulated regressions")
    parser.add_argument("--heart", type=Path, help="folder of UCI's heart disease files")
    parser.add_argument("--simulations", type=int, default=1000, help="data sets of a model")
    parser.add_argument("--measure", action="store_true", help="run NUTS anew; record")
    given = parser.parse_args()
    scores, met = list[Score](), list[bool]()
    for score in _scores(given):
        scores.append(score)
        print(_row(score), flush=True)
    if scores:
        print(table(Score._fields, [tuple(score) for score in scores]))
        good = [score for score in scores if _meets(score)]
        if given.measure and not given.only:
            write("posteriors", rounded({"scores": [score._asdict() for score in scores]}))
        met.append(at_least("share of posteriors that meet all", len(good) / len(scores), WANTED))
        wrong = [s.name for s in scores if s.status in CERTAIN and not _near(s)]
        met.append(target(f"wrong 'exact' {wrong}", len(wrong), 0))
    if not given.only or "told" in given.only:
        wrong, problems = list[str](), 0
        for name, status in _statuses():
            print(f"{name:40}{status}", flush=True)
            wrong += [name] if status in CERTAIN else []
            problems += 1
        met.append(target(f"'exact' of what is not, of {problems} problems {wrong}", len(wrong), 0))
    for name, part in ASIDE.items():
        if name in (given.only or []):
            met += part(given)
    return 0 if all(met) or not given.check else 1


def _scores(given: argparse.Namespace) -> Iterator[Score]:
    only = given.only or []
    place = given.data or Path(os.environ.get("POSTERIORDB", BESIDE))
    with ExitStack() as stack:
        if place.is_file():
            into = stack.enter_context(tempfile.TemporaryDirectory())
            with tarfile.open(place) as archive:
                archive.extractall(into, filter="data")
            place = Path(into) / "posteriordb"
        if not place.is_dir():
            print(f"a small part of posteriordb stands in: {place} is not there")
            place = _unpacked(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        for folder in sorted(place.glob("*/reference.json")):
            if not only or folder.parent.name in only:
                reference = json.loads(folder.read_text())["parameters"]
                if folder.parent.name == "eight_schools_noncentered":
                    reference = known_schools()
                yield scored(folder.parent.name, case(folder.parent), reference)
    for seed in range(given.seeds if not only or "simulated" in only else 0):
        problem, reference = simulated(seed)
        yield scored(f"simulated {seed}", problem, reference)
    for name, made in HIERARCHIES.items():
        if name in only or ("hierarchies" in only and name not in hierarchies.SLOW):
            score = hierarchies.scored(name, made())
            if given.measure:
                named = score._replace(name=f"hierarchy, {name}")
                write(named.name, rounded(named._asdict()))
            yield score


def _statuses() -> Iterator[tuple[str, str]]:
    for name, problem in bad().items():
        try:
            yield name, exact(fitted(problem.model, problem.clients)).status
        except (PosteriorError, ClientError) as refusal:
            yield name, f"refused: {str(refusal).rpartition('site ')[2]}"
    for name, (problem, pool) in away().items():
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UndeterminedWarning)
            algorithm = bf.federated_svi(problem.model)
            result = bf.run(algorithm, pool, progress=False, on_client_error="drop")
        named = any("'1'" in str(one.message) for one in told)
        yield name, exact(result).status if named else "exact"


def _unpacked(into: Path) -> Path:
    for name, told in json.loads(PACKED.read_text())["posteriors"].items():
        (into / name).mkdir()
        (into / name / "data.json").write_text(json.dumps(told["data"]))
        reference = {"parameters": told["parameters"]}
        (into / name / "reference.json").write_text(json.dumps(reference))
    return into


def _near(score: Score) -> bool:
    return is_near(score.error, score.low, score.high)


def _meets(score: Score) -> bool:
    return _near(score) and score.rounds <= ROUNDS and score.kilobytes <= KILOBYTES


def _row(score: Score) -> str:
    return (
        f"{score.name:28}{score.error:6.3f} {score.low:.3f}-{score.high:.3f} "
        f"{score.rounds:3} rounds {score.kilobytes:5.1f} kB {score.seconds:5.1f} s  {score.status}"
    )


if __name__ == "__main__":
    sys.exit(main())
