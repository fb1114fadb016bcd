"""Draw the diagrams of the explanations: `python docs/diagrams.py`. They are lines and text in the colour of the page, with two accents."""

from __future__ import annotations

import html
import math
from pathlib import Path

BLUE, ORANGE = "#4c78c8", "#d9822b"
PICTURES = Path(__file__).parent / "pictures"
# In a page the drawing takes the page's colour and this style is left out; alone it follows the
# reader's system.
STYLE = (
    "<style>svg { color: #24292f; font-family: sans-serif } "
    "@media (prefers-color-scheme: dark) { svg { color: #d0d7de } }</style>"
)
HEAD = '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse">'


class Drawing:
    """Shapes on a canvas of this size, in the units of its text."""

    def __init__(self, name: str, width: int, height: int) -> None:
        self.name, self.width, self.height = name, width, height
        self.parts: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 15,
        anchor: str = "middle",
        bold: bool = False,
        color: str = "currentColor",
    ) -> None:
        """Write lines of text; y is the middle of the first line."""
        weight = ' font-weight="bold"' if bold else ""
        for number, line in enumerate(words.split("\n")):
            at = f'x="{x:g}" y="{y + 0.35 * size + 1.25 * size * number:g}"'
            self.parts.append(
                f'<text {at} font-size="{size}" text-anchor="{anchor}" fill="{color}"{weight}>{html.escape(line)}</text>'
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        words: str = "",
        *,
        color: str = "",
        size: int = 15,
        round_: int = 6,
    ) -> None:
        """Draw a box with centred text, tinted if it has a colour."""
        fill = (
            f'fill="{color}" fill-opacity="0.18" stroke="{color}"'
            if color
            else 'fill="none" stroke="currentColor"'
        )
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{round_}" {fill} stroke-width="1.5"/>'
        )
        lines = words.count("\n")
        self.text(x + width / 2, y + height / 2 - 0.625 * size * lines, words, size=size)

    def arrow(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        color: str = "currentColor",
        dashed: bool = False,
        both: bool = False,
    ) -> None:
        """Draw an arrow."""
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        start = ' marker-start="url(#head)"' if both else ""
        ends = f'x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"'
        self.parts.append(
            f'<line {ends} stroke="{color}" stroke-width="1.8"{dash}{start} marker-end="url(#head)"/>'
        )

    def path(
        self,
        d: str,
        *,
        color: str = "currentColor",
        fill: str = "none",
        opacity: float = 1.0,
        width: float = 1.8,
    ) -> None:
        """Draw a path."""
        self.parts.append(
            f'<path d="{d}" stroke="{color}" fill="{fill}" fill-opacity="{opacity:g}" stroke-width="{width:g}"/>'
        )

    def circle(
        self,
        x: float,
        y: float,
        radius: float,
        *,
        color: str = "currentColor",
        filled: bool = False,
    ) -> None:
        """Draw a circle."""
        fill = color if filled else "none"
        self.parts.append(
            f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" stroke="{color}" fill="{fill}" stroke-width="1.5"/>'
        )

    def save(self) -> None:
        """Write the file."""
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        head = f'<defs>{HEAD}<path d="M0 0 L10 5 L0 10 z" fill="currentColor"/></marker></defs>'
        body = "\n".join(self.parts)
        file = PICTURES / f"{self.name}.svg"
        file.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n{STYLE}\n{head}\n{body}\n</svg>\n'
        )


def concepts() -> None:
    """Draw one round, for readers who have not seen one."""
    made = Drawing("concepts", 640, 380)
    made.box(190, 15, 260, 66, "server\nstate: the model, or its posterior", color=BLUE)
    for number in range(3):
        x = 35 + 200 * number
        made.box(
            x, 265, 170, 90, f"client {number + 1}\nits own rows\nlocal steps", color=ORANGE
        )
        made.arrow(270 + 40 * number, 82, x + 65, 263)
        made.arrow(x + 105, 263, 290 + 40 * number, 82, dashed=True)
    made.text(25, 140, "down: a message\nfor each client,\nin bytes", anchor="start")
    made.text(615, 140, "up: what it\nlearned, in bytes,\nnever its rows", anchor="end")
    made.text(100, 30, "next state:\na step on\nthe sum")
    made.text(545, 30, "ledger:\nthe bits of\nevery message")
    made.save()


