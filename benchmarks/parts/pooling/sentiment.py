"""Clients with few sentences: of one of four domains, or of one review or editorial.

    python benchmarks/pooling.py --only sentiment --data FOLDER [--check]

FOLDER has the ratings (`docs/how-to/text.md` says where from). A logistic regression on the mean
states of MiniLM-L6, of norm 1. "domains": 100 clients of 10 to 60 sentences and 40 never seen, each
of one domain in turn; 50 sentences of the domain are scored. "documents": as many reviews of
products and editorials of at least 10 sentences, half of which are scored. "domains, three classes"
has neutral sentences too, of which domains have 5 to 44 %; `--check` leaves it out. "told the
domain" is FedAvg among the clients of a domain alone: what clients could gain at most if the domain
were all that sets them apart.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from parts.pooling.compared import Grids, compared
from parts.pooling.judged import pooled_targets, shown
from parts.pooling.problems import SCORED, Problem, made, names, size
from parts.pooling.runs import ROUNDS, Chosen, best, run, work
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import normalize

import bayesfed as bf
from bayesfed.data import by_domain
from bayesfed.data.texts.texts import Texts

# Ratings that are no class, or neutral: those that round to 0.
THRESHOLD, NEUTRAL = 0.3, 0.5
LENGTH, LEAST, CACHE = 48, 10, Path("results/pooling")
GRIDS = Grids(
    rates=(3.0, 10.0, 30.0),
    tuned=((20, 0.1), (20, 0.3), (20, 1.0), (20, 3.0)),
    alone=(30, 100),
    ditto=(0.03, 0.1, 0.3, 1.0),
    parts=(("classes", "trained"), ("offsets", "trained")),
    factors=(),
    steps=5,
)


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether each target is met."""
    if options.data is None:
        raise SystemExit(
            "--only sentiment: expected --data FOLDER, the ratings of docs/how-to/text.md"
        )
    two = bf.data.sentiment(options.data, by="document", threshold=THRESHOLD)
    three = bf.data.sentiment(options.data, by="document", threshold=NEUTRAL, neutral=True)
    torch.set_num_threads(1)
    problems = [
        ("domains", domains, two),
        ("documents", documents, two),
        ("domains, three classes", domains, three),
    ]
    for name, make, texts in problems[: 2 if options.check else 3]:
        rows, several = bf.Dataset(states(texts), texts.labels), []
        for seed in range(1 if options.check else 3):
            problem, homes = make(texts, rows, seed)
            methods = compared(problem, GRIDS)
            several.append(
                methods | ({"told the domain": told(problem, homes)} if make is domains else {})
            )
        print(f"\n{name}, {len(several)} seeds\n{shown(several)}", flush=True)
        yield from pooled_targets(name, several)


@torch.no_grad()
def states(texts: Texts) -> Tensor:
    """Return the mean of MiniLM's states over the tokens of every text, ``(N, 384)``, of norm 1;
    from the cache if they were computed before.
    """
    digest = hashlib.blake2b(
        "\n".join([str(LENGTH), *map(str, texts.texts)]).encode(), digest_size=8
    ).hexdigest()
    model, file = bf.data.minilm_folder(), CACHE / f"states_{digest}.safetensors"
    if not file.exists():
        whole = bf.models.text_classifier(model, 2, bf.Key(0, "classifier"), dropout=0.0)
        tokens, mask = bf.data.tokenised(texts, model, length=LENGTH, cache=CACHE).inputs.unbind(1)
        found = torch.zeros(len(texts), 384)
        for rows in mask.sum(1).argsort().split(128):
            used = int(mask[rows].sum(1).max())
            last = whole.encoder(
                input_ids=tokens[rows, :used], attention_mask=mask[rows, :used]
            ).last_hidden_state
            found[rows] = normalize((last * mask[rows, :used, None]).sum(1))
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"states": found}, file)
    return load_file(file)["states"]


def domains(texts: Texts, rows: bf.Dataset, seed: int) -> tuple[Problem, Mapping[str, str]]:
    """Return clients of one domain each, in turn, and their domains.

    A third of a domain's sentences is for tests; no two clients train on the same one.
    """
    key = bf.Key(seed, "domains")
    noise, parts, scored, homes = (
        key.child("rows").generator(),
        dict[str, bf.Dataset](),
        dict[str, bf.Dataset](),
        dict[str, str](),
    )
    train, test = dict[str, list[int]](), dict[str, Tensor]()
    for home, own in by_domain([name.partition("/")[0] for name in texts.domains]).items():
        order = own[torch.randperm(len(own), generator=noise)]
        train[home], test[home] = order[len(own) // 3 :].tolist(), order[: len(own) // 3]
    for number, name in enumerate(names()):
        homes[name] = list(train)[number % len(train)]
        pool = test[homes[name]]
        parts[name] = rows[torch.tensor([train[homes[name]].pop() for _ in range(size(noise))])]
        scored[name] = rows[pool[torch.randperm(len(pool), generator=noise)[:SCORED]]]
    return made(parts, scored, (384, 1 + int(rows.targets.max())), key, seed), homes


def documents(texts: Texts, rows: bf.Dataset, seed: int) -> tuple[Problem, Mapping[str, str]]:
    """Return clients with the sentences of one review or editorial each, half of them to score, and
    their domains.
    """
    key = bf.Key(seed, "documents")
    noise, parts, scored = (
        key.child("rows").generator(),
        dict[str, bf.Dataset](),
        dict[str, bf.Dataset](),
    )
    long = {
        home: own
        for home, own in by_domain(texts.domains).items()
        if "/" in home and len(own) >= LEAST
    }
    chosen = [
        list(long)[place]
        for place in torch.randperm(len(long), generator=noise)[: len(names())].tolist()
    ]
    for name, home in zip(names(), chosen, strict=True):
        own = long[home][torch.randperm(len(long[home]), generator=noise)]
        parts[name], scored[name] = rows[own[len(own) // 2 :]], rows[own[: len(own) // 2]]
    return made(parts, scored, (384, 2), key, seed), {
        name: home.partition("/")[0] for name, home in zip(names(), chosen, strict=True)
    }


def told(problem: Problem, homes: Mapping[str, str]) -> Chosen:
    """Return FedAvg among the clients of each domain alone."""
    methods = []
    for home in sorted(set(homes.values())):
        parts = (problem.train, problem.held, problem.test, problem.unseen)
        train, held, test, unseen = (
            {name: rows for name, rows in part.items() if homes[name] == home} for part in parts
        )
        own = replace(problem, train=train, held=held, test=test, unseen=unseen)
        made = [
            (
                f"rate {rate}",
                partial(
                    run, bf.fed_avg(problem.net, training=work(GRIDS.steps, rate)), own, ROUNDS
                ),
            )
            for rate in GRIDS.rates
        ]
        methods.append(best(made, own)[0])
    strength = ", ".join(one.strength.split()[1] for one in methods)
    held_out = sum(one.held for one in methods) / len(methods)
    own_scores, unseen_scores = (
        {k: v for one in methods for k, v in getattr(one, name).items()}
        for name in ("own", "unseen")
    )
    return Chosen(f"rates {strength}", held_out, own_scores, unseen_scores)
