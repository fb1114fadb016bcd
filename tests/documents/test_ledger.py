"""The ledger has a row with a verdict, or a drawing, for each figure and table of the five
papers.
"""

import re
from pathlib import Path

import pytest

LEDGER = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
ROMAN = {"I": "1", "II": "2"}
# Numbers of the figures and of the tables of each paper.
PAPERS = {
    "D-Turbo-VBI": (range(1, 5), ["1"]),
    "FedRLR": (range(1, 11), ["1", "2"]),
    "FedHM": (range(1, 9), [str(number) for number in range(1, 9)]),
    "AnycostFL": (range(1, 6), ["1"]),
    "FSLoRA": (range(1, 10), ["5.1", "5.2", "B.1"]),
}
VERDICTS = {"reproduced", "same direction", "in part", "differs", "improved", "not done", ""}


def rows(section):
    """Return the cells of the rows of a section's table."""
    text = re.split(r"^## ", LEDGER, flags=re.MULTILINE)
    lines = next(part for part in text if part.startswith(f"{section}\n")).splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines if line[:1] == "|"
    ]
    return cells[2:]


def told(heads, kind):
    """Return the numbers that heads as "Figs. 1, 3, diagrams" or "Table II, GBMA" name."""
    found = set()
    for head in heads:
        # "I" is a number, and the beginning of "IID" is none.
        one = r"(?:[A-Z]\.)?[\dIV]+(?:\.\d+)?(?!\w)(?:\([a-d, ]+\))?(?:, )?"
        for numbers in re.findall(rf"\b{kind}s?\.? ((?:{one})+)", head):
            for one in re.sub(r"\([^)]*\)", "", numbers).split(","):
                found |= {ROMAN.get(one.strip(), one.strip())} - {""}
    return found


@pytest.mark.parametrize("section", PAPERS)
def test_every_figure_and_table_of_a_paper_has_a_row(section):
    figures, tables = PAPERS[section]
    cells = rows(section)
    assert {len(row) for row in cells} == {6}
    assert {row[5] for row in cells} <= VERDICTS
    heads = [row[0] for row in cells]
    assert {str(number) for number in figures} - told(heads, "Fig") == set()
    assert set(tables) - told(heads, "Table") == set()
    # Only a drawing, and what the paper does not print, has no verdict.
    bare = [row for row in cells if not row[5] and "diagram" not in row[0]]
    assert all(row[1] in ("", "not printed") or row[2] for row in bare)


def test_numbers_of_heads_are_read():
    assert told(["Figs. 3, 4, bytes", "Fig. 5(b, c), x", "Table II, GBMA"], "Fig") == {
        "3",
        "4",
        "5",
    }
    heads = ["Tables 2, 3, parameters", "Table 5.1, average", "Table B.1, prompts", "Table I, IID"]
    assert told(heads, "Table") == {"1", "2", "3", "5.1", "B.1"}
