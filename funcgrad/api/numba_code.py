"""to_numba and numba_handle: a function, or its gradient, as code for Numba, and as what `@njit` code can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.api.inspect import abstract_trace, numba_code
from funcgrad.api.tracing import Traced, boundary, require_callable
from funcgrad.lowering import compiled_handle


@boundary
def to_numba(f: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The code of ``f(*args, **kwargs)`` as a Python module of its own: loops under ``@numba.njit``.

    Parameters
    ----------
    f
        A function; for a gradient pass ``grad(f)``.
    args, kwargs
        Arrays, numbers, or `ShapeDtypeStruct`: their shapes and dtypes are those of the code.

    Returns
    -------
    str
        The text of a module that imports NumPy and Numba, and nothing of funcgrad. Its one public function is called
        as `f` is (``grad_loss`` for ``grad(loss)``) and takes the leaves of the arguments one by one, under their
        names; arrays that `f` captured come first, as ``c0, c1, ...``. It returns the leaves of the result: one value,
        or a tuple.

    Raises
    ------
    UnsupportedError
        A complex or float16 value, which Numba code does not take here.

    Notes
    -----
    Shapes are fixed, and the function raises ValueError for others. An index out of range raises IndexError.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> source = fg.to_numba(lambda x: np.sin(x) * 2.0, 1.0)
    >>> for line in source.splitlines()[-3:]:
    ...     print(line.split("  # ")[0])
        a = np.sin(x)
        b = a * 2.0
        return b
    """
    require_callable(f, "to_numba")
    return numba_code(f, abstract_trace(f, args, kwargs, "to_numba")).text


@boundary
def numba_handle(f: Callable[..., Any], traced: Traced) -> Any:
    """A traced function as a compiled Numba function of its arguments; what it captured is part of the code."""
    return compiled_handle(traced.program, numba_code(f, traced), traced.constants)
