"""What hostile clients, damaged messages and thieves of messages can do: nothing.

    python benchmarks/hostile.py [--check]
    # what several do to the mean and to robust rules: `parts/hostile/byzantine.py`
    python benchmarks/hostile.py --only byzantine [--check]

- One hostile client of four, in 26 ways, against every recipe (`tests.support.hostile`): refused
  with a typed reason, or cast where the codec reads other widths; the round is made, and the state
  is bit for bit that of the run without the client.
- Values that no rows can say (`tests.support.hostile.limits`): 1e12, -1e12, 1e30, NaN and infinity
  in every leaf of every phase of every recipe, those of a choice of a prior among them, in all
  entries and in the last alone. Each must be refused by its phase and leave no trace.
- Mutants (`tests.support.hostile.mutations`) of the messages of every codec, and of every
  recipe's both ways: with their old digest each must be refused, with a good one refused or read as
  what the header promises. Anything else than `WireError` stops the run.
- Bombs: small messages that promise much. Time is processor time, the least of three refusals;
  memory the peak of what Python and NumPy allocate.
- Forged, replayed, wrong-round and wrong-client messages in keyed mode: all refused.
- Canaries in clients' rows, memories and secrets: in no message of any recipe.

Growth of memory is that of the process's greatest resident size over all mutants.
"""

from __future__ import annotations

import resource
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from parts.shared.parts import add_only, command_line, measured
from parts.shared.plain import loop_seconds
from parts.shared.targets import at_least, target
from tqdm import tqdm

from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.posterior import PosteriorGrid
from bayesfed.compress.wire import DIGEST, Meta, digest_of, unseal
from bayesfed.errors import RefusedError, WireError
from bayesfed.federated.clients.envelopes import masked
from bayesfed.federated.clients.turn import Outcome, Reply, Task
from bayesfed.federated.engine.gate import Gate
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.federated.links.digital import Digital
from bayesfed.inspect import table
from bayesfed.keys import Key
from bayesfed.trees import Tree
from tests.support.codecs.shipped import message_codecs, small_trees
from tests.support.hostile.bombs import bombs
from tests.support.hostile.canaries import Canaries
from tests.support.hostile.cases import cases
from tests.support.hostile.limits import Attacked, choosing, start_of
from tests.support.hostile.mutations import KINDS, check_mutants, reseal
from tests.support.hostile.pool import Arrivals, Between
from tests.support.hostile.sections import section_bombs
from tests.support.hostile.verdict import Hostilities
from tests.support.recipes import tiny_recipes

LIMIT, MUTANTS, FORGED, CANARIES, CHUNK, ROUNDS = 1 << 20, 100_000, 10_000, 10_000, 100, 4
# Passes of a plain loop over the most bytes of a message that refusing a bomb may take.
MOST_LOOPS = 40
# With --check one in so many values is tried, chosen by a seed.
CHECKED = 4
HEADLINE = list[str]()
LETTERS = {
    "values": "v",
    "norm": "n",
    "shape": "s",
    "header": "h",
    "dtype": "t",
    "leaves": "l",
    "meta": "m",
    "digest": "d",
    "message": "g",
    "size": "z",
    "duplicate": "2",
    "round": "r",
    "cast": "C",
    "payload": "p",
}


@dataclass(frozen=True)
class Gated:
    """A codec behind the gate: what is above the gate's limit is not decoded."""

    codec: Codec
    limit: int

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Encode."""
        return self.codec.encode(tree, meta, key)

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Check, then decode."""
        unseal(message, limit=self.limit)
        return self.codec.decode(message, key)


def main() -> int:
    """Run and print; return the exit status."""
    parser = command_line(__doc__)
    add_only(parser, (), aside=["byzantine"])
    parser.add_argument(
        "--data",
        choices=("digits", "fashion"),
        default="digits",
        help="byzantine: the rows (default: %(default)s)",
    )
    options = parser.parse_args()
    if options.only:
        return measured("hostile", options)
    times = 0.2 if options.check else 5
    met = [
        *hostilities(),
        *unbelievable(1 if not options.check else CHECKED),
        *mutated(int(times * MUTANTS)),
        *exploded(),
        *forged(int(times * FORGED)),
        *canaries(int(times * CANARIES)),
    ]
    # README prints this line.
    print(f"hostile updates refused, or legal and bounded: {HEADLINE[-1]}")
    return 0 if all(met) else 1


