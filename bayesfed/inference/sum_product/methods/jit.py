"""How kernels are compiled. Imported with the first kernel, since importing numba takes a while."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
import torch

from bayesfed.kernels import compile_kernel


def _launch_threads() -> None:
    """Start numba's threads now. With OpenMP this changes torch's number of threads, which is put
    back.
    """
    before = torch.get_num_threads()
    numba.get_num_threads()
    torch.set_num_threads(before)


_launch_threads()

_MOST = numba.get_num_threads()


def both(kernel: Callable[..., None]) -> dict[bool, Any]:
    """Compile a kernel for one core (False) and for all of them (True).

    Numba's cache identifies a kernel by name and line, not by options: each variant gets its own
    name.

    Parameters
    ----------
    kernel
        The function to compile.
    """
    code, variants = kernel.__code__, {}
    for parallel in (False, True):
        name = f"{code.co_name}_{'parallel' if parallel else 'serial'}"
        twin = FunctionType(
            code.replace(co_name=name),
            kernel.__globals__,
            name,
            kernel.__defaults__,
            kernel.__closure__,
        )
        twin.__qualname__, twin.__module__ = name, kernel.__module__
        variants[parallel] = compile_kernel(twin, parallel=parallel)
    return variants


def chosen(variants: dict[bool, Any], work: int, least: int) -> Any:
    """Return the variant for an amount of work: parallel from `least` on, with as many threads as
    torch may use.

    Parameters
    ----------
    variants
        What `both` returned.
    work, least
        Number of updates of a call, and from how many on threads save more than it costs to wake
        them.
    """
    threads = min(torch.get_num_threads(), _MOST)
    if work < least or threads == 1:
        return variants[False]
    numba.set_num_threads(threads)
    return variants[True]
