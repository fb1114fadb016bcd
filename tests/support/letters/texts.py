"""What stands in the public texts of errors (`BayesfedError.public_text`): where a message is made
and what it expects, read from the source.

Every call in the package that makes a message is looked at, with the functions that hand parts of
messages on to it. What is interpolated into *where* and *expected* are *atoms*, expressions such as
``name`` or ``len(rows)``. A message is *fixed* if it has none. Otherwise each atom must be of a
kind that is no cell (`KINDS`), or be reviewed one by one (`REVIEWED`). What is in a `LocalText`
stays at the site.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.hints.places import ROOT, Function, Place, _errors, _last

# Where rows are not, or whose errors are the server's own.
ELSEWHERE = (
    *("bayesfed/running/", "bayesfed/cli/", "bayesfed/inspect/", "bayesfed/testing/"),
    *("bayesfed/federated/engine/", "bayesfed/errors/"),
    *("bayesfed/flower/server_app.py", "bayesfed/flower/pool.py", "bayesfed/flower/roster.py"),
)
# Kinds of atoms that are no cells.
KINDS = {
    r"-?_?[A-Z][A-Z_]*(\.expected)?|(stages|points)\.[A-Z]+|_FILES\[name\]|max\(_LEADING\)|"
    r"sorted\(DTYPES\)|list\(_FILES\)|\[(0, 1, )?\*STANDARD\]|-1": "a constant of the package",
    r"(-\(-)?(len|math\.prod|min|max)\(.*\)|.*\.shape(\[.*\])?|(as_matrix|tuple)\(.*shape\)|"
    r"\(len\(u\), len\(v\)\)|.*\.(numel|event_shape|itemsize|size|ndim)(\(\)|\[\d\])?|"
    r"str\((tuple\()?shape\)?\)\[1:\]|-\(-leaf\.size // 8\)": "a number of rows, or a shape",
    r"type\(.*\)\.__name__|.*\.__name__|.*dtype|str\(kinds\[0\]\)\.removeprefix\('torch\.'\)|"
    r"list\(kinds\)": "a class or type",
    r"(\w+\.)*(name|owner|client|caller|phase|site|where|layer|node|leaf|part|kind|term|left|begin)"
    r"|(algorithm|run\.algorithm|profile|kind\.names\[.*\])(\.name)?|place\(site\)|"
    r"name\.removeprefix\(MEAN\)|column\.name|\w+\.name": "a name: of a layer, a site of Pyro's, "
    "a column of the formula, a client, a method",
    r"(self|point|made|prior|config|layout)\.\w+(\.\w+)*": "a setting of the method",
    r"(', '|' or ')\.join\((map\(repr, traits\.takes\)|known|missing|names|sizes)\)|"
    r"sorted\((expected|latent|layers|links|ranks|sizes|stays)\)|list\(matrices\)|\[\*parts\]|"
    r"missing(\[0\])?|among|odd\[0\]|min\(wrong\)|known|allowed": "names of the algorithm's parts",
    r"count|rows|rounds?|size(\[\d\])?|total|width|rank|outputs|columns|classes|clients|minimum|"
    r"number|least|most|low|high|limit|active|end|ends|batch|real|density|highest|threshold|"
    r"max_norm|slot|draws|shape(\[\d\])?|-most|-self\.levels": "a count, a limit or a setting",
}
# Others, looked at one by one.
REVIEWED = {
    "', '.join(names[:10])": "the classes that the reader was given, a rule and not the labels",
    "expected": "what a caller expects, which is an atom of its own where the caller is known",
    "formula": "the formula, which the server wrote",
    "column": "a column of the formula",
    "factor": "a factor of the formula's groups",
    "describe_rows(site)": "the name of a site",
    "describe_rows(name)": "the name of a site",
    "FAMILIES[self.family].response": "what a family's response must be, a constant",
    "delimiter": "the character that the reader was given",
    "population": "a number of clients",
    "sweeps": "a number of sweeps, a setting",
    "factors[0]": "the name of a layer",
    "bayesfed/inference/sum_product/evidence.py: WHERE['log_weights']": "a constant",
    "bayesfed/inference/sum_product/evidence.py: WHERE['observed']": "a constant",
    "bayesfed/inference/sum_product/evidence.py: str(whole)[1:]": "a shape",
    "bayesfed/inference/sum_product/evidence.py: int(cards[number])": "a number of states",
    "bayesfed/inference/sum_product/evidence.py: ', '.join(map(repr, known))": "names of nodes",
    "parsed(design.formula)[1]": "the same",
    "kind.response": "what a family's response must be, a constant",
    "field": "a name of the header of a message",
    "guide": "the class of a guide",
    "added": "tokens that a tokenizer adds",
    "encoding": "the encoding that the reader was given",
    "reference": "module:function, which the server wrote",
    "inputs": "the name of an array",
    "local": "a choice of the method",
    "text": "what a rank says of its build of torch",
    "right": "a node of a graph",
    "of": "a kind of table",
    "what": "a part of a check, in words",
    "str(problem.name)": "a module that is not installed",
    "result.algorithm": "the name of a method",
    "model.ising().field.numel()": "a number of nodes",
    "where(wrong)": "a node of a graph",
    "usual_norm(arrival.kind, leaf.numel())": "a limit that the server has",
    "self._method(support)": "a method of message passing",
    "self._method(site.support)": "a method of message passing",
    "lora_rank(net)": "a setting",
    "self.shapes(max(1, rank))": "shapes",
    "math.log2(int(weights.max()))": "a limit of the coder",
    "math.ceil(2 * math.sqrt(count) / self.relative_step * self._cell.side)": "its other limit",
    "tuple(cards[scope[wrong[0]]].tolist())": "numbers of states",
    "tuple((cards[name] for name in scope))": "numbers of states",
    "('log weights', evidence)": "a word",
    "('log-odds', evidence.abs())": "a word",
    "*parts": "the parts of a check of settings, `observations`",
    "at(number)": "the number of a row and a column's name, or a path, which stays",
    "at(row)": "the same",
    "at(strange[0])": "the same",
    "path": "the name of a module of a network",
    "bayesfed/data/readers/cifar.py: labels": "bytes of labels in a record",
    "bayesfed/data/readers/cifar.py: unpacked": "the name of a folder in an archive",
    "bayesfed/data/corrupted.py: label": "the number of a class with a share",
    "bayesfed/data/corrupted.py: share": "a share that was asked for",
    "bayesfed/federated/links/digital.py: value": "what the server put into the header",
    "*said": "the parts of a check of a header, `compress/wire.py`",
}
# How often a part of a message is followed from a function to its callers.
CALLS = 4


class Message(NamedTuple):
    """A call that makes a message, and the atoms of its public parts."""

    place: Place
    atoms: tuple[str, ...]


class _Source(NamedTuple):
    """The package: its files parsed, the functions around each node, the file of each, calls by the
    name of what is called, and how many functions have a name.
    """

    trees: dict[str, ast.Module]
    around: dict[ast.AST, tuple[Function, ...]]
    file: dict[ast.AST, str]
    calls: dict[str, list[ast.Call]]
    defined: Counter[str]


@functools.cache
def _source() -> _Source:
    trees = {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for path in sorted((ROOT / "bayesfed").rglob("*.py"))
    }
    found = _Source(trees, {}, {}, {}, Counter())

    def walk(node: ast.AST, file: str, around: tuple[Function, ...]) -> None:
        if isinstance(node, Function):
            around = (*around, node)
            found.defined[node.name] += 1
        found.around[node], found.file[node] = around, file
        if isinstance(node, ast.Call):
            found.calls.setdefault(_last(node), []).append(node)
        for child in ast.iter_child_nodes(node):
            walk(child, file, around)

    for file, tree in trees.items():
        walk(tree, file, ())
    return found


@functools.cache
def messages() -> tuple[Message, ...]:
    """Return the messages that may be made at a site, by file and line."""
    source = _source()
    makers = {*_errors(source.trees), "complain"}
    found = list[Message]()
    for name in makers:
        for call in source.calls.get(name, ()):
            file = source.file[call]
            if not file.startswith(ELSEWHERE):
                around = source.around[call]
                label = ".".join(one.name for one in around)
                text = " ".join(ast.unparse(call).split())
                place = Place(file, call.lineno, call.end_lineno or call.lineno, label, text)
                found.append(Message(place, tuple(sorted(set(_public(call))))))
    return tuple(sorted(found))


def unreviewed() -> list[str]:
    """Return the atoms that no kind and no review explains, with their places."""
    return [
        f"{message.place.file}:{message.place.line}: {atom}"
        for message in messages()
        for atom in message.atoms
        if not _is_reviewed(message.place.file, atom)
    ]


def _is_reviewed(file: str, atom: str) -> bool:
    # A count with its noun is what the count is.
    counted = re.fullmatch(r"plural\((.*), '\w+'\)", atom)
    atom = counted[1] if counted else atom
    if {atom, f"{file}: {atom}"} & REVIEWED.keys():
        return True
    return any(re.fullmatch(kind, atom) for kind in KINDS)


def _public(call: ast.Call) -> Iterator[str]:
    """Yield the atoms of the parts of a message that may travel; of a message that is one text, and
    so has no parts, nothing travels but its class.
    """
    if any(isinstance(one, ast.Starred) for one in call.args[:2]):
        for one in call.args[:2]:
            if isinstance(one, ast.Starred):
                yield f"*{ast.unparse(one.value)}"
        return
    keywords = {one.arg: one.value for one in call.keywords}
    parts = [*call.args[:2]] if len(call.args) > 1 else []
    parts += [keywords[name] for name in ("where", "expected") if name in keywords]
    for part in parts:
        yield from _atoms(part, CALLS)


def _atoms(node: ast.expr, calls: int, seen: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield what is not fixed in an expression for a text, following names to what they are."""
    match node:
        case ast.Constant():
            return
        case ast.Call(func=ast.Name(id="LocalText")):
            # It stays at the site.
            return
        case ast.JoinedStr(values=values):
            for one in values:
                if isinstance(one, ast.FormattedValue):
                    yield from _atoms(one.value, calls, seen)
            return
        case ast.IfExp(body=body, orelse=orelse):
            yield from _atoms(body, calls, seen)
            yield from _atoms(orelse, calls, seen)
            return
        case ast.BinOp(left=left, right=right):
            yield from _atoms(left, calls, seen)
            yield from _atoms(right, calls, seen)
            return
        case ast.Name(id=name) if name not in seen:
            values = [*_assigned(node, name)]
            passed = None if values else _passed(node, name)
            if values and all(isinstance(one, FOLLOWED) for one in values):
                for one in values:
                    yield from _atoms(one, calls, (*seen, name))
                return
            if passed and calls:
                for one in passed:
                    yield from _atoms(one, calls - 1, ())
                return
    yield ast.unparse(node)


