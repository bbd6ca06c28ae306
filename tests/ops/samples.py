"""What the tests of the registry know of single ops.

`EXACT`: the elementwise functions with derivatives, for numbers of mpmath; where to test them stands beside the ops,
in their `Domain`. `SAMPLES`: parameters and arguments of all other primitives, several for each axis, mode and flag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations, permutations
from typing import Any

import mpmath as mp
import numpy as np

import funcgrad as fg
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind
from funcgrad.transforms.jvp import jvp
from tests.rule_checker import Oracle, all_primitives

all_primitives()
mpf = mp.mpf

EXACT: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "add": lambda x, y: x + y,
    "arccos": mp.acos,
    "arccosh": mp.acosh,
    "arcsin": mp.asin,
    "arcsinh": mp.asinh,
    "arctan": mp.atan,
    "arctan2": mp.atan2,
    "arctanh": mp.atanh,
    "cbrt": mp.cbrt,
    "copysign": lambda x, y: abs(x) * mp.sign(y),
    "cos": mp.cos,
    "cosh": mp.cosh,
    "deg2rad": mp.radians,
    "div": lambda x, y: x / y,
    "erf": mp.erf,
    "erfc": mp.erfc,
    "erfinv": mp.erfinv,
    "exp": mp.exp,
    "exp2": lambda x: mpf(2) ** x,
    "expm1": mp.expm1,
    "fmax": max,
    "fmin": min,
    "fmod": lambda x, y: x - y * int(x / y),
    "heaviside": lambda x, y: mpf(x > 0),
    "hypot": mp.hypot,
    "log": mp.log,
    "log10": mp.log10,
    "log1p": mp.log1p,
    "log2": lambda x: mp.log(x) / mp.log(2),
    "logaddexp": lambda x, y: mp.log(mp.exp(x) + mp.exp(y)),
    "logaddexp2": lambda x, y: mp.log(mpf(2) ** x + mpf(2) ** y) / mp.log(2),
    "mask_both": lambda x, y: x * y,
    "mask_div": lambda x, y: x / y,
    "mask_mul": lambda x, y: x * y,
    "maximum": max,
    "minimum": min,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
    "one_minus_square": lambda x: 1 - x * x,
    "pow": lambda x, y: x**y,
    "rad2deg": mp.degrees,
    "reciprocal": lambda x: 1 / x,
    "remainder": lambda x, y: x - y * mp.floor(x / y),
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "sin": mp.sin,
    "sinc": lambda x: mp.sinc(mp.pi * x),
    "sinh": mp.sinh,
    "sqrt": mp.sqrt,
    "square": lambda x: x * x,
    "sub": lambda x, y: x - y,
    "tan": mp.tan,
    "tanh": mp.tanh,
    "xlog1py": lambda x, y: x * mp.log1p(y),
    "xlogy": lambda x, y: x * mp.log(y),
}

ABSOLUTE = {  # the least size that an error is relative to, for derivatives of order 1 and 2, as the op documents
    "sinc": (mp.pi, mp.pi**2),
    "tanh": (1, 2),
}

F32, F64, I64, I32, BOOL = (np.dtype(t) for t in (np.float32, np.float64, np.int64, np.int32, bool))


@dataclass(frozen=True)
class Sample:
    """One application of a primitive, and how its derivative is known (see `rule_checker`)."""

    name: str
    params: dict[str, Any] = field(hash=False)
    args: tuple[Any, ...]
    oracle: Oracle
    linear_in: tuple[int, ...] | None = None

    @property
    def function(self) -> Callable[..., Any]:
        """The application as a function of its arrays."""
        return lambda *args: bind(registry[self.name], *args, **self.params)

    def __str__(self) -> str:
        params = " ".join(f"{k}={v.name if isinstance(v, fg.Program) else v}" for k, v in self.params.items())
        types = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.args)
        return f"{self.name}[{params}]({types})".replace(" ", "")


_random = np.random.default_rng(2)
SAMPLES: dict[str, list[Sample]] = {}


def of_dtype(x: Any, dtype: Any) -> Any:
    """A sample of floats as numbers of another dtype, of which all are finite."""
    return np.rint(2 * np.nan_to_num(x, nan=0.5, posinf=1.5)).astype(dtype)


def sample(name: str, /, *args: Any, oracle: Oracle = "linear", **params: Any) -> None:
    """Add a sample."""
    linear_in = (1,) if name == "linear_recurrence" else None  # in b: its derivatives never make `a` a tangent
    SAMPLES.setdefault(name, []).append(Sample(name, params, args, oracle, linear_in))


def a(*shape: int) -> np.ndarray:
    """Floats in ±[0.5, 1.5], no two of them equal."""
    return np.asarray(_random.uniform(0.5, 1.5, shape) * _random.choice([-1.0, 1.0], shape))


def i(*values: Any) -> np.ndarray:
    """Positions."""
    return np.array(values[0] if len(values) == 1 else values, I64)


def b(*shape: int) -> np.ndarray:
    """Truth values."""
    return np.asarray(_random.integers(0, 2, shape).astype(bool))


def subsets(n: int) -> list[tuple[int, ...]]:
    """All sets of axes of an array with `n` axes, but the empty one."""
    return [axes for k in range(1, n + 1) for axes in combinations(range(n), k)]


# -- broadcasting

sample("broadcast", a(), shape=(3,), axes=())
sample("broadcast", a(), shape=(2, 3), axes=())
sample("broadcast", a(3), shape=(2, 3), axes=(1,))
sample("broadcast", a(3), shape=(3, 2), axes=(0,))
sample("broadcast", a(3), shape=(2, 3, 4), axes=(1,))
sample("broadcast", a(2, 3), shape=(2, 4, 3), axes=(0, 2))
sample("broadcast", a(1), shape=(1, 5), axes=(0,))
sample("broadcast", a(0), shape=(2, 0), axes=(1,))
sample("broadcast", a(2), shape=(2, 0), axes=(0,))

for old, new in [((2, 3), (6,)), ((2, 3), (3, 2)), ((6,), (1, 6, 1)), ((), (1, 1)), ((1,), ()), ((0, 2), (0,))]:
    sample("reshape", a(*old), shape=new)

for order in permutations(range(3)):
    sample("transpose", a(2, 3, 4), axes=order)
sample("transpose", a(0, 2), axes=(1, 0))

# -- reductions

for axes in subsets(3):
    sample("reduce_sum", a(2, 3, 4), axes=axes)
    sample("reduce_prod", a(2, 3, 2), axes=axes, oracle="complex")
    sample("reduce_max", a(2, 3, 4), axes=axes, oracle="complex")
    sample("reduce_min", a(2, 3, 4), axes=axes, oracle="complex")
    sample("reduce_any", b(2, 3, 4), axes=axes)
    sample("reduce_all", b(2, 3, 4), axes=axes)
for name in ("reduce_sum", "reduce_prod"):
    sample(name, a(0, 3), axes=(0,), oracle="complex")
    sample(name, a(3, 0), axes=(0,), oracle="complex")
    sample(name, a(1), axes=(0,), oracle="complex")
for zeros in ([0], [1, 2], [0, 3], [0, 1, 2, 3]):
    x = a(4, 3)
    x[zeros] = 0
    sample("reduce_prod", x, axes=(0,), oracle="complex")
    sample("reduce_prod", x, axes=(0, 1), oracle="complex")
    sample("cumprod", x, axis=0, reverse=False, oracle="complex")
    sample("cumprod", x, axis=0, reverse=True, oracle="complex")
for name in ("reduce_max", "reduce_min"):
    sample(name, a(1, 2), axes=(0,), oracle="complex")
    sample(name, a(2, 0), axes=(0,), oracle="complex")
for name in ("reduce_any", "reduce_all"):
    sample(name, b(0, 2), axes=(0,))
for name in ("argmax", "argmin"):
    for axis in range(3):
        sample(name, a(2, 3, 4), axis=axis)
    sample(name, i(3, 1, 3, 1), axis=0)
    sample(name, a(3, 0), axis=0)

# -- running totals

for reverse in (False, True):
    for axis in range(3):
        sample("cumsum", a(2, 3, 4), axis=axis, reverse=reverse)
        for name in ("cumprod", "cummax", "cummin"):
            sample(name, a(2, 3, 4), axis=axis, reverse=reverse, oracle="complex")
        sample("linear_recurrence", a(2, 3, 4), a(2, 3, 4), b(2, 3, 4), axis=axis, reverse=reverse, oracle="complex")
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        sample(name, a(0), axis=0, reverse=reverse, oracle="complex")
        sample(name, a(1), axis=0, reverse=reverse, oracle="complex")
        sample(name, a(3, 0), axis=0, reverse=reverse, oracle="complex")
    sample("linear_recurrence", a(1), a(1), b(1), axis=0, reverse=reverse, oracle="complex")
    sample("linear_recurrence", a(0, 2), a(0, 2), b(0, 2), axis=0, reverse=reverse, oracle="complex")
    sample("linear_recurrence", a(5, 20), a(5, 20), b(5, 20), axis=0, reverse=reverse, oracle="complex")
    keep = np.ones((4, 2), bool)
    sample("linear_recurrence", a(4, 2), a(4, 2), keep, axis=0, reverse=reverse, oracle="complex")

# -- products

for x, y, contract, batch in [
    ((2, 3), (3, 4), ((1,), (0,)), ((), ())),
    ((2, 3), (4, 3), ((1,), (1,)), ((), ())),
    ((3, 2), (3, 4), ((0,), (0,)), ((), ())),
    ((3, 2), (4, 3), ((0,), (1,)), ((), ())),
    ((3,), (3,), ((0,), (0,)), ((), ())),
    ((3,), (3, 2), ((0,), (0,)), ((), ())),
    ((2, 3), (3,), ((1,), (0,)), ((), ())),
    ((2,), (3,), ((), ()), ((), ())),
    ((), (3,), ((), ()), ((), ())),
    ((2, 3, 4), (4, 3, 5), ((2, 1), (0, 1)), ((), ())),
    ((2, 3, 4), (3, 5, 4), ((1, 2), (0, 2)), ((), ())),
    ((2, 3, 4), (2, 4, 5), ((2,), (1,)), ((0,), (0,))),
    ((3, 2, 4), (4, 5, 2), ((2,), (0,)), ((1,), (2,))),
    ((2, 3, 2, 3), (3, 2, 3), ((3,), (2,)), ((0, 1), (1, 0))),
    ((2, 3), (2, 3), ((), ()), ((0, 1), (0, 1))),
    ((2, 3), (2, 3), ((1,), (1,)), ((0,), (0,))),
    ((2, 0), (0, 3), ((1,), (0,)), ((), ())),
    ((0, 2), (2, 3), ((1,), (0,)), ((), ())),
    ((1, 1), (1, 1), ((1,), (0,)), ((), ())),
]:
    sample("dot", a(*x), a(*y), contract=contract, batch=batch, oracle="complex")

# -- movement

for axes in subsets(2):
    sample("reverse", a(2, 3), axes=axes)
sample("reverse", a(0), axes=(0,))

sample("slice", a(7), start=(0,), stop=(7,), step=(2,))
sample("slice", a(8), start=(1,), stop=(7,), step=(3,))
sample("slice", a(5), start=(2,), stop=(2,), step=(1,))
sample("slice", a(3, 5), start=(1, 0), stop=(3, 4), step=(1, 2))
sample("slice", a(0, 2), start=(0, 1), stop=(0, 2), step=(1, 1))

sample("pad", a(3), a(), before=(2,), after=(1,), between=(0,))
sample("pad", a(3), a(), before=(0,), after=(0,), between=(2,))
sample("pad", a(2, 3), a(), before=(1, 0), after=(0, 2), between=(1, 1))
sample("pad", a(1), a(), before=(0,), after=(2,), between=(3,))
sample("pad", a(0), a(), before=(1,), after=(1,), between=(2,))
sample("pad", a(), a(), before=(), after=(), between=())

sample("concatenate", a(2), a(3), axis=0)
sample("concatenate", a(2), a(0), a(1), axis=0)
sample("concatenate", a(2, 3), a(1, 3), axis=0)
sample("concatenate", a(2, 3), a(2, 1), axis=1)
sample("concatenate", a(2, 0), a(2, 0), axis=0)

for target in (F32, F64, I64, I32, BOOL, np.dtype(np.uint8)):
    for x in (a(2, 3), a(), i(0, 1, 2), np.array([True, False])):
        sample("convert", x, dtype=target, weak=False)

for shape, axis in [((3,), 0), ((2, 3), 0), ((2, 3), 1), ((0,), 0), ((2, 0), 1)]:
    for dtype in (I64, F64, F32):
        sample("iota", shape=shape, dtype=dtype, axis=axis)

halves = (((0, 0), (2, 1), F64.type(1.5)), ((0, 1), (2, 3), F64.type(-0.0)))
sample("banded", shape=(2, 3), dtype=F64, boxes=halves, places=())

for shape in ((), (3,), (2, 3), (0,)):
    sample("select", b(*shape), a(*shape), a(*shape))

# -- indexing

sample("check_index", i(0, 2, -1, -3), axis=0, length=3, window=1, of="x: f64[3]")
sample("check_index", np.asarray(i(1)), axis=1, length=4, window=2, of="")
sample("check_fits", i(0, 2, -1, 127), low=-128, high=127, target="i8")
sample("stable_order", i(3, 1, 3, 0, 1))
sample("stable_order", i([2, 0, 2], [1, 1, 0]))
sample("stable_order", np.array([[np.nan, 1.0, -0.0, np.nan, 0.0, np.inf]]))
sample("stable_order", np.array([[True, False, True], [False, False, True]]))

INDICES = {  # shape of the operand, index arrays; repeated positions, the order of which matters to some ops
    "one axis": ((5,), [i(0, 3, 1)]),
    "repeated": ((3,), [i(2, 0, 2, 2, 1)]),
    "rest": ((4, 3), [i(1, 3, 1)]),
    "scalar": ((4,), [np.asarray(i(2))]),
    "scalar and rest": ((4, 2), [np.asarray(i(3))]),
    "two axes": ((3, 4), [i(0, 2, 0), i(1, 3, 1)]),
    "two axes and rest": ((3, 2, 2), [i([0, 2], [1, 2]), i([1, 0], [1, 0])]),
    "table": ((3, 2), [i([0, 2], [2, 1])]),
    "no positions": ((3, 2), [np.zeros((0,), I64)]),
    "one of one": ((1,), [i([0])]),
}
for shape, positions in INDICES.values():
    sample("gather", a(*shape), *positions)
    updates = (*positions[0].shape, *shape[len(positions) :])
    for mode in ("clip", "drop"):
        places = [p + 2 * (p == 2) if mode == "drop" else p for p in positions]  # 4 is outside of most
        for name, oracle in [("scatter", "linear"), ("scatter_add", "linear"), ("scatter_mul", "complex"),
                             ("scatter_min", "complex"), ("scatter_max", "complex")]:  # fmt: skip
            sample(name, a(*shape), a(*updates), *places, mode=mode, oracle=oracle)
with_zeros, factors = a(3), a(5)
with_zeros[0], factors[[1, 3]] = 0, 0
sample("scatter_mul", with_zeros, factors, i(2, 0, 2, 2, 0), mode="clip", oracle="complex")

for shape, starts, sizes in [
    ((5,), (2,), (2,)),
    ((3, 4), (1, 0), (2, 3)),
    ((3, 4), (0, 2), (3, 2)),
    ((3, 4), (0, 0), (3, 4)),
    ((3,), (9,), (2,)),
    ((3,), (-4,), (2,)),
    ((3,), (1,), (0,)),
    ((), (), ()),
]:
    at = [np.asarray(s, I64) for s in starts]
    sample("dynamic_slice", a(*shape), *at, sizes=sizes)
    sample("dynamic_update_slice", a(*shape), a(*sizes), *at)


for stack, n, k in [((), 3, 2), ((), 1, 1), ((2,), 3, 1), ((2, 2), 2, 3), ((), 3, 0), ((0,), 2, 2)]:
    sample("solve", a(*stack, n, n) + 4 * np.eye(n), a(*stack, n, k), oracle="complex")


# -- Programs


def _apply(name: str, *args: Any, **params: Any) -> Any:
    return bind(registry[name], *args, **params)[0]


def several(x: Any, y: Any) -> Any:
    """Two results, one of which does not depend on y."""
    z = _apply("mul", _apply("sin", x), y)
    return _apply("reduce_sum", z, axes=(0,)), _apply("exp", x)


def nested(x: Any) -> Any:
    """A call inside a call, and an integer result."""
    inner = fg.make_program(several)(x, x)
    s, e = bind(registry["call"], x, _apply("tanh", x), program=inner)
    return _apply("mul", s, s), e, _apply("gt", e, x)


sample("call", a(3), a(3), program=fg.make_program(several)(a(3), a(3)), oracle="difference")
sample("call", a(3), program=fg.make_program(nested)(a(3)), oracle="difference")
sample("call", a(3), i(1, 2, 3), program=fg.make_program(lambda x, n: (x, n))(a(3), i(1, 2, 3)))

for f, args in [(several, (a(3), a(3))), (nested, (a(3),))]:
    body = fg.make_program(f)(*args)
    sample(
        "custom_jvp", *args, program=body, rules=(jvp(body, (True,) * len(args))[0],), captured=0, oracle="difference"
    )
    sample("custom_backward", *args, program=body, oracle="difference")
    sample("checkpoint", *args, program=body, policy=None, oracle="difference")
sample("barrier", a(3), a(2))
sample("checkpoint_name", a(3), name="x")
