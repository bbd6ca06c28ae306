"""How an op is defined: the kinds, and what follows from each without being written again.

    def tanh(x: Operand) -> Any:
        \"\"\"Hyperbolic tangent, elementwise. ...\"\"\"
        return apply(tanh_p, x)

    tanh_p = elementwise(tanh, numpy=np.tanh, dtypes=INEXACT, domain=Domain(-3, 3))
    tanh_p.def_jvp(lambda x_dot, y, x: mul(x_dot, sub(1.0, square(y))))   # d tanh x = (1 - tanh^2 x) dx
    tanh_p.emit = of_floats(vecmath.tanh)                                  # as instructions

Functions here and in the rest of `ops` are strict: operands of a primitive have equal shapes and dtypes; a
Python scalar stands for a constant of the type of its neighbour. Broadcasting and promotion are the business of
`funcgrad.numpy`, which generates its elementwise functions from these definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from funcgrad.core.ir import Aval, Literal, Stack, make_aval, splat, tangent_aval
from funcgrad.core.primitive import Primitive, Traits, registry
from funcgrad.core.stacked import Stacked
from funcgrad.core.trace import Trace, Tracer, bind, bind1, current

Operand = Any
"""A Tracer, an ndarray, a NumPy scalar, or a Python scalar."""

REAL = "f"  # floating
INEXACT = "fc"  # floating and complex
NUMERIC = "iufc"  # everything but bool
ORDERED = "biuf"  # everything that can be compared
BITS = "biu"  # bool and integers
INTEGER = "iu"
ALL = "biufc"


@dataclass(frozen=True, slots=True)
class Domain:
    """Where an op is tested; stands beside its definition.

    Parameters
    ----------
    low, high
        Random arguments are drawn from this open interval (one pair for all operands, or one per operand).
    at
        Stated first and second derivatives at kinks, singular and boundary points, per operand tuple:
        ``{(0.0,): ((inf,), (-inf,))}`` maps a point to the gradient and to the diagonal of the Hessian there.
        An op without such points leaves it empty and says why in `smooth`.
    smooth
        Why there are no special points, or ``""``.
    """

    low: float | tuple[float, ...] = -2.0
    high: float | tuple[float, ...] = 2.0
    at: Mapping[tuple[float, ...], tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    smooth: str = ""

    def interval(self, operand: int) -> tuple[float, float]:
        """The interval of one operand."""
        low = self.low[operand] if isinstance(self.low, tuple) else self.low
        high = self.high[operand] if isinstance(self.high, tuple) else self.high
        return low, high


SMOOTH = Domain(smooth="smooth everywhere")
LINEAR = Domain(smooth="linear")


class Op(Primitive):
    """A first-order primitive with a public function.

    Parameters
    ----------
    function
        The function of this package that applies it; its docstring is the public one.
    numpy
        The NumPy function it implements, if any.
    dtypes
        Kinds of dtypes it takes, of ``biufc``.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        traits: Traits,
        *,
        name: str = "",
        numpy: Any = None,
        dtypes: str = ALL,
        domain: Domain | None = None,
    ) -> None:
        super().__init__(name or function.__name__, traits, function.__doc__ or "")
        self.function = function
        self.numpy = numpy
        self.dtypes = dtypes
        self.domain = domain
        self.differentiable: tuple[bool, ...] = ()
        self.no_derivative = ""

    def def_jvp(self, *rules: Callable[..., Any] | None) -> None:
        """The derivative, one rule per operand: ``rule(x_dot, out, *primals, **params) -> tangent``.

        None for an operand that the result does not depend on differentiably. The tangents are added up.
        """
        self.differentiable = tuple(r is not None for r in rules)
        self.moved_by = tuple([i for i, r in enumerate(rules) if r is not None])
        self.declined.setdefault("transpose", "it is not linear")

        def jvp(primal: Callable[[], Any], primals: Any, tangents: Any, **params: Any) -> Any:
            outs = primal()
            total = None
            for rule, x_dot in zip(rules, tangents, strict=True):
                if rule is not None and x_dot is not None:
                    term = rule(x_dot, outs[0], *primals, **params)
                    total = term if total is None else accumulate(total, term)
            return outs, (total,)

        self.jvp = jvp

    def def_linear(self, *positions: int) -> None:
        """Linear, jointly, in the operands at `positions` (default: the only one): the tangent is the op itself."""
        where = positions or (0,)

        def jvp(primal: Callable[[], Any], primals: Any, tangents: Any, **params: Any) -> Any:
            outs = primal()
            args = list(primals)
            for i in where:
                args[i] = tangents[i] if tangents[i] is not None else zeros_of(primals[i])
            return outs, bind(self, *args, **params)

        self.jvp = jvp
        self.differentiable = ()
        self.moved_by = None

    def def_no_derivative(self, reason: str) -> None:
        """The result is piecewise constant (or not a number of the reals): its tangent is always zero."""
        self.no_derivative = reason
        self.declined.setdefault("transpose", reason)
        self.moved_by = ()
        self.jvp = lambda primal, primals, tangents, **params: (primal(), (None,))


# -- constants


def constant(value: Any, aval: Aval) -> Any:
    """One scalar repeated over the shape of `aval`: a literal while tracing, else a stride-0 array."""
    scalar = value if isinstance(value, np.generic) and value.dtype == aval.dtype else aval.dtype.type(value)
    trace = current()
    if type(trace) is Trace:
        return Tracer(trace, Literal(scalar, aval))
    return splat(scalar, aval)


def aval_of(x: Any) -> Aval:
    """The type of an operand (not of a Python scalar)."""
    return x.aval if type(x) is Tracer else make_aval(x.shape, x.dtype)


def full_like(x: Any, value: Any) -> Any:
    """The constant `value` with the shape and dtype of `x`."""
    a = aval_of(x)
    return constant(value, make_aval(a.shape, a.dtype))


def zeros_of(x: Any) -> Any:
    """The zero tangent of `x` (an operand or an aval)."""
    return constant(0, tangent_aval(x if isinstance(x, Aval) else aval_of(x)))


def literal_of(x: Any) -> Literal | None:
    """The literal behind an operand, if it is one."""
    return x.atom if type(x) is Tracer and isinstance(x.atom, Literal) else None


_SCALARS = (bool, int, float, complex)


def apply(primitive: Primitive, *args: Any, **params: Any) -> Any:
    """Bind a primitive with one result; Python scalars become constants of their neighbours' type."""
    for a in args:
        if type(a) in _SCALARS:
            like = next(x for x in args if type(x) not in _SCALARS)
            args = tuple([full_like(like, x) if type(x) in _SCALARS else x for x in args])
            break
    return bind1(primitive, *args, **params)


def accumulate(x: Any, y: Any) -> Any:
    """x + y, for two terms of a tangent or cotangent."""
    if isinstance(x, Stacked) or (type(x) is Tracer and isinstance(x.aval, Stack)):
        return _add_stacks[0](x, y)
    return bind1(registry["add"], x, y)


_add_stacks: list[Callable[[Any, Any], Any]] = []


def set_add_stacks(function: Callable[[Any, Any], Any]) -> None:
    """Let the loops say how their stacks are added."""
    _add_stacks[:] = [function]
