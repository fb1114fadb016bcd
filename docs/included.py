"""Show files of the repository as pages: the page is the file, with its links made those of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGES = {"security.md": "SECURITY.md", "changelog.md": "CHANGELOG.md"}


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replace the text of such a page by the file's."""
    source = PAGES.get(page.file.src_uri)
    if source is None:
        return markdown
    text = (Path(config["docs_dir"]).parent / source).read_text()
    for number, included in enumerate(PAGES.values()):
        text = text.replace(f"({included}", f"({list(PAGES)[number]}")
    text = re.sub(r"\]\(docs/", "](", text)
    # What is not part of the site, such as README, is named and not linked.
    return re.sub(r"\[([^\]]+)\]\((?:README|CONTRIBUTING)\.md[^)]*\)", r"\1", text)
