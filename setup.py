"""The long description: README with absolute addresses, since an index shows it away from the
repository. Everything else is in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent
RAW = {"https://github.com/": "https://raw.githubusercontent.com/"}


def long_description(readme: str, repository: str, version: str) -> str:
    """Return README with its relative links and pictures leading to the tag of a version in a
    repository on GitHub.
    """
    raw = repository
    for host, own in RAW.items():
        raw = raw.replace(host, own)
    pages, files = f"{repository}/blob/v{version}/", f"{raw}/v{version}/"
    relative = r"(?![\w+.-]+:|#|/)([^)\"\s]+)"
    readme = re.sub(rf'(src|srcset)="{relative}"', rf'\1="{files}\2"', readme)
    readme = re.sub(rf"(!\[[^\]]*\])\({relative}\)", rf"\1({files}\2)", readme)
    readme = re.sub(rf"\]\({relative}\)", rf"]({pages}\1)", readme)
    return re.sub(r" ?<!-- figures: .*? -->", "", readme)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    text = long_description(
        (HERE / "README.md").read_text(), project["urls"]["Repository"], project["version"]
    )
    setup(long_description=text, long_description_content_type="text/markdown")
