"""Every golden state leaf by leaf: "nothing changed but names" as a command.

    python -m tests.house.leaves > before.txt
    ... rename leaves, and write down the rules in `RULES` ...
    python -m tests.house.leaves --against before.txt

A line has a recipe, the name of a leaf and the digest of its type, shape and bytes, between tabs.
With a listing of before, names are brought to the present ones by the rules, and what differs is
printed; the exit status is then 1. Names of recipes restrict the run. Codecs that draw name their
streams by leaves: ``--old-streams`` lets them draw as before the rules.
"""

import argparse
import hashlib
import re
import sys
import warnings

from bayesfed.keys import Key
from tests.house.test_golden_states import after_two_rounds
from tests.support import recipes

# Old names of leaves as a regular expression, and what they are now, by the beginning of the
# recipe's name. The first rule that fits is taken, after an owner ``member N/`` was set aside.
TURBO = "mean|sd|log_odds|prior_log_odds|evidence|messages|transitions|before|support|inclusion"
RULES = {
    "scaffold": [(r"control/(.*)", r"control/\1")],
    "fed_dyn": [(r"lag/(.*)", r"lag/\1")],
    "fed_be": [(r"fed_be/(.*)", r"clients/\1")],
    "beta_pred_bayes": [(r"beta/network/(.*)", r"networks/\1"), (r"beta/share", "beta/share")],
    "calibrated": [(r"calibration/(.*)", r"calibration/\1")],
    "feature_density": [(r"density/(.*)", r"density/\1")],
    "laplace": [
        (r"laplace/(nll|rows|precision)", r"laplace/\1"),
        (r"laplace/(.*)", r"laplace/block/\1"),
    ],
    "one_round": [
        (r"laplace/?(nll|rows|precision)", r"laplace/\1"),
        (r"laplace/?(.*)", r"laplace/block/\1"),
    ],
    "p_fed_bayes": [(r"(mean|rho)/(.*)", r"\1/\2")],
    "pooled classes": [(r"shares/(.*)", r"shares/\1")],
    "pooled": [(r"(mean|rho|covariates)/(.*)", r"\1/\2")],
    "fed_hm": [(r"svd/(.*)/(u|values|v|rest|residual)", r"svd/\2/\1")],
    "fed_stack_lora": [
        (r"stack/(.*)/([ab])", r"stack/\2/\1"),
        (r"optimiser/m/delta/(.*)", r"velocity/\1"),
        (r"(delta|optimiser)/(.*)", r"\1/\2"),
    ],
    "flex_lora": [
        (r"optimiser/before/(.*)", r"before/\1"),
        (r"optimiser/(.*)", r"optimiser/\1"),
    ],
    "d_turbo_vbi": [
        (rf"(.*)\.({TURBO})", r"\2/\1"),
        (r"sd", "shared/sd"),
        (r"(field|watch|temperature|scores|nll)", r"run/\1"),
        (r"(.*)", r"point/\1"),
    ],
}
# What streams of random numbers were named after before, by the names that leaves have now.
STREAMS = [
    (rf"({TURBO}|h|precision)/(.*)", r"\2.\1"),
    (r"shared/(sd)", r"\1"),
    (r"(?:point|run|model)/(.*)", r"\1"),
]
OWNERS = ("averaged", "devices", "exchange", "feedback", "held", "local privacy", "member")
LAYERS = (*OWNERS, "optimiser", "own", "private", "robust", "secure", "swag", "tuned", "weights")


def renamed(recipe, name, names):
    """What a leaf of an old listing is called now. Names that still exist stay."""
    if name in names:
        return name
    if match := re.fullmatch(r"(member \d+/)(.*)", name):
        return match[1] + renamed("", match[2], {one.removeprefix(match[1]) for one in names})
    # Before cores had owners their leaves had none, and every layer a prefix of its own.
    bare = name.removeprefix("model/")
    if match := re.fullmatch(r"(.*)\.(residual|sum-of-last-\d+)", bare):
        # Messages of cores with one kind of leaves have plain names.
        kept = renamed(recipe, match[1], names).removeprefix("model/")
        return f"exchange/{match[2].replace('sum-of-last', 'sum')}/{kept}"
    start = next((one for one in sorted(RULES, reverse=True) if recipe.startswith(one)), None)
    for pattern, present in RULES.get(start, []) if start else []:
        if match := re.fullmatch(pattern, bare):
            return match.expand(present)
    return name if bare.partition("/")[0] in LAYERS and name == bare else f"model/{bare}"


def stream(part):
    """Part of the path of a key as it was before."""
    for pattern, old in STREAMS if isinstance(part, str) else ():
        if match := re.fullmatch(pattern, part):
            return match.expand(old)
    return part


def draw_as_before():
    """Name streams of random numbers as before: codecs name theirs by leaves."""
    integer = Key.integer
    Key.integer = lambda key: integer(Key(key.seed, *map(stream, key.path)))


def digest(leaf):
    found = hashlib.sha256(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
    found.update(leaf.detach().contiguous().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


def listed(names):
    """Digests by recipe and leaf."""
    found = {}
    for recipe in names:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = after_two_rounds(recipe)
        found[recipe] = {name: digest(leaf) for name, leaf in sorted(state.items())}
    return found


def lines(found):
    return [f"{recipe}\t{name}\t{one}" for recipe in found for name, one in found[recipe].items()]


def read(text):
    """The inverse of `lines`."""
    found = {}
    for line in text.splitlines():
        recipe, name, one = line.split("\t")
        found.setdefault(recipe, {})[name] = one
    return found


def differences(before, now):
    """What differs between two listings, but for names."""
    for recipe, leaves in now.items():
        old = {renamed(recipe, name, leaves): one for name, one in before.get(recipe, {}).items()}
        for name in sorted(old.keys() | leaves.keys()):
            if old.get(name) != leaves.get(name):
                yield f"{recipe}\t{name}\t{old.get(name, 'none')} -> {leaves.get(name, 'none')}"


def main(arguments):
    parser = argparse.ArgumentParser(prog="tests.house.leaves", description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", help="names of recipes; default: all")
    parser.add_argument("--against", help="a listing of before")
    parser.add_argument(
        "--old-streams", action="store_true", help="draw from streams named as before the rules"
    )
    asked = parser.parse_args(arguments)
    if asked.old_streams:
        draw_as_before()
    every = recipes.tiny_recipes()
    if unknown := sorted(set(asked.recipes) - every.keys()):
        parser.error(f"no such recipe: {', '.join(unknown)}")
    now = listed(asked.recipes or every)
    if not asked.against:
        sys.stdout.write("\n".join(lines(now)) + "\n")
        return 0
    with open(asked.against) as file:
        found = list(differences(read(file.read()), now))
    sys.stdout.write("".join(f"{one}\n" for one in found))
    sys.stdout.write(f"{len(found)} of {sum(map(len, now.values()))} leaves differ\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
