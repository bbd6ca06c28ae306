"""cost: what a function costs, kernel by kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.api.inspect import abstract_trace
from funcgrad.api.tracing import boundary, leaf, require_callable, value_and_aval
from funcgrad.base import tree
from funcgrad.base.errors import ParameterError
from funcgrad.core.ir import Aval
from funcgrad.core.trace import Tracer
from funcgrad.lowering.cost import Cost
from funcgrad.lowering.measure import cost as cost_of


@boundary
def cost(f: Callable[..., Any], *args: Any, time: bool = True, **kwargs: Any) -> Cost:
    """What each kernel of ``jit(f)(*args, **kwargs)`` does: operations, bytes read and written, time.

    For a gradient pass ``grad(f)``. Kernels are numbered as in stage ``"kernels"`` of `show`; where NumPy does a part
    of the work, its operations are rows of their own.

    Parameters
    ----------
    f
        Any function of arrays, jitted or not.
    args, kwargs
        Its arguments: arrays and numbers; with ``time=False`` also `ShapeDtypeStruct`.
    time
        Whether to run the kernels and measure them: 5 ms or more for each. Without, nothing is compiled or run.

    Returns
    -------
    Cost
        Prints as a table. Iterates over its ``kernels``, each with ``name``, ``kind``, ``lines``, ``flops``,
        ``bytes_read``, ``bytes_written``, ``intensity`` (flops per byte), ``microseconds``, ``gigabytes_per_second``
        and ``gigaflops``; ``total`` has the sums.

    Raises
    ------
    ParameterError
        `time` is asked for, but the arguments have no values.

    Notes
    -----
    *Bytes* are counted from the kernels: the elements that each distinct access touches, once, times their size.
    An operand that is broadcast counts as it is stored; ``x[1:]`` and ``x[:-1]`` are two accesses; what stays in
    registers counts nothing. Reads at traced positions count an element per position.

    *Flops* are nominal: 1 for arithmetic, comparisons and rounding of floating-point numbers, 2 for a step of a matrix
    product, 1 for an element of a reduction (the compensation of sums is not counted), 30 for an elementary
    function such as exp, 0 for choosing, converting and moving, and for integers.

    *Time* is the median of 11 rounds of at least 0.3 ms, in which machine code calls one kernel over and over, on the
    values that it meets in `f`. It has no part of Python or of the call, and the operands are in the cache as far as
    they fit. An operation of NumPy is timed from Python, and a matrix product may use several threads.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> table = fg.cost(fg.value_and_grad(lambda x: np.sum(x * x)), np.ones(1000), time=False)
    >>> (kernel,) = table
    >>> kernel.bytes_read, kernel.bytes_written, kernel.flops
    (8000, 8008, 3000)
    """
    require_callable(f, "cost")
    traced = abstract_trace(f, args, kwargs, "cost")
    if not time:
        return cost_of(traced.program, None)
    leaves = [*traced.constants, *tree.flatten((args, kwargs))[0]]
    if any([isinstance(x, Aval | Tracer) for x in leaves]):
        raise ParameterError(
            "cost: an argument has a type but no value, so there is nothing to measure", hint="cost(…, time=False)"
        )
    return cost_of(traced.program, [value_and_aval(leaf(x, "an argument"))[0] for x in leaves])