def hostilities() -> Iterator[bool]:
    """Run 26 cases against every recipe."""
    names, recipes, suffered = (
        [case.name for case in cases()],
        tiny_recipes(),
        dict[str, list[str]](),
    )
    bad = list[str]()
    with tqdm(total=len(recipes) * len(names), unit="case", disable=None) as progress:
        for recipe, make in recipes.items():
            tiny = make()
            run = Hostilities(tiny.algorithm, tiny.pool, "client-0")
            suffered[recipe] = []
            for case in cases():
                verdict = run.judge(case)
                suffered[recipe].append(LETTERS.get(verdict.field, verdict.field))
                if not verdict.good:
                    bad.append(f"{recipe}, {case.name}: {verdict.field} {verdict.reason}")
                progress.update()
    print(
        "refused for: "
        + ", ".join(f"{letter} {field}" for field, letter in LETTERS.items() if field != "cast")
        + "; C cast to the codec's floats"
    )
    numbered = [
        [name, *(suffered[recipe][place] for recipe in recipes)] for place, name in enumerate(names)
    ]
    print("recipes: " + ", ".join(f"{number} {recipe}" for number, recipe in enumerate(recipes, 1)))
    print(table(["case", *map(str, range(1, len(recipes) + 1))], numbered))
    print("\n".join(bad))
    count = len(recipes) * len(names)
    HEADLINE.append(
        f"{count - len(bad)} of {count}, {len(names)} attacks on {len(recipes)} recipes"
    )
    yield at_least(
        f"cases of {len(recipes)} recipes that came out as they should",
        len(recipes) * len(names) - len(bad),
        len(recipes) * len(names),
    )


def unbelievable(one_of: int) -> Iterator[bool]:
    """Send values that no rows can say, one in so many of all."""
    random, bad, count = Key(0, "values").numpy(), list[str](), 0
    for recipe, make in tqdm((tiny_recipes() | choosing()).items(), unit="recipe", disable=None):
        tiny = make()
        run = Attacked(tiny.algorithm, tiny.pool(), "client-0", start_of(tiny.algorithm))
        for attack in run.attacks():
            if random.integers(one_of) == 0:
                count += 1
                if wrong := run.judge(attack):
                    bad.append(f"{recipe}, {attack}: {wrong}")
    print("\n".join(bad))
    part = f", one in {one_of} of them by a seed" if one_of > 1 else ""
    yield at_least(
        f"values that no rows can say, refused by their phases{part}", count - len(bad), count
    )