FOLLOWED = (ast.Constant, ast.JoinedStr, ast.IfExp, ast.BinOp)


def _assigned(node: ast.Name, name: str) -> Iterator[ast.expr]:
    """Yield what a name is set to in the functions around it."""
    for function in _source().around[node]:
        yield from _assignments(function).get(name, ())


@functools.cache
def _assignments(function: Function) -> dict[str, list[ast.expr]]:
    """Return what each name is set to in a function; of a tuple's parts where they are seen."""
    found: dict[str, list[ast.expr]] = {}
    for one in ast.walk(function):
        if not isinstance(one, ast.Assign):
            continue
        for target in one.targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            values = one.value.elts if isinstance(one.value, ast.Tuple) else []
            same = isinstance(target, ast.Tuple) and len(values) == len(parts)
            for number, part in enumerate(parts):
                if isinstance(part, ast.Name):
                    value = values[number] if same else one.value
                    found.setdefault(part.id, []).append(value)
    return found


def _passed(node: ast.Name, name: str) -> list[ast.expr] | None:
    """Return what callers pass for a parameter; None if the name is none."""
    source = _source()
    for function in reversed(source.around[node]):
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        every = [*names, *(one.arg for one in function.args.kwonlyargs)]
        if name not in every:
            continue
        if source.defined[function.name] > 1:
            # Which of them a call calls is not known here: the name itself is the atom.
            return None
        found = list[ast.expr]()
        for call in source.calls.get(function.name, ()):
            own = [one for one in names if one not in ("self", "cls")]
            given = {one.arg: one.value for one in call.keywords}
            if name in given:
                found.append(given[name])
            elif name in own and own.index(name) < len(call.args):
                found.append(call.args[own.index(name)])
        return found or None
    return None
