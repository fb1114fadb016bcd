"""How numba compiles the kernels of the package. Import it with the first kernel, since importing
numba takes a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compile_kernel(function: Callable[..., Any], *, parallel: bool = False) -> Any:
    """Compile a function with numba, keeping the order of its operations, so that it gives the bits
    of its twin in PyTorch.

    Numba keeps the machine code on disk, beside the source or in the user's cache folder, so that
    later processes need not compile it again. Where neither folder can be written to, each process
    compiles for itself; `NUMBA_CACHE_DIR` names another folder.

    Parameters
    ----------
    function
        The function to compile, in the part of Python that numba knows.
    parallel
        Whether ``numba.prange`` uses all cores.
    """
    options: dict[str, Any] = {"error_model": "numpy", "parallel": parallel}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        # Numba found no folder for its cache.
        return numba.njit(**options)(function)
