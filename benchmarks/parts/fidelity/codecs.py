"""KL against bits for `fidelity.py`: what the rounding of a message costs a posterior that is
otherwise exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from parts.fidelity.closed import PRIOR, from_natural, statistics
from parts.fidelity.problems import kl, linear, linear_exact, pooled
from parts.shared.targets import target, tiny

import bayesfed as bf
from bayesfed.compress import Float, Uniform
from bayesfed.compress.leaf import LeafCodec
from bayesfed.inspect.tables import table

GRIDS = (6, 8, 10, 12, 14, 16, 20)


def codecs() -> bool:
    """F11: the closed-form posterior of ten clients whose messages are rounded; print KL against
    bits, which must fall.
    """
    clients = linear(0, 10, "iid")
    exact = linear_exact(pooled(clients))

    def sent(codec: bf.Cast | bf.compress.Coded) -> tuple[int, float]:
        found = bf.run(
            bf.conjugate(PRIOR, statistics, codec=codec), clients, rounds=1, progress=False
        )
        return found.bits("up"), kl(from_natural(found.model.parameters), exact)

    def series(leaves: Sequence[LeafCodec]) -> list[tuple[int, float]]:
        return [sent(bf.compress.Coded(leaf)) for leaf in leaves]

    grids = series([Uniform(bits) for bits in GRIDS])
    floats = [*series([Float(16), Float(32)]), sent(bf.Cast(64))]
    names = [
        *(f"{bits} bits, even grid" for bits in GRIDS),
        *(f"{bits} bits, float" for bits in (16, 32, 64)),
    ]
    print(
        table(
            ["number sent as", "kB up", "KL to exact, nats"],
            [
                [n, f"{b / 8e3:.2f}", f"{k:.1e}"]
                for n, (b, k) in zip(names, grids + floats, strict=True)
            ],
        )
    )
    return min(
        [
            *(
                target(f"F11 {name}, times KL rises with bits", rises(found), 0)
                for name, found in (("grids", grids), ("floats", floats))
            ),
            tiny("F11 12 bits, KL", grids[GRIDS.index(12)][1], 1e-3),
            tiny("F11 64-bit floats, KL", abs(floats[-1][1]), 1e-8),
        ]
    )


def rises(found: Sequence[tuple[int, float]]) -> int:
    """Count codecs that send more bits than the one before and are further from the truth, or send
    fewer.
    """
    return sum(
        not (more > fewer and nearer <= further)
        for (fewer, further), (more, nearer) in pairwise(found)
    )
