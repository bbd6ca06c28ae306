"""Vectorisation: run a Program on many rows at once.

In: a Program, the number of rows, and for each input the axis that holds the rows (None: the same for all rows).
Out: the Program on the batched inputs, and the axis of each output. Equations that no row enters stay as they are.
"""

from __future__ import annotations

from typing import Any, Final

from funcgrad.base.errors import FuncgradError
from funcgrad.core.check import checked
from funcgrad.core.ir import Aval, Program, Stack, make_aval, stack_of
from funcgrad.core.trace import Trace, Tracer
from funcgrad.ops.broadcasting import align, reduce_sum

Dims = tuple[int | None, ...]
SUM: Final = -1
"""In place of an axis: the sum over all rows."""


def batched_aval(aval: Aval, size: int, dim: int | None) -> Aval:
    """The aval of `size` rows of `aval` along axis `dim`; for a stack see `batch`."""
    if dim is None:
        return aval
    if isinstance(aval, Stack):
        return stack_of(aval if dim == -1 else batched_aval(aval.elem, size, dim if dim >= 0 else dim + 1))
    return make_aval((*aval.shape[:dim], size, *aval.shape[dim:]), aval.dtype)


def batch(program: Program, size: int, dims: Dims) -> tuple[Program, Dims]:
    """`program` applied to `size` rows.

    Parameters
    ----------
    dims
        For each input, the axis of the rows in 0 ... ndim, or None. For a stack: the axis of its innermost values,
        or -1 - k where the rows are stacks, k levels below the outermost.

    Returns
    -------
    program, dims
        The outputs have their rows along the axes `dims`; None for an output that no row enters.
    """
    return program.remember(("batch", size, dims), lambda: _batch(program, size, dims))


def _batch(program: Program, size: int, dims: Dims) -> tuple[Program, Dims]:
    rows: dict[Any, tuple[Any, int]] = {}  # Var → batched value and its axis
    renamed: dict[Any, Any] = {}  # unbatched results of a batched equation: old Var → new atom
    with Trace(program.name) as t:
        names = program.input_names or ("",) * len(program.inputs)
        for var, dim, name in zip(program.inputs, dims, names, strict=True):
            if dim is None:
                t.adopt(var, name=name)
            else:
                rows[var] = (t.input(batched_aval(var.aval, size, dim), name=name), dim)
        for e in program.equations:
            found = [rows.get(a) for a in e.inputs]
            inputs = e.inputs
            if renamed and any([a in renamed for a in inputs]):
                inputs = tuple([renamed.get(a, a) for a in inputs])
            if not any([f is not None for f in found]):
                t.emit(e if inputs is e.inputs else e.replace(inputs=inputs))
                continue
            t.source = e.source
            args = [Tracer(t, a) if f is None else f[0] for a, f in zip(inputs, found, strict=True)]
            try:
                outs, out_dims = e.primitive.batch(
                    size, args, tuple([None if f is None else f[1] for f in found]), **e.params
                )
            except FuncgradError as error:
                raise error.at(e.source) from None
            for var, out, dim in zip(e.outputs, outs, out_dims, strict=True):
                if dim is None:
                    renamed[var] = t.atom(out)
                else:
                    rows[var] = (out, dim)
        outputs, out_dims = [], []
        for a in program.outputs:
            value, dim = rows.get(a, (None, None))
            outputs.append(Tracer(t, renamed.get(a, a)) if value is None else value)
            out_dims.append(dim)
        result = t.program(outputs)
    assert not t.captured, "a batching rule captured a value"
    return checked(result), tuple(out_dims)


def batch_onto(program: Program, size: int, dims: Dims, targets: Dims) -> Program:
    """As `batch`, with the rows of each output along the axis of `targets`.

    `SUM` adds the rows up; None leaves an output as `batch` gives it.
    """
    return program.remember(("batch_onto", size, dims, targets), lambda: _batch_onto(program, size, dims, targets))


def _batch_onto(program: Program, size: int, dims: Dims, targets: Dims) -> Program:
    batched, found = batch(program, size, dims)
    if found == targets:
        return batched
    with Trace(program.name) as t:
        for var, name in zip(batched.inputs, batched.input_names or ("",) * len(batched.inputs), strict=True):
            t.adopt(var, name=name)
        for e in batched.equations:
            t.emit(e)
        outputs = []
        for a, dim, target in zip(batched.outputs, found, targets, strict=True):
            value: Any = Tracer(t, a)
            if target == SUM:
                value = reduce_sum(align(value, dim, 0, size), (0,))
            elif target is not None:
                value = align(value, dim, target, size)
            outputs.append(value)
        return checked(t.program(outputs))
