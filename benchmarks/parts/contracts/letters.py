"""What travels from a site to the server: no cell of a row, and a fingerprint that tells
experiments apart.
"""

from __future__ import annotations

from parts.shared.targets import target
from tqdm import tqdm

from tests.support.letters import experiments
from tests.support.letters.markers import found_in, found_in_letter, greetings, look, roads
from tests.support.letters.texts import messages, unreviewed

# Greetings that are drawn of some 3,700: formulas and families over spoilt frames.
GREETINGS = 800


def _travelled(letters: list[bytes]) -> int:
    """Return how many markers are in letters of sites, and in what a server has of them."""
    return sum(
        len(found_in(one) if one.startswith(b"centre ") else found_in_letter(one))
        for one in letters
    )


def without_cells() -> bool:
    """Ask sites whose cells are markers in every way, and read every message of the package that
    may be made at a site; print how many markers travelled.
    """
    found, letters = 0, 0
    for _, answer in tqdm(greetings(GREETINGS), total=GREETINGS, desc="greetings", leave=False):
        found, letters = found + _travelled([look(answer).result]), letters + 1
    for _, road in tqdm([*roads()], desc="roads", leave=False):
        written = look(road).result
        found, letters = found + _travelled(written), letters + len(written)
    odd = unreviewed()
    print(*odd, sep="\n", end="\n" * bool(odd))
    return all(
        [
            target(f"markers that travelled, in {letters} letters and files", found, 0),
            target(f"unknown parts in {len(messages())} public texts", len(odd), 0),
        ]
    )


def told_apart() -> bool:
    """Compare fingerprints of experiments, and print which are wrong."""
    alike, unlike = experiments.alike(), experiments.unlike()
    print(*alike, *unlike, sep="\n", end="\n" * bool(alike or unlike))
    count = len(experiments.PAIRS)
    return all(
        [
            target(f"pairs with one fingerprint, of {count} that differ", len(alike), 0),
            target(f"pairs with two fingerprints, of {count} alike", len(unlike), 0),
        ]
    )
