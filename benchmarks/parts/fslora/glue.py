"""FSLoRA's default, the printed mode and every rule for unlike ranks on tasks of GLUE, beside all
clients at the lowest rank and at the full one.

    python benchmarks/fslora.py --data FOLDER --only glue [--seeds 0 1]

FOLDER has GLUE's folders ``SST-2`` and ``CoLA`` with ``train.tsv`` and ``dev.tsv``. MiniLM-L6's
upper three layers get adapters of rank 16 in all linear layers, on states of the lower three that
are computed once; the classifier is trained whole. Ten clients of 12, 8, 4 and 2 slices, rows dealt
evenly, 15 rounds of five Adam steps of 16 rows; no momentum at the server. Scores are on dev, and
on 1,000 training rows that no run trains on.

==========  ====================================  ============================
task        columns of a line, by tabs            score, as GLUE has it
==========  ====================================  ============================
SST-2       sentence, label                       accuracy
CoLA        source, label, mark, sentence         Matthews correlation
MRPC        label, two numbers, two sentences     accuracy
RTE         number, two sentences, label          accuracy
==========  ====================================  ============================

CoLA has no heading, and no file quotes.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from parts.fslora.bench import Bench
from parts.fslora.runs import Finished
from parts.fslora.sentiment_task import Model, Rows, Tail, Task, states_of
from parts.fslora.small import ahead
from parts.shared.settings import settings_of
from torch import Tensor

import bayesfed as bf
from bayesfed.data import Texts
from bayesfed.federated.engine.metrics import score
from bayesfed.inspect import table

Found = Mapping[str, Sequence[Finished]]


class Form(NamedTuple):
    """Where a line has its label and its texts, what the labels are and what GLUE scores."""

    label: int
    texts: tuple[int, ...]
    labels: tuple[str, str] = ("0", "1")
    heading: bool = True
    score: str = "accuracy"


FORMS = {
    "SST-2": Form(1, (0,)),
    "CoLA": Form(1, (3,), heading=False, score="Matthews"),
    "MRPC": Form(0, (3, 4)),
    "RTE": Form(3, (1, 2), ("entailment", "not_entailment")),
}
_CHUNK, _DRAWS = 64, 500


@dataclass(frozen=True)
class Glue(Task):
    """A task of GLUE with training rows that no run trains on."""

    held: Rows

    def scores(self, model: Model) -> dict[str, float]:
        """Return what a model reaches on held-out rows and on those of dev."""
        held, dev = outputs(model, self.held.data), outputs(model, self.test.data)
        return {
            "held-out NLL": of(held, self.held.data, "nll"),
            "held-out accuracy": of(held, self.held.data, "accuracy"),
            "NLL": of(dev, self.test.data, "nll"),
            **scored(dev.argmax(1) == 1, self.test.data.targets == 1),
        }


@torch.no_grad()
def outputs(model: Model, data: bf.Dataset) -> Tensor:
    """Return a model's outputs for all rows, of which those of like length are run together."""
    order = data.inputs[..., -1].sum(1).argsort(stable=True)
    found = torch.cat([model(data.inputs[part]) for part in order.split(_CHUNK)])
    return found[order.argsort()]


def of(found: Tensor, data: bf.Dataset, metric: Any) -> float:
    """Return a score of outputs."""
    return score(lambda rows: found, data, metric, batch_size=len(data))


def scored(found: Tensor, wanted: Tensor) -> dict[str, float]:
    """Return accuracy and Matthews' correlation of two classes, with their standard errors over
    rows by a bootstrap.
    """
    key = bf.Key(0, "bootstrap").generator()
    drawn = torch.randint(len(wanted), (_DRAWS, len(wanted)), generator=key)
    made = dict[str, float]()
    for name, of in (("accuracy", _right), ("Matthews", _matthews)):
        made[name] = float(of(found, wanted))
        made[f"se of {name}"] = float(of(found[drawn], wanted[drawn]).std())
    return made


def _right(found: Tensor, wanted: Tensor) -> Tensor:
    return (found == wanted).double().mean(-1)