def one_round() -> None:
    """Draw the steps of a round at the server and at a client."""
    made = Drawing("one_round", 640, 400)
    made.text(20, 185, "server", anchor="start", bold=True)
    made.text(20, 226, "client", anchor="start", bold=True)
    made.path("M10 205 L630 205", width=1)
    above = [("state", 20, ""), ("publish", 120, BLUE), ("view\nrestrict", 220, BLUE)]
    for words, x, color in above:
        made.box(x, 45, 85, 55, words, color=color)
    made.arrow(106, 72, 118, 72)
    made.arrow(206, 72, 218, 72)
    for words, x in (("check,\nlift, add", 430), ("server\nstep", 535)):
        made.box(x, 45, 90, 55, words, color=BLUE)
    made.arrow(521, 72, 533, 72)
    made.path("M580 44 L580 14 L62 14 L62 40", width=1.2)
    made.text(330, 28, "the next state", size=14)
    made.box(200, 130, 125, 44, "codec: bytes")
    made.box(410, 130, 125, 44, "link")
    made.arrow(262, 101, 262, 128)
    made.arrow(472, 128, 472, 101)
    made.box(200, 255, 125, 60, "local fit\non its rows", color=ORANGE)
    made.box(410, 255, 125, 60, "payload", color=ORANGE)
    made.arrow(262, 175, 262, 253)
    made.arrow(472, 253, 472, 175)
    made.arrow(326, 285, 408, 285)
    made.box(200, 350, 125, 40, "memory stays")
    made.arrow(262, 316, 262, 348, both=True)
    made.text(140, 152, "down", bold=True)
    made.text(580, 152, "up", bold=True)
    made.text(20, 290, "draws from\nits key only", anchor="start")
    made.save()


def clustered() -> None:
    """Draw Module A and Module B beside the clients."""
    made = Drawing("clustered_sparsity", 640, 330)
    made.box(15, 60, 140, 90, "clients\ngradient steps on\nmeans and sds", color=ORANGE)
    made.box(235, 60, 150, 90, "Module A\neach weight alone:\nq(ρ), q(s)", color=BLUE)
    made.box(475, 60, 150, 90, "Module B\nneighbours:\nsum-product", color=BLUE)
    made.arrow(156, 85, 233, 85)
    made.text(195, 70, "averages", size=14)
    made.arrow(233, 128, 156, 128)
    made.text(195, 148, "support", size=14)
    made.arrow(386, 85, 473, 85)
    made.text(430, 70, "evidence", size=14)
    made.arrow(473, 128, 386, 128)
    made.text(430, 148, "prior odds", size=14)
    made.text(430, 25, "server", bold=True)
    on = {
        (0, 1),
        (0, 2),
        (1, 1),
        (1, 2),
        (2, 2),
        (3, 5),
        (3, 6),
        (2, 6),
        (4, 6),
        (2, 5),
        (4, 10),
        (3, 10),
        (0, 9),
        (0, 10),
        (1, 10),
    }
    for row in range(5):
        for column in range(12):
            x, y = 250 + 24 * column, 195 + 24 * row
            if column < 11:
                made.path(f"M{x + 6} {y} L{x + 18} {y}", width=1)
            if row < 4:
                made.path(f"M{x} {y + 6} L{x} {y + 18}", width=1)
            made.circle(x, y, 6, color=BLUE, filled=(row, column) in on)
    made.text(
        125,
        225,
        "one support for each\nweight of a matrix;\nneighbours agree:\nclusters",
        size=15,
    )
    made.save()


def fed_rlr() -> None:
    """Draw tangents at a point of the manifold, their sum and its retraction."""
    made = Drawing("fedrlr_tangents", 640, 320)
    made.path("M30 265 C150 110 330 70 610 200", color=BLUE, width=2.5)
    made.text(575, 235, "matrices\nof rank R", color=BLUE)
    made.path(
        "M95 148 L505 50 L560 96 L150 196 z",
        fill=ORANGE,
        color=ORANGE,
        opacity=0.12,
        width=1,
    )
    made.text(120, 112, "tangent space at Θ₀", color=ORANGE, anchor="middle")
    made.circle(268, 139, 5, filled=True)
    made.text(268, 162, "Θ₀, which all hold")
    for x, y in ((400, 85), (430, 120), (355, 95)):
        made.arrow(268, 139, x, y)
    made.arrow(268, 139, 475, 88, color=ORANGE)
    made.text(493, 78, "sum", color=ORANGE, anchor="start")
    made.arrow(475, 90, 487, 148, dashed=True)
    made.circle(488, 152, 5, filled=True)
    made.text(430, 180, "next Θ₀: retraction")
    made.text(
        320,
        285,
        "Clients send tangent vectors at one point. They add like any vectors,\nso the channel may add them.",
    )
    made.save()


