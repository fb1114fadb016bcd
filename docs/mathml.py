"""Turn the formulas of a page into MathML, which browsers show without a script."""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of `$...$` and `$$...$$`.
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)


def mathml(found: re.Match[str]) -> str:
    """Return the MathML of one formula in its own element."""
    element, bracket, latex = found.groups()
    display = "block" if bracket == "[" else "inline"
    return f'<{element} class="formula">{convert(html.unescape(latex).strip(), display=display)}</{element}>'


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas in a page's HTML."""
    return FORMULA.sub(mathml, content)
