"""The second lowering: a Program as Numba source, to run it and to read it.

The same scheduled kernels that become LLVM text, as plain Python loops under ``@numba.njit``.
"""

from funcgrad.lowering.numba_source.module import Module, numba_module, numba_text

__all__ = ["Module", "numba_module", "numba_text"]