def _matthews(found: Tensor, wanted: Tensor) -> Tensor:
    """Return the correlation, 0 where all rows are of one class."""
    a, b = (side.double() - side.double().mean(-1, keepdim=True) for side in (found, wanted))
    return ((a * b).mean(-1) / (a.square().mean(-1) * b.square().mean(-1)).sqrt()).nan_to_num()


def read(folder: Path, name: str, part: str) -> Texts:
    """Return the sentences, or the pairs, of a file."""
    form, rows = FORMS[name], list[tuple[str, ...]]()
    lines = (folder / name / f"{part}.tsv").read_text(encoding="utf-8-sig").rstrip("\n").split("\n")
    for line in lines[form.heading :]:
        cells = line.split("\t")
        rows.append((cells[form.label], *(cells[place].strip() for place in form.texts)))
    labels = torch.tensor([form.labels.index(label) for label, *_ in rows])
    texts: Any = [row[1:] if len(form.texts) > 1 else row[1] for row in rows]
    return Texts(texts, labels, [name] * len(rows))


def glue_task(settings: dict[str, Any], folder: Path, cache: Path, **unused: bool) -> Glue:
    """Return a task's network and rows, the same for every seed."""
    model, name = bf.data.minilm_folder(), settings["task"]
    whole = bf.models.text_classifier(model, 2, bf.Key(0, "classifier"), dropout=0.0)
    top, train = Tail(whole, settings["layers"]), read(folder, name, "train")
    order = torch.randperm(len(train), generator=bf.Key(0, "rows", name).generator())
    held, count = settings["held"], settings["rows"]

    def rows(texts: Texts, part: str) -> Rows:
        tokens = bf.data.tokenised(texts, model, length=settings["length"], cache=cache)
        states = states_of(whole, tokens.inputs, top, cache, f"{name}, {part}")
        return Rows(bf.Dataset(states, tokens.targets), texts.domains)

    return Glue(
        top,
        rows(train[order[held : held + count]], "train"),
        rows(read(folder, name, "dev"), "dev"),
        rows(train[order[:held]], "held-out"),
    )


def targets(options: argparse.Namespace) -> list[bool]:
    """Print a table a task, and by how much the default is ahead; return which targets are met."""
    torch.set_num_threads(1)
    out: Path = options.out or Path("results/fslora")
    found = {}
    for task in settings_of("fslora")["glue"]["tasks"]:
        bench = bench_of(task, options.data, out, options.seeds)
        found[task] = {case: bench.runs(case) for case in bench.document["cases"]}
        shown(task, found[task])
    points = {
        (task, case): statistics.mean(100 * measured(run, FORMS[task].score) for run in runs)
        for task, cases in found.items()
        for case, runs in cases.items()
    }
    return ahead(points, list(found))


def bench_of(task: str, data: Path, out: Path, seeds: Sequence[int] | None = None) -> Bench:
    """Return a task's settings, rows and runs."""
    glue = settings_of("fslora")["glue"]
    own = {**glue["all"], **glue["tasks"][task], "task": task}
    seeds = seeds or own["seeds"]
    document = {"cases": glue["cases"], "task": own, "scales": {"glue": {}}}
    return Bench(document, "glue", data, out, seeds, 0, make=glue_task)


def measured(run: Finished, name: str) -> float:
    """Return a score of a run's last model."""
    return run.last(run.domains.index(name))


def shown(task: str, found: Found) -> None:
    """Print a task's table."""
    some = next(iter(found.values()))
    scores = some[0].domains
    rows: list[list[str | float | int]] = [
        [
            case,
            f"{runs[0].settings['learning_rate']:g}",
            *(f"{statistics.mean(measured(run, name) for run in runs):.3f}" for name in scores),
            *(f"{statistics.mean(run.rows[-1][place] for run in runs):.1f}" for place in (1, 2)),
        ]
        for case, runs in found.items()
    ]
    print(f"\n{task}, {len(some)} seed{'s' * (len(some) > 1)}\n")
    print(table(["method", "rate", *scores, "MB up", "MB down"], rows) + "\n")
