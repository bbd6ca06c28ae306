"""The elementwise kind: ops that act on each element by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.base.dtypes import Dtype
from funcgrad.base.errors import DtypeError, ShapeError
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.primitive import Primitive, Traits
from funcgrad.core.trace import bind
from funcgrad.ops.broadcasting import align
from funcgrad.ops.op import Domain, Op


def elementwise(
    function: Callable[..., Any],
    *,
    numpy: Any,
    dtypes: str,
    name: str = "",
    result: Dtype | None = None,
    exact: bool = False,
    zero: Any = "keep",
    evaluate: Callable[..., Any] | None = None,
    domain: Domain | None = None,
    traits: Traits | None = None,
) -> Op:
    """An op that acts on each element by itself.

    Parameters
    ----------
    numpy
        The ufunc of the same meaning: decides promotion, evaluates, and is what NumPy calls dispatch on.
    result
        dtype of the result; default: that of the operands.
    exact
        In group E: compiled and evaluated results are equal bit for bit.
    evaluate
        ``(*values) -> value`` where NumPy's own function does not have the semantics wanted.
    """
    op = Op(
        function,
        traits or Traits(exact=exact, zero=zero, kind="elementwise"),
        name=name,
        numpy=numpy,
        dtypes=dtypes,
        domain=domain,
    )
    compute = evaluate or numpy

    def abstract(*avals: Aval, **params: Any) -> tuple[Aval, ...]:
        first = avals[0]
        for a in avals:
            if a is not first and (a.shape != first.shape or a.dtype != first.dtype):
                _unequal(op.name, avals)
        if first.dtype.kind not in dtypes:
            raise DtypeError(f"{op.name}: does not take {first}")
        if result is not None:
            return (make_aval(first.shape, result),)
        if first.weak and not all([a.weak for a in avals]):
            return (make_aval(first.shape, first.dtype),)
        return (first,)

    op.abstract = abstract
    op.evaluate = lambda *values, **params: (compute(*values, **params),)
    op.batch = batch_elementwise(op)
    return op


def _unequal(name: str, avals: Sequence[Aval]) -> None:
    types = " and ".join(map(str, avals))
    if len({a.shape for a in avals}) > 1:
        raise ShapeError(f"{name}: operands have different shapes: {types}")
    raise DtypeError(f"{name}: operands have different dtypes: {types}")


def batch_elementwise(op: Primitive) -> Callable[..., Any]:
    """The batching rule of everything elementwise: bring the batch axes to one place."""

    def batch(size: int, args: Sequence[Any], dims: Sequence[int | None], **params: Any) -> Any:
        to = next(d for d in dims if d is not None)
        return bind(op, *[align(x, d, to, size) for x, d in zip(args, dims, strict=True)], **params), (to,)

    return batch
