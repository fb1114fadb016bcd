"""How our docstrings differ from what mkdocstrings expects: what it is told when it reads them.

Simple tables and ``::`` before a block of code, habits of reStructuredText, become Markdown;
parameters that are described together stay together; and a function that is exported under the name
of its file is shown in the place of the file.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import (
    Alias,
    Docstring,
    DocstringSection,
    DocstringSectionKind,
    Extension,
    Module,
    Object,
)

RULE = re.compile(r"^\s*=+(?:\s+=+)+\s*$")


def table(rows: list[str], rule: str) -> list[str]:
    """Return a Markdown table of the rows of a simple table, cut where the columns of its rule begin; a row without first cell goes on."""
    starts = [found.start() for found in re.finditer("=+", rule)]
    columns = [
        slice(start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]
    cells = [
        [row[column].strip().replace("|", r"\|") for column in columns]
        for row in rows
        if row.strip()
    ]
    whole: list[list[str]] = []
    for row in cells:
        if whole and not row[0]:
            whole[-1] = [
                f"{old} {new}".strip() for old, new in zip(whole[-1], row, strict=True)
            ]
        else:
            whole.append(row)
    return ["| " + " | ".join(row) + " |" for row in whole]


def markdown(text: str) -> str:
    """Return a docstring with its tables and code markers rewritten."""
    lines, made, at = text.split("\n"), [], 0
    while at < len(lines):
        if not RULE.match(lines[at]):
            made.append(re.sub(r"^::$", "", re.sub(r"(?<=\S) ?::$", ":", lines[at])))
            at += 1
            continue
        rules = [at]
        while (
            rules[-1] + 1 < len(lines) and lines[rules[-1] + 1].strip() and len(rules) < 3
        ):
            rules.append(
                next(
                    (k for k in range(rules[-1] + 1, len(lines)) if RULE.match(lines[k])),
                    len(lines),
                )
            )
            if len(rules) == 2 and not "".join(lines[rules[1] + 1 : rules[1] + 2]).strip():
                break
        rule, indent = lines[at], len(lines[at]) - len(lines[at].lstrip())
        head = table(lines[at + 1 : rules[1]], rule) if len(rules) == 3 else []
        body = table(lines[rules[-2] + 1 : rules[-1]], rule)
        columns = len(rule.split())
        ruled = [*(head or ["|" + " |" * columns]), "|" + "---|" * columns, *body]
        made += ["", *(" " * indent + row for row in ruled), ""]
        at = rules[-1] + 1
    return "\n".join(made)


class Grouped(Docstring):
    """A docstring whose parameters stay together where it describes them together; their types stand in the signature."""

    def parse(self, *arguments: Any, **options: Any) -> list[DocstringSection]:
        """Parse, then put parameters that share a description into one entry."""
        sections = super().parse(*arguments, **options)
        for section in sections:
            if section.kind in (
                DocstringSectionKind.parameters,
                DocstringSectionKind.attributes,
            ):
                together: list[Any] = []
                for entry in section.value:
                    if (
                        together
                        and entry.description
                        and entry.description == together[-1].description
                    ):
                        together[-1].name += f", {entry.name}"
                        together[-1].annotation = together[-1].value = None
                    else:
                        together.append(entry)
                section.value = together
        return sections


class Markdown(Extension):
    """Rewrites every docstring as it is read."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring:
            old = obj.docstring
            obj.docstring = Grouped(
                markdown(old.value),
                lineno=old.lineno,
                endlineno=old.endlineno,
                parent=obj,
                parser=old.parser,
                parser_options=old.parser_options,
            )

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Let what is exported under the name of a file or folder be the object, whose members then lead on to those of the folder."""
        for module in [
            pkg,
            *(found for found in pkg.modules.values() if found.is_init_module),
        ]:
            for name, path in module.imports.items():
                shadow = module.members.get(name)
                if (
                    path.startswith(f"{module.path}.")
                    and isinstance(shadow, Module)
                    and name in shadow.members
                ):
                    found = {
                        key: reached(pkg, part) for key, part in shadow.members.items()
                    }
                    found[name].members = {**found, **found[name].members}
                    module.set_member(name, Alias(name, found[name], parent=module))


def reached(package: Module, part: Object | Alias) -> Object | Alias:
    """Return what an alias within the package stands for in the end."""
    while isinstance(part, Alias) and part.target_path.startswith(f"{package.path}."):
        part = package.modules_collection[part.target_path]
    return part
