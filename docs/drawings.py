"""Put drawings into the page itself, so that they take the colours of the page, light or dark."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

PICTURE = re.compile(r'<img alt="([^"]*)" src="([^"]+\.svg)"\s*/?>')


def inline(svg: str, name: str, description: str) -> str:
    """Return a drawing as an element of a page: black is the colour of the text, white that of the page, and its names are its own."""
    body = svg[svg.index("<svg") :]
    # A style in the page would hold for the whole page; style.css has what drawings need.
    body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
    body = re.sub(r"#(000000|333333|262626)\b", "currentColor", body)
    body = re.sub(
        r"<path\b[^>]*>",
        lambda path: path[0].replace("#ffffff", "var(--md-default-bg-color)"),
        body,
    )
    body = re.sub(r'\bid="', f'id="{name}-', body)
    body = re.sub(r"url\(#", f"url(#{name}-", body)
    body = re.sub(r'href="#', f'href="#{name}-', body)
    label = html.escape(html.unescape(description), quote=True)
    body = body.replace("<svg", f'<svg class="drawing" role="img" aria-label="{label}"', 1)
    return re.sub(r"\s*\n\s*", "\n", body).strip()


def on_page_content(content: str, *, config: Any, **_: Any) -> str:
    """Replace the images of a page that are SVG files of the documentation."""

    def drawn(found: re.Match[str]) -> str:
        description, address = found.groups()
        if "://" in address:
            return found[0]
        path = Path(config["docs_dir"], "pictures", Path(address).name)
        return inline(path.read_text(), path.stem, description)

    return PICTURE.sub(drawn, content)
