"""FFA-LoRA (Sun et al., "Improving LoRA in privacy-preserving federated learning", 2024): A stays
as it was drawn, and only B is trained.

Notation: A_0 -> ``NAME.lora_a``, frozen like the base and never sent; B -> ``NAME.lora_b``.
Averages of B are averages of products.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from bayesfed.algorithms.lora.adapting import half_frozen
from bayesfed.algorithms.lora.fed_lora import fed_lora
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.models import Likelihood


@recipe(cites=("sun2024improving", "hu2021lora"))
def ffa_lora(
    net: nn.Module,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    by_rows: bool = False,
    codec: Codec | None = None,
    up: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train B and the head: half the traffic of `fed_lora`, and an exact average.

    Parameters
    ----------
    net
        A network from `lora`. It is never changed.
    training, by_rows, codec, up, link
        As `fed_lora`.

    Raises
    ------
    ArgumentError
        As `fed_lora`.
    """
    made = fed_lora(
        half_frozen(net),
        likelihood=likelihood,
        training=training,
        by_rows=by_rows,
        codec=codec,
        up=up,
        link=link,
    )
    return replace(made, name="ffa_lora")