def fed_hm() -> None:
    """Draw one matrix factored at three ranks."""
    made = Drawing("fedhm_ranks", 640, 330)
    made.box(20, 110, 100, 100, "W", color=BLUE, round_=0)
    made.text(70, 85, "server", bold=True)
    for number, (rank, name) in enumerate(
        ((0, "strong: whole"), (34, "rank × 1/2"), (14, "rank × 1/4"))
    ):
        y = 20 + 105 * number
        made.arrow(122, 160, 218, y + 40)
        made.text(430, y + 15, name, anchor="start")
        if rank:
            made.box(225, y, rank, 80, "U", color=ORANGE, round_=0, size=13)
            made.box(235 + rank, y, 80, rank, "Vᵀ", color=ORANGE, round_=0, size=13)
        else:
            made.box(225, y, 80, 80, "W", color=ORANGE, round_=0)
        made.text(430, y + 40, "trains and returns\nwhat it got", anchor="start", size=14)
    made.text(
        70, 240, "multiplies out,\naverages,\ntruncates again:\none SVD a layer", size=14
    )
    made.save()


def anycost() -> None:
    """Draw the round of three devices within one deadline."""
    made = Drawing("anycostfl_plans", 640, 260)
    plans = (
        ("fast, near", 0.55, 0.42, "α = 1"),
        ("slow, near", 0.68, 0.28, "α = 9/16"),
        ("fast, far", 0.4, 0.57, "α = 12/16, small β"),
    )
    for number, (name, computing, sending, words) in enumerate(plans):
        y = 40 + 60 * number
        made.text(105, y + 17, name, anchor="end")
        made.box(120, y, 330 * computing, 34, "train", color=BLUE, round_=0)
        made.box(
            120 + 330 * computing, y, 330 * sending, 34, "send", color=ORANGE, round_=0
        )
        made.text(475, y + 17, words, anchor="start")
    made.path("M450 20 L450 220", width=1.5)
    made.text(450, 236, "deadline T")
    made.text(120, 236, "start of the round", anchor="start")
    made.save()


def fs_lora() -> None:
    """Draw slices of one adapter for two clients."""
    made = Drawing("fslora_slices", 640, 300)
    made.box(20, 80, 130, 130, "W₀\nfrozen", round_=0)
    made.text(168, 145, "+", size=22)
    chosen = {1: ORANGE, 4: ORANGE, 2: BLUE, 3: BLUE, 6: BLUE}
    for number in range(8):
        made.box(190 + 18 * number, 80, 16, 130, color=chosen.get(number, ""), round_=0)
        made.box(365, 80 + 18 * number, 130, 16, color=chosen.get(number, ""), round_=0)
    made.text(262, 62, "B: r columns")
    made.text(430, 62, "A: r rows")
    made.text(515, 110, "client 1:\nk = 2 slices", anchor="start", color=ORANGE)
    made.text(515, 170, "client 2:\nk = 3 slices", anchor="start", color=BLUE)
    made.text(
        320,
        255,
        "Each round a client trains the slices that it draws, and sends what\nchanged of them. The others are merged into its frozen weights.",
    )
    made.save()


