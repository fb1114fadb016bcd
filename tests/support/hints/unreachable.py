"""Messages that no call can reach: by file, a part of their source, and the reason."""

from collections.abc import Mapping

UNREACHABLE: Mapping[str, Mapping[str, str]] = {
    "bayesfed/inference/sum_product/methods/conditioning.py": {
        "refuse_part(part, hint)": "takes a constant table of 2^24 entries over two variables with "
        "a common neighbour, half a GiB; `test_hard_evidence.py` raises it at a lower limit",
    },
}
