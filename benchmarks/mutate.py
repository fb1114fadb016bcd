"""What decoders do with messages that were changed on the way, and with small ones that promise much.

    python benchmarks/mutate.py [--check]

Mutants (`bayesfed.testing.mutations`) of messages of every codec that is shipped: with their old digest each must be refused, with a good
one refused or read as what the header promises. Anything else than `WireError` stops the run. Bombs must be refused within a second.
Memory is the growth of the process's greatest resident size over all of it, with limits of a mebibyte.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter

from targets import at_least, is_check, target
from tqdm import tqdm

from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.posterior import PosteriorGrid
from bayesfed.errors import WireError
from bayesfed.inspect import table
from bayesfed.keys import Key
from bayesfed.testing.bombs import bombs
from bayesfed.testing.mutations import KINDS, check_mutants
from bayesfed.testing.sections import section_bombs
from bayesfed.testing.shipped import message_codecs, small_trees

LIMIT, MUTANTS, CHUNK = 1 << 20, 100_000, 100


def main() -> int:
    """Run and print; return the exit status."""
    total = MUTANTS if is_check(__doc__ or "") else 5 * MUTANTS
    codecs = message_codecs(LIMIT)
    messages = {name: [codec.encode(tree, {"client": "k", "round": 3}, Key(0)) for tree in small_trees()] for name, codec in codecs.items()}
    for name, codec in codecs.items():
        check_mutants(codec, messages[name], Key(0), count=2 * len(KINDS))
    before, start, tallies = peak(), time.perf_counter(), {name: Counter[tuple[str, str]]() for name in codecs}
    each = -(-total // (CHUNK * len(codecs)))
    with tqdm(total=each * CHUNK * len(codecs), unit="mutant", disable=None) as progress:
        for number, (name, codec) in enumerate(codecs.items()):
            for part in range(each):
                tallies[name] += check_mutants(codec, messages[name], Key(0), count=CHUNK, stream=part * len(codecs) + number)
                progress.update(CHUNK)
    seconds = time.perf_counter() - start
    rows = [[name, *(f"{tally[kind, 'refused']} / {tally[kind, 'read']}" for kind in KINDS)] for name, tally in tallies.items()]
    print("refused / read as promised\n" + table(["codec", *KINDS], rows), "\n")
    mutated = sum(sum(tally.values()) for tally in tallies.values())
    print(f"{mutated} mutants in {seconds:.0f} s")
    slowest, refused = exploded()
    met = [
        at_least("mutated messages that did what they should", mutated, total),
        at_least("bombs refused", refused, 50),
        target("slowest refusal of a bomb, s", slowest, 1.0),
        target("growth of the greatest resident size, MiB", (peak() - before) / 2**20, 64 + LIMIT / 2**20),
    ]
    return 0 if all(met) else 1


def exploded() -> tuple[float, int]:
    """Send every bomb; return the longest time to a refusal in seconds and how many were refused.

    Raises
    ------
    ValueError
        If one is read.
    """
    codecs: list[Codec] = [Cast(limit=LIMIT), Coded(limit=LIMIT), PosteriorGrid(inner=Coded(limit=LIMIT))]
    sent = [(what, codec, message) for codec in codecs for what, message in bombs(LIMIT).items()]
    sent += [(what, codec, message) for what, (codec, message) in section_bombs(LIMIT).items()]
    slowest = 0.0
    for what, codec, message in sent:
        start = time.perf_counter()
        try:
            codec.decode(message, Key(0))
        except WireError:
            slowest = max(slowest, time.perf_counter() - start)
        else:
            raise ValueError(f"{what}: was read")
    return slowest, len(sent)


def peak() -> int:
    """Return the greatest resident size of the process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    sys.exit(main())