def fusion() -> None:
    """Draw two posteriors, their product and their average."""
    made = Drawing("fusion_rules", 640, 290)

    def bell(
        centre: float, sd: float, color: str, height: float, *, filled: bool = False
    ) -> None:
        points = [
            (x, 220 - height * math.exp(-(((x - centre) / sd) ** 2) / 2))
            for x in range(20, 621, 6)
        ]
        d = "M" + " L".join(f"{x} {y:.1f}" for x, y in points)
        made.path(
            d + (" z" if filled else ""),
            color=color,
            fill=color if filled else "none",
            opacity=0.2,
            width=2,
        )

    made.path("M15 220 L625 220", width=1)
    bell(250, 70, "currentColor", 80)
    bell(370, 70, "currentColor", 80)
    bell(310, 70, ORANGE, 80)
    bell(310, 49, BLUE, 170, filled=True)
    made.text(150, 128, "client 1")
    made.text(470, 128, "client 2")
    made.text(
        380,
        62,
        "add what the rows say:\nas narrow as all rows allow",
        anchor="start",
        color=BLUE,
    )
    made.text(85, 165, "average:\ntoo wide", color=ORANGE)
    made.text(
        320,
        250,
        "Both have seen half of the rows. Natural parameters add; averages of them\nkeep the width of half the rows.",
    )
    made.save()


def belief_propagation() -> None:
    """Draw messages on a grid, and the cycle along which one comes back."""
    made = Drawing("belief_propagation", 640, 300)
    for row in range(3):
        for column in range(4):
            x, y = 35 + 88 * column, 50 + 85 * row
            made.circle(x, y, 18, color=BLUE)
            made.text(x, y, "s", size=15)
            if column < 3:
                made.arrow(x + 20, y, x + 66, y, both=True)
            if row < 2:
                made.arrow(x, y + 20, x, y + 63, both=True)
    made.path("M136 63 L198 63 L198 122 L136 122 z", color=ORANGE, width=2.5)
    made.text(167, 92, "cycle", size=13, color=ORANGE)
    made.text(
        345,
        60,
        "Every edge carries two messages:\nlog-odds from all but the\nreceiver.",
        anchor="start",
    )
    made.text(
        345,
        155,
        "Along a cycle a message comes\nback as if it were news: the\nanswer is too sure.",
        anchor="start",
        color=ORANGE,
    )
    made.text(
        345, 240, "On a tree nothing comes back,\nand the answer is exact.", anchor="start"
    )
    made.save()


def exact_stages() -> None:
    """Draw the three stages of the exact posterior, and what sites answer in each."""
    made = Drawing("exact_stages", 640, 330)
    stages = (
        ("1 mode", "log likelihood at\ncandidates,\ngradient, Hessian"),
        ("2 Gaussian", "the same, in mean\nover 64 points of\nthe Gaussian"),
        ("3 importance", "log likelihood at\n4,096 points that\na seed names"),
    )
    for number, (name, words) in enumerate(stages):
        x = 15 + 210 * number
        made.text(x + 95, 20, name, bold=True)
        made.box(x, 215, 190, 80, words, color=ORANGE)
        made.arrow(x + 75, 186, x + 75, 213)
        made.arrow(x + 115, 213, x + 115, 186, dashed=True)
        made.path(f"M{x} 180 L{x + 190} 180", width=1)
        if number < 2:
            made.arrow(x + 191, 110, x + 208, 110)

    def bell(middle: float, width: float, skew: float) -> str:
        points = []
        for x in range(-90, 91, 3):
            z = (x - middle) / (width * (1 + skew * (1 if x > middle else -1)))
            points.append((x, 180 - 120 * math.exp(-z * z / 2)))
        return " ".join(
            f"{'L' if k else 'M'}{x:g} {y:.1f}" for k, (x, y) in enumerate(points)
        )

    for number, (middle, width) in enumerate(((-20, 17), (-9, 27), (-9, 27))):
        x = 110 + 210 * number
        made.parts.append(f'<g transform="translate({x} 0)">')
        made.path(bell(-20, 27, 0.45), width=2)
        if number < 2:
            made.path(bell(middle, width, 0), color=BLUE, width=2)
        else:
            for place in range(-75, 76, 10):
                high = math.exp(
                    -(((place + 20) / (27 * (1.45 if place > -20 else 0.55))) ** 2) / 2
                )
                made.circle(place, 172, 1 + 5 * high, color=BLUE, filled=True)
        made.parts.append("</g>")
    made.text(
        320,
        315,
        "Sites answer with sums over their rows; the server adds them, and the prior once.",
    )
    made.save()


if __name__ == "__main__":
    for draw in (
        exact_stages,
        concepts,
        one_round,
        clustered,
        fed_rlr,
        fed_hm,
        anycost,
        fs_lora,
        fusion,
        belief_propagation,
    ):
        draw()
