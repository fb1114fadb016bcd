"""Turn the formulas of a page into MathML, which browsers show without a script."""

from __future__ import annotations

import html
import re
import unicodedata
from typing import Any

from latex2mathml.converter import convert

# What pymdownx.arithmatex leaves of `$...$` and `$$...$$`.
FORMULA = re.compile(
    r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL
)
# Chromium ignores every variant but "normal", so a letter in another one becomes the Unicode letter
# of that style.
STYLED = re.compile(r'<m(i|n) mathvariant="([a-z-]+)">([^<]+)</m\1>')
STYLES = {
    "bold": "BOLD",
    "bold-italic": "BOLD ITALIC",
    "italic": "ITALIC",
    "script": "SCRIPT",
    "double-struck": "DOUBLE-STRUCK",
    "fraktur": "FRAKTUR",
    "sans-serif": "SANS-SERIF",
    "monospace": "MONOSPACE",
}
# What the converter does not know, and a minus of sets that few fonts have.
REPAIRS = {
    r"<mi>\arg</mi>": "<mo>arg</mo>",
    "<mi>&#x029F5;</mi>": "<mo>&#x0005C;</mo>",
}


def styled(found: re.Match[str]) -> str:
    """Return a letter of a style as the Unicode letter of that style."""
    element, style, text = found.groups()
    if style == "normal":
        return found[0]
    letter = html.unescape(text)
    kind = unicodedata.name(letter).replace("GREEK ", "").replace("LATIN ", "")
    kind = kind.replace(" LETTER", "").replace("DIGIT", "DIGIT")
    for name in (f"MATHEMATICAL {STYLES[style]} {kind}", f"{STYLES[style]} {kind}"):
        try:
            return f"<m{element}>{unicodedata.lookup(name)}</m{element}>"
        except KeyError:
            continue
    raise ValueError(
        f"a formula has {letter!r} in the style {style!r}, which Unicode has not"
    )


def mathml(found: re.Match[str]) -> str:
    """Return the MathML of one formula in its own element."""
    element, bracket, latex = found.groups()
    display = "block" if bracket == "[" else "inline"
    made = convert(html.unescape(latex).strip(), display=display)
    for old, new in REPAIRS.items():
        made = made.replace(old, new)
    return f'<{element} class="formula">{STYLED.sub(styled, made)}</{element}>'


def on_page_content(content: str, **_: Any) -> str:
    """Replace the formulas in a page's HTML."""
    made = FORMULA.sub(mathml, content)
    unknown = re.findall(r"<m[ion]>\\[a-z]+</m[ion]>", made)
    if unknown:
        raise ValueError(f"formulas have commands that were not understood: {unknown}")
    return made
