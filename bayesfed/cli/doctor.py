"""What is installed, what data are found, and the command that gets what is missing; and what a
run will cost.
"""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Callable
from importlib.metadata import requires
from itertools import islice

from bayesfed.data import Dataset
from bayesfed.errors import BayesfedError
from bayesfed.errors.plurals import plural
from bayesfed.federated import bits, rounds
from bayesfed.federated.clients import one_thread
from bayesfed.inspect import table
from bayesfed.running import scoring
from bayesfed.running.experiments import names
from bayesfed.running.experiments.build import build, seeds
from bayesfed.running.experiments.experiment import ExperimentFile, Split
from bayesfed.running.experiments.kinds import options
from bayesfed.running.experiments.names import required
from bayesfed.running.launch import MOST
from bayesfed.running.settings import installed, versions

COSTS = "bytes down", "bytes up", "seconds"
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def report() -> str:
    """Return versions, extras and data, each with what to do where something is missing."""
    import torch

    where = (
        f"{torch.cuda.device_count()} CUDA devices"
        if torch.cuda.is_available()
        else "no CUDA device; clients run on the CPU"
    )
    parts = [
        table(["package", "version"], [[name, found] for name, found in versions().items()]),
        f"torch: {plural(torch.get_num_threads(), 'thread')}, {where}",
        table(["extra", "state", "command"], extras()),
        table(["data", "state", "command or key"], data()),
    ]
    return "\n\n".join(parts)


def estimate(file: ExperimentFile) -> str:
    """Return what a run of an experiment's first seed costs, by running its first two rounds as it
    would, keeping nothing: bytes, seconds, and the most memory of this process.

    Later rounds are taken to cost what the second does. Bytes are exact where the length of a
    message does not depend on what is learned.

    Raises
    ------
    BayesfedError
        As `build` and `bayesfed.run`.
    """
    seed = seeds(file)[0]
    built = build(file, seed)
    total = built.options["rounds"]
    scored = scoring(built.test, built.likelihood, draws=built.draws, seed=seed)
    options, spent = {**built.options, "rounds": total or MOST}, list[list[float]]()
    with one_thread():
        start = time.perf_counter()
        for report in islice(rounds(built.algorithm, built.pool, seed=seed, **options), 2):
            if built.regression is None:
                scored(report)
            ended = time.perf_counter()
            spent.append([*(bits(report.rows, way) // 8 for way in ("down", "up")), ended - start])
            start = ended
    columns = [
        "first round",
        "a later one",
        f"{plural(total, 'round')}" if total else "until it ends",
    ]
    lines = [
        [name, first, later, first + (total - 1) * later if total else "not known"]
        for name, first, later in zip(COSTS, spent[0], spent[-1], strict=True)
    ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    head = f"{file.name}: {built.algorithm.name}, {plural(len(built.clients), 'client')}, each seed"
    foot = f"most memory of this process: {peak:,.0f} MiB"
    return "\n".join([head, table(["", *columns], lines), foot])


def extras() -> list[list[str]]:
    """Return for every extra whether its packages are there, and the command that installs them."""
    needed: dict[str, list[str]] = {}
    for line in requires("bayesfed") or []:
        package, extra = _NAME.match(line), _EXTRA.search(line)
        if package and extra and package.group() != "bayesfed":
            needed.setdefault(extra.group(1), []).append(package.group())
    rows = []
    for name, packages in sorted(needed.items()):
        missing = [package for package in packages if not installed(package)]
        state = f"missing: {', '.join(missing)}" if missing else "installed"
        rows.append([name, state, f"pip install 'bayesfed[{name}]'" if missing else ""])
    return rows


def data() -> list[list[str]]:
    """Return for every data set whether its rows are there; for readers of files, the keys they
    need.
    """
    folder = {"minilm_folder": names.public()["minilm_folder"]}
    rows = []
    for name, read in {**options(Split), **options(Dataset), **folder}.items():
        needed = [key for key in required(read) if key != "key"]
        types = [names.members(names.parameters(read)[key].annotation) for key in needed]
        if needed and all(str in one for one in types):
            rows.append([name, "reads your files", ", ".join(f"{key} = ..." for key in needed)])
        elif "key" in required(read) and not needed:
            rows.append([name, "drawn, always there", ""])
        elif not needed:
            rows.append([name, *_tried(read)])
    return rows


def _tried(read: Callable[[], object]) -> tuple[str, str]:
    try:
        parts = read()
    except (BayesfedError, OSError) as problem:
        told = problem.complaint if isinstance(problem, BayesfedError) else None
        if told is None:
            return f"missing: {problem}", ""
        return f"missing: {told.where}: expected {told.expected}, found {told.actual}", told.hint
    if isinstance(parts, tuple):
        return " + ".join(f"{plural(len(part), 'row', ',')}" for part in parts), ""
    return f"found: {parts}", ""
