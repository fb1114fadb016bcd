"""README's two commands, pictures and files; its code is run by test_docs."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_two_commands_use_the_constraints():
    commands = re.findall(r"<!-- (?:main|test) command -->\n```bash\n(.*?)\n```", README, re.DOTALL)
    assert len(commands) == 2
    assert all("-c constraints.txt" in command and "\n" not in command for command in commands)
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().split()


def test_every_picture_and_file_that_is_named_exists():
    for path in re.findall(r"\]\(([^)#:]+)\)|(?:src|srcset)=\"([^\"]+)\"", README):
        assert (ROOT / (path[0] or path[1])).exists(), path
