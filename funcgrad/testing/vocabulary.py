"""The operations of random programs: for each primitive, how it is written as NumPy code on operands that fit it.

An operation takes the program that is being drawn (`drawing.Drawer`) and adds itself to it. Elementwise ones follow
from the registry: their spelling, and the domain that stands beside their definition.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from funcgrad import special
from funcgrad.core.primitive import registry
from funcgrad.ops.op import Op

Draw = Any  # a drawing.Drawer
Operation = Callable[[Draw], None]
HALF = 2.0  # floats lie within ± this


class Impossible(Exception):
    """There is no operand that fits."""


# -- elementwise

FIRST = {"reciprocal": "{} | 1"}  # of integers: NumPy's 1 / 0 is undefined
SECOND = {  # of integers: the second operand, within what the operation takes
    "left_shift": "abs({}) % 3", "right_shift": "abs({}) % 4", "pow": "abs({}) % 3", "floor_divide": "abs({}) % 3 + 1",
    "remainder": "abs({}) % 3 + 1", "fmod": "abs({}) % 3 + 1",
}  # fmt: skip
DOMAINS = {  # narrower than where the operation is tested alone
    "hypot": ((0.5, 2.0), (-2.0, 2.0)), "arctan2": ((0.5, 2.0), (-2.0, 2.0)), "div": ((-2.0, 2.0), (0.5, 2.0)),
    "mask_div": ((-2.0, 2.0), (0.5, 2.0)), "xlogy": ((-2.0, 2.0), (0.4, 2.0)), "xlog1py": ((-2.0, 2.0), (-0.6, 2.0)),
    "floor_divide": ((-2.0, 2.0), (0.6, 1.9)), "reciprocal": ((0.5, 2.0),),
}  # fmt: skip
APART = {"select", "convert", "neg", "stop_gradient"}  # spelled below, or always right
UNNAMED = {"mask_mul", "mask_div", "mask_both", "one_minus_square"}  # used in derivatives only


def spelling(op: Op) -> str:
    """The operation as code, with ``{0}`` and ``{1}``."""
    arity = len([p for p in inspect.signature(op.function).parameters.values() if p.default is p.empty])
    operands = ", ".join([f"{{{k}}}" for k in range(arity)])
    if op.numpy is not None:
        return f"np.{op.numpy.__name__}({operands})"
    if op.name in special.__all__:
        return f"fg.special.{op.name}({operands})"
    if op.name == "sigmoid":
        return f"fg.nn.sigmoid({operands})"
    return f'bind("{op.name}", {operands})'


def intervals(op: Op, arity: int) -> tuple[tuple[float, float], ...]:
    """Where its operands have to lie."""
    if op.name in DOMAINS:
        return DOMAINS[op.name]
    return tuple([op.domain.interval(k) if op.domain else (-HALF, HALF) for k in range(arity)])


@lru_cache
def bounded(op: Op, where: tuple[tuple[float, float], ...]) -> bool:
    """Whether results of operands in these intervals are small floats."""
    grids = np.meshgrid(*[np.linspace(low, high, 41) for low, high in where])
    with np.errstate(all="ignore"):
        y = op.evaluate(*grids)[0]
    return bool(y.dtype.kind == "b" or np.max(np.abs(y)) <= HALF)


def elementwise(op: Op) -> Operation:
    """An elementwise operation on floats, integers or truth values."""
    text = spelling(op)
    arity = text.count("{")
    where = intervals(op, arity)
    strict = text.startswith("bind")

    def of_floats(d: Draw, i: int) -> None:
        operands = [i] + [d.like(i, "f") if strict else d.beside(i, "f") for _ in range(arity - 1)]
        fitted = [
            f"{{{k}}}" if interval == (-HALF, HALF) else f"fit({{{k}}}, {interval[0]}, {interval[1]})"
            for k, interval in enumerate(where)
        ]
        d.add(text.format(*fitted), *operands, bounded=bounded(op, where))

    def of_others(d: Draw, i: int, kinds: str) -> None:
        operands = [i] + [d.beside(i, kinds) for _ in range(arity - 1)]
        first, second = [ways.get(op.name, "{}").format(f"{{{k}}}") for k, ways in enumerate((FIRST, SECOND))]
        d.add(text.format(first, second), *operands)

    def apply(d: Draw) -> None:
        i = d.pick(op.dtypes.replace("c", ""))
        kind = d.values[i].dtype.kind
        if kind == "f":
            of_floats(d, i)
        elif strict:
            raise Impossible
        else:
            of_others(d, i, "b" if kind == "b" and op.name != "left_shift" else "iu")

    return apply


# -- selection, conversion, and what changes nothing


def _select(d: Draw) -> None:
    i = d.pick("f")
    comparison = d.one([">", "<", ">=", "<="])
    d.add(
        f"np.where({{0}} {comparison} {{1}}, {{2}}, {{3}})",
        d.beside(i, "f"),
        d.beside(i, "f"),
        i,
        d.beside(i, "f"),
        bounded=True,
    )


def _guarded(d: Draw) -> None:
    """A function outside of its domain, where it is not taken."""
    i = d.pick("f")
    d.add("np.where({0} > 0.1, np.sqrt({0} - 0.1), 0.5)", i, bounded=True)


def _chosen(d: Draw) -> None:
    """By a truth value that is there."""
    i = d.pick("b")
    d.add("np.where({0}, {1}, {2})", i, d.beside(i), d.beside(i), bounded=True)


def _convert(d: Draw) -> None:
    i = d.pick()
    target = d.one(
        ["float64", "int64", "bool_", "int32"]
        if not d.style.single
        else ["float64", "int64", "bool_", "int32", "float32"]
    )
    scaled = "({0} * 3)" if d.values[i].dtype.kind == "f" and target.startswith("int") else "{0}"
    text = f"{scaled}.astype(np.{target})"
    if target == "bool_":
        text = "({0} > 0.3)"
    d.add(text, i, bounded=d.values[i].dtype.kind in "fb")


def _of_integers(d: Draw) -> None:
    d.add("{0} * 0.125", d.pick("iub"), bounded=True)


def _simple(text: str, kinds: str = "f", small: bool = True, least: int = 0) -> Operation:
    return lambda d: d.add(text, d.pick(kinds, least), bounded=small)


def _barrier(d: Draw) -> None:
    i = d.pick("f")
    d.add('bind("barrier", {0}, {1})', i, d.pick("f"), bounded=True)


def _check_fits(d: Draw) -> None:
    i = d.pick("i", fits=lambda x: x.dtype == np.int64)
    d.add('bind("check_fits", {0}, low=-9, high=9, target="i8")', i, bounded=True)


# -- shapes


def _reshape(d: Draw) -> None:
    i = d.pick()
    shape = d.values[i].shape
    d.add(
        d.one(["np.reshape({0}, (-1,))", f"np.reshape({{0}}, {(*shape, 1)})", f"np.reshape({{0}}, {shape[::-1]})"]),
        i,
        bounded=True,
    )


def _transpose(d: Draw) -> None:
    i = d.pick(least=2)
    d.add(d.one(["np.transpose({0})", "np.swapaxes({0}, 0, 1)", "np.moveaxis({0}, 0, -1)"]), i, bounded=True)


def _broadcast_to(d: Draw) -> None:
    i = d.pick()
    shape = d.values[i].shape
    d.add(
        d.one([f"np.broadcast_to({{0}}, {(2, *shape)})", f"np.broadcast_to({{0}}[..., None], {(*shape, 3)})"]),
        i,
        bounded=True,
    )


def _reverse(d: Draw) -> None:
    i = d.pick(least=1)
    d.add(d.one(["{0}[::-1]", "{0}[..., ::-1]"]), i, bounded=True)


def _slice(d: Draw) -> None:
    i = d.pick(least=1, fits=lambda x: x.shape[0] > 1)
    d.add(d.one(["{0}[1:]", "{0}[:-1]", "{0}[::2]", "{0}[0]", "{0}[-1]"]), i, bounded=True)


def _pad(d: Draw) -> None:
    i = d.pick(least=1)
    if d.values[i].dtype.kind == "b":
        raise Impossible
    widths = [(d.choices.below(3), d.choices.below(2)) for _ in d.values[i].shape]
    d.add(f"np.pad({{0}}, {widths})", i, bounded=True)


def _concatenate(d: Draw) -> None:
    i = d.pick(least=1)
    rest = d.values[i].shape[1:]
    j = d.pick(d.values[i].dtype.kind, 1, lambda x: x.shape[1:] == rest)
    d.add("np.concatenate([{0}, {1}])", i, j, bounded=True)


def _stack(d: Draw) -> None:
    i = d.pick("f")
    d.add(f"np.stack([{{0}}, {{1}}], axis={d.one([0, -1])})", i, d.like(i), bounded=True)


def _iota(d: Draw) -> None:
    i = d.pick("f", least=1)
    shape = d.values[i].shape
    d.add(f'{{0}} * bind("iota", shape={shape}, dtype=np.dtype("f8"), axis={len(shape) - 1}) * 0.25', i)


# -- reductions and running totals


def _axis(d: Draw, i: int) -> str:
    return d.one(["", ", axis=0", ", axis=-1"]) if d.values[i].ndim else ""


def reduction(name: str, kinds: str, small: bool = False, before: str = "{0}", axis: bool = True) -> Operation:
    """A reduction over an axis or all."""

    def apply(d: Draw) -> None:
        i = d.pick(kinds, least=1)
        d.add(f"np.{name}({before}{_axis(d, i) if axis else ', axis=-1'})", i, bounded=small)

    return apply


def _sort(d: Draw) -> None:
    i = d.pick("fiub", least=1)
    d.add(f"np.sort({{0}}{_axis(d, i)})", i, bounded=True)


def _argsort(d: Draw) -> None:
    i = d.pick("fiub", least=1, fits=lambda x: max(x.shape) < 9)
    d.add(f'np.argsort({{0}}{_axis(d, i)}, kind="stable")', i)


def running(text: str, small: bool = False) -> Operation:
    """Running totals along an axis."""

    def apply(d: Draw) -> None:
        i = d.pick("f", least=1)
        d.add(text.replace("AXIS", str(d.one([0, d.values[i].ndim - 1]))), i, bounded=small)

    return apply


def _recurrence(d: Draw) -> None:
    i = d.pick("f", least=1)
    j, k = d.like(i), d.like(i)
    d.add(
        f'bind("linear_recurrence", bend({{0}}), {{1}}, {{2}} > -0.5, axis=0, reverse={d.one([False, True])})', i, j, k
    )


# -- indexing


def _at(d: Draw, i: int) -> str:
    """Positions along the first axis of a value."""
    n = d.values[i].shape[0]
    return d.one([f"np.array([{n - 1}, 0, {n - 1}])", f"(np.arange(4) * 2) % {n}"])


def _index_of(d: Draw) -> int:
    return d.pick("i", fits=lambda x: x.ndim <= 1)


def _gather(d: Draw) -> None:
    i = d.pick(least=1)
    n = d.values[i].shape[0]
    if d.chance(40):
        d.add(f"{{0}}[abs({{1}}) % {n}]", i, _index_of(d), bounded=True)
    else:
        d.add(f"{{0}}[{_at(d, i)}]", i, bounded=True)


def scatter(method: str, small: bool = False) -> Operation:
    """An update at positions; what is there is repeated."""

    def apply(d: Draw) -> None:
        i = d.pick("f", least=1)
        n = d.values[i].shape[0]
        if d.chance(40):
            d.add(f"fg.numpy.asarray({{0}}).at[abs({{1}}) % {n}].{method}(0.7)", i, _index_of(d), bounded=small)
            return
        shape = d.values[i].shape[1:]
        j = d.pick("f", fits=lambda y: y.shape == shape and y.dtype == d.values[i].dtype)
        d.add(f"fg.numpy.asarray({{0}}).at[{_at(d, i)}].{method}({{1}})", i, j, bounded=small)

    return apply


def _dynamic_slice(d: Draw) -> None:
    i = d.pick(least=1)
    x = d.values[i]
    j = d.pick("i", fits=lambda k: k.ndim == 0 and k.dtype == np.int64)
    starts = ", ".join(["{1}"] * x.ndim)
    d.add(
        f'bind("dynamic_slice", {{0}}, {starts}, sizes={tuple([max(n - 1, 1) for n in x.shape])})', i, j, bounded=True
    )


def _dynamic_update_slice(d: Draw) -> None:
    i = d.pick("f", least=1)
    x = d.values[i]
    j = d.pick(
        "f", x.ndim, fits=lambda y: y.ndim == x.ndim and y.dtype == x.dtype and all(np.less_equal(y.shape, x.shape))
    )
    k = d.pick("i", fits=lambda k: k.ndim == 0 and k.dtype == np.int64)
    starts = ", ".join(["{2}"] * x.ndim)
    d.add(f'bind("dynamic_update_slice", {{0}}, {{1}}, {starts})', i, j, k, bounded=True)


def _index_number(d: Draw) -> None:
    """A position that a value decides."""
    d.add("(np.sum({0}) * 3).astype(np.int64)", d.pick("f"))


# -- products and systems


def _dot(d: Draw) -> None:
    i = d.pick("f", least=1)
    n = d.values[i].shape[-1]
    j = d.pick("f", 1, lambda y: y.ndim <= 2 and y.shape[0] == n)
    d.add("{0} @ {1}", i, j)


def _dot_of_rows(d: Draw) -> None:
    i = d.pick("f", fits=lambda x: x.ndim == 2)
    j = d.pick("f", fits=lambda x: x.ndim == 2 and x.shape[1] == d.values[i].shape[1])
    d.add("{0} @ {1}.T", i, j)


def _jacobian(d: Draw) -> None:
    """Sums of a diagonal matrix and a frame of other numbers."""
    i = d.pick("f", fits=lambda x: x.ndim == 1 and x.size < 6)
    d.add("np.sum(bend(np.pad(fg.jacfwd(np.sin)({0}), 1, constant_values=0.5)), axis=0)[1:-1]", i)


def _einsum(d: Draw) -> None:
    i = d.pick("f", fits=lambda x: x.ndim == 2)
    j = d.pick("f", fits=lambda x: x.ndim == 2 and x.shape[0] == d.values[i].shape[0])
    d.add("np.einsum('ij,ik->kj', {0}, {1})", i, j)


def _outer(d: Draw) -> None:
    d.add("np.outer({0}, {1})", d.pick("f", fits=lambda x: x.ndim == 1), d.pick("f", fits=lambda x: x.ndim == 1))


def _square_matrix(d: Draw) -> int:
    return int(d.pick("f", fits=lambda x: x.ndim == 2 and x.shape[0] == x.shape[1] and x.dtype == np.float64))


def _solve(d: Draw) -> None:
    i = _square_matrix(d)
    n = d.values[i].shape[0]
    j = d.pick("f", fits=lambda y: y.shape == (n,) and y.dtype == np.float64)
    d.add(f"np.linalg.solve({{0}} * 0.2 + np.eye({n}) * 3.0, {{1}})", i, j)


def _linear_solve(d: Draw) -> None:
    i = _square_matrix(d)
    n = d.values[i].shape[0]
    j = d.pick("f", fits=lambda y: y.shape == (n,) and y.dtype == np.float64)
    d.add(f"solved({{0}} * 0.2 + np.eye({n}) * 3.0, {{1}})", i, j)


OPERATIONS: dict[str, Operation] = {
    **{
        name: elementwise(op)
        for name, op in registry.items()
        if isinstance(op, Op) and op.traits.kind == "elementwise" and name not in APART
    },
    "neg": _simple("-{0}", "if"),
    "select": _select,
    "guarded": _guarded,
    "chosen": _chosen,
    "convert": _convert,
    "integers": _of_integers,
    "stop_gradient": _simple("fg.stop_gradient({0})"),
    "checkpoint_name": _simple("fg.checkpoint_name({0}, 'x')"),
    "barrier": _barrier,
    "check_fits": _check_fits,
    "callback": _simple("from_python({0})"),
    "heard": _simple("heard({0})"),
    "reshape": _reshape,
    "transpose": _transpose,
    "broadcast": _broadcast_to,
    "reverse": _reverse,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "stack": _stack,
    "iota": _iota,
    "reduce_sum": reduction("sum", "if"),
    "mean": reduction("mean", "f", small=True),
    "reduce_prod": reduction("prod", "f", small=True, before="bend({0})"),
    "reduce_max": reduction("max", "fib", small=True),
    "reduce_min": reduction("min", "fib", small=True),
    "reduce_any": reduction("any", "b", small=True),
    "reduce_all": reduction("all", "b", small=True),
    "argmax": reduction("argmax", "fi", axis=False),
    "argmin": reduction("argmin", "fi", axis=False),
    "sort": _sort,
    "argsort": _argsort,
    "cumsum": running("np.cumsum({0}, axis=AXIS)"),
    "cumprod": running("np.cumprod(bend({0}), axis=AXIS)", small=True),
    "cummax": running("lax.cummax({0}, AXIS)", small=True),
    "cummin": running("lax.cummin({0}, AXIS)", small=True),
    "linear_recurrence": _recurrence,
    "gather": _gather,
    "scatter": scatter("set", small=True),
    "scatter_add": scatter("add"),
    "scatter_mul": scatter("multiply"),
    "scatter_max": scatter("max", small=True),
    "scatter_min": scatter("min", small=True),
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "index": _index_number,
    "stable_order": lambda d: d.add('bind("stable_order", {0})', d.pick("i", least=1)),
    "dot": _dot,
    "dot_of_rows": _dot_of_rows,
    "jacobian": _jacobian,
    "einsum": _einsum,
    "outer": _outer,
    "solve": _solve,
    "linear_solve": _linear_solve,
}

COMMON: tuple[str, ...] = (
    "sin", "add", "mul", "tanh", "exp", "sub", "select", "reduce_sum", "dot", "gather", "slice", "concatenate", "stack",
    "broadcast", "reshape", "scatter", "scatter_add", "cumsum", "maximum", "guarded", "square", "div", "outer",
    "convert", "integers", "chosen", "gt", "index",
)  # fmt: skip
"""What most programs are made of; without them most other operations find no operands."""

PRIVATE = UNNAMED | {  # `guarded` makes NumPy warn, and differences say something else of the next three
    "guarded", "stop_gradient", "nextafter", "spacing",
    "barrier", "check_fits", "linear_recurrence", "dynamic_slice", "dynamic_update_slice", "stable_order", "callback",
    "heard", "iota",
}  # fmt: skip
PUBLIC = tuple([name for name in dict.fromkeys([*COMMON, *OPERATIONS]) if name not in PRIVATE])
"""Those that can be written with public names, the simplest first."""
