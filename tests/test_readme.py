"""README's code runs and prints what README shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", README, re.DOTALL)


def numbers_aside(text):
    """Words and layout must agree; numbers may differ in their digits between machines, seconds most of all."""
    return re.sub(r"[-+]?[\d.,]+(e[-+]?\d+)?", "#", re.sub(r"[ -]+", " ", text)).strip()


@pytest.mark.slow
def test_every_block_runs_and_prints_what_is_shown(tmp_path):
    assert len(BLOCKS) >= 2
    shown = [text for _, text in BLOCKS if text]
    code = "\n".join([*(f"{source}\nprint('<end of block>')" for source, _ in BLOCKS)])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [text for text in done.stdout.split("<end of block>") if text.strip()]
    assert [numbers_aside(text) for text in printed] == [numbers_aside(text) for text in shown]


def test_the_two_commands_use_the_constraints():
    commands = re.findall(r"<!-- (?:main|test) command -->\n```bash\n(.*?)\n```", README, re.DOTALL)
    assert len(commands) == 2
    assert all("-c constraints.txt" in command and "\n" not in command for command in commands)
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().split()


def test_every_picture_and_file_that_is_named_exists():
    for path in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / path).exists(), path
