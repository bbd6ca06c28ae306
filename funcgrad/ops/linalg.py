"""Linear systems: stacks of square matrices, through LAPACK."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.base.errors import DtypeError, ShapeError, SingularMatrixError
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.primitive import Linear, Traits
from funcgrad.core.trace import bind1
from funcgrad.ops.arithmetic import neg, sub
from funcgrad.ops.broadcasting import align, move_axis, reshape, transpose
from funcgrad.ops.dot import dot
from funcgrad.ops.op import Domain, Op, Operand, aval_of


def solve(a: Operand, b: Operand, of: str = "") -> Any:
    """The solution x of ``a x = b``, for stacks of matrices.

    Parameters
    ----------
    a
        Shape ``(..., n, n)``.
    b
        Shape ``(..., n, k)``, of the dtype of `a`, with the same leading axes.
    of
        For errors: what the matrix is, in words.

    Raises
    ------
    SingularMatrixError
        A matrix is exactly singular.
    """
    return bind1(solve_p, a, b, of=of)


def matrix_product(x: Operand, y: Operand) -> Any:
    """``x y`` for stacks of matrices with the same leading axes."""
    n = aval_of(x).ndim
    stack = tuple(range(n - 2))
    return dot(x, y, ((n - 1,), (n - 2,)), (stack, stack))


def matrix_transpose(x: Operand) -> Any:
    """The last two axes exchanged."""
    n = aval_of(x).ndim
    return transpose(x, (*range(n - 2), n - 1, n - 2))


def _abstract(a: Aval, b: Aval, *, of: str = "") -> tuple[Aval]:
    if a.ndim < 2 or a.shape[-1] != a.shape[-2] or a.shape[:-1] != b.shape[:-1] or a.ndim != b.ndim:
        raise ShapeError(f"solve: shapes do not fit: {a} and {b}")
    if a.dtype != b.dtype or a.dtype.itemsize < 4:
        raise DtypeError(f"solve: dtypes must be equal, and have at least 32 bits: {a} and {b}")
    return (make_aval(b.shape, b.dtype),)


def _evaluate(a: Any, b: Any, *, of: str = "") -> tuple[Any]:
    try:
        return (np.linalg.solve(a, b),)
    except np.linalg.LinAlgError:
        raise _fault(make_aval(a.shape, a.dtype), of=of) from None


def _fault(matrix: Any, *, of: str = "") -> SingularMatrixError:
    """The error of a singular matrix, of which the type is known, or the order."""
    if of:
        hint = "there the solution is no smooth function of the arguments, as at a double root"
        return SingularMatrixError(f"{of} is singular: {matrix}", hint=hint)
    return SingularMatrixError(f"solve: the matrix {matrix} is singular", hint="add a little to its diagonal")


def _jvp(primal: Any, primals: Any, tangents: Any, *, of: str = "") -> Any:
    (a, _), (a_dot, b_dot) = primals, tangents
    outs = primal()
    right = b_dot
    if a_dot is not None:  # a x = b, so a dx = db - da x
        moved = matrix_product(a_dot, outs[0])
        right = neg(moved) if b_dot is None else sub(b_dot, moved)
    return outs, (None if right is None else solve(a, right, of),)


def _transpose(cts: Any, a: Any, b: Any, *, of: str = "") -> Any:
    return None, solve(matrix_transpose(a), cts[0], of) if isinstance(b, Linear) else None


def _batch(size: int, args: Any, dims: Any, *, of: str = "") -> Any:
    (a, b), (a_dim, b_dim) = args, dims
    if a_dim is not None:
        return (solve(align(a, a_dim, 0, size), align(b, b_dim, 0, size), of),), (0,)
    b = move_axis(b, b_dim, aval_of(b).ndim - 1)  # one matrix for all rows: the rows are more columns
    *stack, k, _ = aval_of(b).shape
    x = solve(a, reshape(b, (*stack, k * size)), of)
    return (reshape(x, (*stack, k, size)),), (len(stack) + 1,)


solve_p = Op(
    solve,
    Traits(may_raise=True, kind="solve"),
    dtypes="fc",
    domain=Domain(smooth="smooth where the matrix is regular, and refused elsewhere"),
)
solve_p.hidden_params = {"of": None}
solve_p.abstract = _abstract
solve_p.evaluate = _evaluate
solve_p.fault = lambda order, *, of="": _fault(f"of order {order}", of=of)
solve_p.jvp = _jvp
solve_p.transpose = _transpose
solve_p.linear_in = (1,)
solve_p.batch = _batch