def mutated(total: int) -> Iterator[bool]:
    """Decode mutants of messages of every codec and of every recipe."""
    sources = {
        name: (
            codec,
            [codec.encode(tree, {"client": "k", "round": 3}, Key(0)) for tree in small_trees()],
            Key(0),
        )
        for name, codec in message_codecs(LIMIT).items()
    } | dict(travelled())
    for codec, messages, key in sources.values():
        check_mutants(codec, messages, key, count=2 * len(KINDS))
    before, start, tallies = (
        peak(),
        time.perf_counter(),
        {name: Counter[tuple[str, str]]() for name in sources},
    )
    each = -(-total // (CHUNK * len(sources)))
    with tqdm(total=each * CHUNK * len(sources), unit="mutant", disable=None) as progress:
        for number, (name, (codec, messages, key)) in enumerate(sources.items()):
            for part in range(each):
                tallies[name] += check_mutants(
                    codec, messages, key, count=CHUNK, stream=part * len(sources) + number
                )
                progress.update(CHUNK)
    rows = [
        [name, *(f"{tally[kind, 'refused']} / {tally[kind, 'read']}" for kind in KINDS)]
        for name, tally in tallies.items()
    ]
    print("refused / read as promised\n" + table(["message", *KINDS], rows), "\n")
    count = sum(sum(tally.values()) for tally in tallies.values())
    print(
        f"{count} mutants of {len(sources)} types of message in {time.perf_counter() - start:.0f} s"
    )
    yield at_least("mutated messages that did what they should", count, total)
    yield target(
        "growth of the greatest resident size, MiB", (peak() - before) / 2**20, 64 + LIMIT / 2**20
    )


def travelled() -> Iterator[tuple[str, tuple[Codec, list[bytes], Key]]]:
    """Return codec and messages of every recipe, one round's, both ways."""
    for name, make in tiny_recipes().items():
        tiny, seen = make(), list[tuple[Task, Reply]]()

        def note(task: Task, outcome: Outcome, seen: list[tuple[Task, Reply]] = seen) -> Arrivals:
            if isinstance(outcome, Reply):
                seen.append((task, outcome))
            return [(task, outcome)]

        for _ in rounds(tiny.algorithm, Between(tiny.pool(), note), rounds=1):
            pass
        task = seen[0][0]
        yield (
            f"{name}, down",
            (
                Gated(task.down, LIMIT),
                [masked(task.message, task.envelope("down")) for task, _ in seen],
                task.key.child("down"),
            ),
        )
        yield (
            f"{name}, up",
            (
                Gated(task.up, LIMIT),
                [masked(reply.packed, task.envelope("up")) for task, reply in seen],
                task.key.child("up"),
            ),
        )


def exploded() -> Iterator[bool]:
    """Send every bomb."""
    codecs: list[Codec] = [
        Cast(limit=LIMIT),
        Coded(limit=LIMIT),
        PosteriorGrid(inner=Coded(limit=LIMIT)),
    ]
    sent = [(what, codec, message) for codec in codecs for what, message in bombs(LIMIT).items()]
    sent += [(what, codec, message) for what, (codec, message) in section_bombs(LIMIT).items()]
    slowest, most = (0.0, ""), (0, "")
    for what, codec, message in sent:
        slowest = max(slowest, (min(_refusal(what, codec, message) for _ in range(3)), what))
        tracemalloc.start()
        _refusal(what, codec, message)
        most = max(most, (tracemalloc.get_traced_memory()[1], what))
        tracemalloc.stop()
    print(f"slowest bomb: {slowest[1]}; largest: {most[1]}")
    yield at_least("bombs refused", len(sent), 50)
    loop = loop_seconds(LIMIT)
    print(
        f"slowest refusal: {1e3 * slowest[0]:.2f} ms; a plain loop over the limit: {1e3 * loop:.2f}"
    )
    yield target(
        "slowest refusal of a bomb / plain loop over the limit", slowest[0] / loop, MOST_LOOPS
    )
    yield target("most memory to refuse a bomb, MB", most[0] / 1e6, 10)


def _refusal(what: str, codec: Codec, message: bytes) -> float:
    start = time.process_time()
    try:
        codec.decode(message, Key(0))
    except WireError:
        return time.process_time() - start
    raise ValueError(f"{what}: was read")


def forged(total: int) -> Iterator[bool]:
    """Hand forged and replayed messages to a keyed gate."""
    random, counts, start = Key(0, "forged").numpy(), Counter[str](), time.perf_counter()
    clients = {f"client-{number}": random.bytes(32) for number in range(5)}
    tree = next(iter(small_trees()))

    def asked(client: str, round: int) -> Task:
        return Task(client, round, "train", 0, b"", Cast(32), Cast(32), Digital(), "run")

    def sealed(task: Task, secret: bytes | None, **change: Any) -> bytes:
        said: dict[str, str | int] = {
            "client": task.client,
            "round": task.round,
            "phase": task.phase,
        }
        return masked(
            Cast(32).encode(tree, said, task.key), replace(task.envelope("up"), **change), secret
        )

    ways = (
        "no secret",
        "another's secret",
        "a stranger's secret",
        "moved tag",
        "moved mask",
        "replay",
        "another client's",
        "reflected",
        "another run's",
        "flipped",
    )
    for number in tqdm(range(total), unit="message", disable=None):
        way, task = ways[number % len(ways)], asked(f"client-{number % 5}", 10 + number // 50)
        secret, other = clients[task.client], f"client-{(number + 1) % 5}"
        honest = sealed(task, secret)
        match way:
            case "no secret":
                packed = sealed(task, None)
            case "another's secret":
                packed = sealed(task, clients[other])
            case "a stranger's secret":
                packed = sealed(task, random.bytes(32))
            case "moved tag" | "moved mask":
                body = bytearray(honest[:-DIGEST])
                body[-1 - int(random.integers(100))] ^= 1 + int(random.integers(255))
                mask = _xor(digest_of(honest[:-DIGEST]), honest[-DIGEST:])
                packed = bytes(body) + (
                    honest[-DIGEST:]
                    if way == "moved tag"
                    else _xor(mask, reseal(bytes(body))[-DIGEST:])
                )
            case "replay":
                packed = sealed(asked(task.client, int(random.integers(task.round))), secret)
            case "another client's":
                packed = sealed(asked(other, task.round), clients[other])
            case "reflected":
                packed = sealed(task, secret, direction="down")
            case "another run's":
                packed = sealed(task, secret, run="an earlier one")
            case _:
                place = int(random.integers(len(honest)))
                packed = (
                    honest[:place]
                    + bytes([honest[place] ^ (1 << int(random.integers(8)))])
                    + honest[place + 1 :]
                )
        gate = Gate(clients)
        gate.ask(task, tree)
        try:
            gate.take(task, Reply(packed, {}, {}, 0.0))
        except RefusedError as problem:
            counts[f"{way}: {problem.field}"] += 1
        else:
            raise ValueError(f"{way}: was taken")
        gate.take(task, Reply(honest, {}, {}, 0.0))
    print(
        table(
            ["forged: refused for", "messages"],
            [[what, count] for what, count in sorted(counts.items())],
        )
    )
    print(
        f"{total} in {time.perf_counter() - start:.0f} s, each followed by the honest one, "
        "which was taken"
    )
    yield at_least(
        "forged, replayed, wrong-round and wrong-client messages refused",
        sum(counts.values()),
        total,
    )


def canaries(total: int) -> Iterator[bool]:
    """Search messages for what was planted."""
    recipes, searched = tiny_recipes(), dict[str, int]()
    # Short runs: a few rows at these step sizes need not converge.
    seeds = range(-(-total // (8 * ROUNDS * len(recipes))))
    for name, make in tqdm(recipes.items(), unit="recipe", disable=None):
        tiny = make()
        planted = Canaries(tiny.data)
        searched[name] = sum(
            planted.watch(tiny.algorithm, tiny, ROUNDS, seed=seed) for seed in seeds
        )
    print(f"{sum(searched.values())} messages of {len(recipes)} recipes searched")
    yield at_least("messages without a canary", sum(searched.values()), total)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def peak() -> int:
    """Return the greatest resident size of the process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
