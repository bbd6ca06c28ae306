"""Arithmetic: + - * / and their relatives, select, and the guarded products of structural zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL
from funcgrad.base.errors import ShapeError
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.primitive import Linear, Traits
from funcgrad.core.trace import bind1
from funcgrad.ops import scalar
from funcgrad.ops.broadcasting import align
from funcgrad.ops.elementwise import elementwise
from funcgrad.ops.op import ALL, INEXACT, NUMERIC, SMOOTH, Domain, Op, Operand, apply, full_like, zeros_of

inf = float("inf")

# -- add


def add(x: Operand, y: Operand) -> Any:
    """x + y, elementwise. Integers wrap; for bool it is ``or``."""
    return apply(add_p, x, y)


def _add_transpose(cts: Any, x: Any, y: Any) -> Any:
    ct = cts[0]
    return ct if isinstance(x, Linear) else None, ct if isinstance(y, Linear) else None


add_p = elementwise(add, numpy=np.add, dtypes=ALL, exact=True, zero="sum", domain=SMOOTH)
add_p.emit = scalar.add
add_p.def_jvp(lambda x_dot, z, x, y: x_dot, lambda y_dot, z, x, y: y_dot)
add_p.transpose = _add_transpose

# -- subtract


def sub(x: Operand, y: Operand) -> Any:
    """x - y, elementwise. Integers wrap."""
    return apply(sub_p, x, y)


def _sub_transpose(cts: Any, x: Any, y: Any) -> Any:
    ct = cts[0]
    return ct if isinstance(x, Linear) else None, neg(ct) if isinstance(y, Linear) else None


sub_p = elementwise(sub, numpy=np.subtract, dtypes=NUMERIC, exact=True, zero="sum", domain=SMOOTH)
sub_p.emit = scalar.instruction("sub", "isub")
sub_p.def_jvp(lambda x_dot, z, x, y: x_dot, lambda y_dot, z, x, y: neg(y_dot))
sub_p.transpose = _sub_transpose
sub_p.neutral = {1: 0}  # x - 0.0 is x, also for -0.0

# -- negative


def neg(x: Operand) -> Any:
    """-x, elementwise. Unsigned integers wrap."""
    return apply(neg_p, x)


neg_p = elementwise(neg, numpy=np.negative, dtypes=NUMERIC, exact=True, domain=SMOOTH)
neg_p.emit = lambda b, dtype, x: b.neg(x) if dtype.kind == "f" else b.isub(0, x)
neg_p.def_linear()
neg_p.transpose = lambda cts, x: (neg(cts[0]),)

# -- multiply


def mul(x: Operand, y: Operand) -> Any:
    """x * y, elementwise. Integers wrap; for bool it is ``and``."""
    return apply(mul_p, x, y)


def _mul_transpose(cts: Any, x: Any, y: Any) -> Any:
    return (mul(cts[0], y), None) if isinstance(x, Linear) else (None, mul(x, cts[0]))


mul_p = elementwise(mul, numpy=np.multiply, dtypes=ALL, exact=True, zero="product", domain=SMOOTH)
mul_p.emit = scalar.mul
mul_p.def_jvp(
    lambda x_dot, z, x, y: mul(x_dot, y),  # d(x y) = dx y + x dy
    lambda y_dot, z, x, y: mul(x, y_dot),
)
mul_p.transpose = _mul_transpose
mul_p.neutral = {0: 1, 1: 1}

# -- divide


def div(x: Operand, y: Operand) -> Any:
    """x / y, elementwise, for inexact operands. x / 0 is ±inf, 0 / 0 is NaN."""
    return apply(div_p, x, y)


def _div_transpose(cts: Any, x: Any, y: Any) -> Any:
    return div(cts[0], y), None


div_p = elementwise(
    div, numpy=np.divide, dtypes=INEXACT, exact=True, zero="product",
    domain=Domain((-2.0, 0.5), (2.0, 2.0), at={
        (1.0, 0.0): ((inf, -inf), (0.0, inf)),
        (1.0, inf): ((0.0, 0.0), (0.0, 0.0)),
    }),
)  # fmt: skip
div_p.emit = scalar.instruction("div")
div_p.def_jvp(
    lambda x_dot, z, x, y: div(x_dot, y),  # d(x / y) = (dx - z dy) / y
    lambda y_dot, z, x, y: neg(div(mul(y_dot, z), y)),
)
div_p.transpose = _div_transpose
div_p.linear_in = (0,)
div_p.neutral = {1: 1}

# -- select


def select(condition: Operand, x: Operand, y: Operand) -> Any:
    """`x` where `condition` holds, else `y`, elementwise; the branch not taken has no influence at all."""
    return bind1(select_p, condition, *_pair(x, y))


def _pair(x: Any, y: Any) -> tuple[Any, Any]:
    if type(x) in (bool, int, float, complex):
        return full_like(y, x), y
    return (x, full_like(x, y)) if type(y) in (bool, int, float, complex) else (x, y)


def _select_abstract(condition: Aval, x: Aval, y: Aval) -> tuple[Aval]:
    if condition.dtype != BOOL or condition.shape != x.shape or x.shape != y.shape or x.dtype != y.dtype:
        raise ShapeError(f"select: types do not fit: {condition}, {x}, {y}")
    return (make_aval(x.shape, x.dtype, x.weak and y.weak),)


def _select_jvp(primal: Any, primals: Any, tangents: Any) -> Any:
    c, x, y = primals
    _, x_dot, y_dot = tangents
    x_dot = zeros_of(x) if x_dot is None else x_dot
    y_dot = zeros_of(y) if y_dot is None else y_dot
    return primal(), (select(c, x_dot, y_dot),)


def _select_transpose(cts: Any, c: Any, x: Any, y: Any) -> Any:
    ct = cts[0]
    zero = full_like(ct, 0)
    x_bar = select(c, ct, zero) if isinstance(x, Linear) else None
    y_bar = select(c, zero, ct) if isinstance(y, Linear) else None
    return None, x_bar, y_bar


def _select_batch(size: int, args: Any, dims: Any) -> Any:
    to = next(d for d in dims if d is not None)
    return (bind1(select_p, *[align(x, d, to, size) for x, d in zip(args, dims, strict=True)]),), (to,)


select_p = Op(select, Traits(exact=True, zero="source", kind="elementwise"), domain=SMOOTH)
select_p.flops = 0
select_p.abstract = _select_abstract
select_p.evaluate = lambda c, x, y: (np.where(c, x, y)[()],)
select_p.emit = scalar.instruction("select")
select_p.batch = _select_batch
select_p.jvp = _select_jvp
select_p.transpose = _select_transpose

# -- guarded products: written by transforms.mask where a zero of t is structural


def mask_mul(t: Operand, c: Operand) -> Any:
    """t * c, but t itself where t is 0: a zero that is there by construction annihilates inf and NaN.

    Bilinear: d = mask_mul(dt, c) + mask_mul(t, dc).
    """
    return apply(mask_mul_p, t, c)


def _mask_mul_transpose(cts: Any, t: Any, c: Any) -> Any:
    return (mask_mul(cts[0], c), None) if isinstance(t, Linear) else (None, mask_mul(t, cts[0]))


mask_mul_p = elementwise(
    mask_mul, numpy=None, dtypes=INEXACT, exact=True, zero="guard",
    evaluate=lambda t, c: np.where(t == 0, t, t * c)[()],
    domain=Domain(smooth="bilinear; its zeros are tested with transforms.mask"),
)  # fmt: skip
mask_mul_p.emit = lambda b, dtype, t, c: b.select(b.eq(t, 0.0), t, b.mul(t, c))
mask_mul_p.def_jvp(lambda t_dot, z, t, c: mask_mul(t_dot, c), lambda c_dot, z, t, c: mask_mul(t, c_dot))
mask_mul_p.transpose = _mask_mul_transpose
mask_mul_p.neutral = {0: 1, 1: 1}
mul_p.guarded = mask_mul_p
mask_mul_p.unguarded = mul_p


def mask_both(t: Operand, c: Operand) -> Any:
    """t * c, but 0 where either is 0: a product that is guarded already, and whose coefficient has structural zeros.

    Bilinear: d = mask_both(dt, c) + mask_both(t, dc).
    """
    return apply(mask_both_p, t, c)


def _mask_both_transpose(cts: Any, t: Any, c: Any) -> Any:
    return (mask_both(cts[0], c), None) if isinstance(t, Linear) else (None, mask_both(t, cts[0]))


mask_both_p = elementwise(
    mask_both, numpy=None, dtypes=INEXACT, exact=True, zero="guard",
    evaluate=lambda t, c: np.where(t == 0, t, np.where(c == 0, c, t * c))[()],
    domain=Domain(smooth="bilinear; its zeros are tested with transforms.mask"),
)  # fmt: skip
mask_both_p.emit = lambda b, dtype, t, c: b.select(b.eq(t, 0.0), t, b.select(b.eq(c, 0.0), c, b.mul(t, c)))
mask_both_p.def_jvp(lambda t_dot, z, t, c: mask_both(t_dot, c), lambda c_dot, z, t, c: mask_both(t, c_dot))
mask_both_p.transpose = _mask_both_transpose
mask_mul_p.guarded = mask_both_p


def mask_div(t: Operand, c: Operand) -> Any:
    """t / c, but t itself where t is 0; see `mask_mul`."""
    return apply(mask_div_p, t, c)


mask_div_p = elementwise(
    mask_div, numpy=None, dtypes=INEXACT, exact=True, zero="guard",
    evaluate=lambda t, c: np.where(t == 0, t, t / c)[()],
    domain=Domain((-2.0, 0.5), (2.0, 2.0), smooth="linear in t; its zeros are tested with transforms.mask"),
)  # fmt: skip
mask_div_p.emit = lambda b, dtype, t, c: b.select(b.eq(t, 0.0), t, b.div(t, c))
mask_div_p.def_jvp(
    lambda t_dot, z, t, c: mask_div(t_dot, c),  # d(t / c) = dt / c - t / c dc / c
    lambda c_dot, z, t, c: neg(mask_mul(mask_div(t, c), div(c_dot, c))),
)
mask_div_p.transpose = lambda cts, t, c: (mask_div(cts[0], c), None)
mask_div_p.linear_in = (0,)
mask_div_p.neutral = {1: 1}
mask_div_p.unguarded = div_p
div_p.guarded = mask_div_p

# -- stop_gradient


def stop_gradient(x: Operand) -> Any:
    """`x` itself, with derivative zero to every order."""
    return apply(stop_gradient_p, x)


stop_gradient_p = elementwise(stop_gradient, numpy=None, dtypes=ALL, exact=True, evaluate=lambda x: x,
                              domain=Domain(smooth="its derivative is zero"))  # fmt: skip
stop_gradient_p.flops = 0
stop_gradient_p.emit = lambda b, dtype, x: x
stop_gradient_p.def_no_derivative("that is its purpose")
