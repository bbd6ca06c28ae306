"""Faults around a rule, for any slot: its results negated, doubled, dropped or swapped, its rows and axes mistaken.

    wrapped = WRAPPERS["transpose"]["negated"](rule)

Each is a function from a rule to a wrong rule; `applied` counts how often the fault changed something: where it never
did (two cotangents swapped, of an op with one operand), it is no mutant of that op.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.control.assemble import zero
from funcgrad.control.rows import add_stacks
from funcgrad.core.ir import Stack
from funcgrad.core.primitive import Linear, Primitive, registry
from funcgrad.core.trace import bind1
from funcgrad.ops.op import Op, aval_of, full_like
from tests.mutation.targets import refuses

Rule = Callable[..., Any]
applied = [0]


def _did(value: Any) -> Any:
    applied[0] += 1
    return value


def negated(x: Any) -> Any:
    """Another value of the same type: minus it, or not it, or one more; zero for a stack."""
    a = aval_of(x)
    if isinstance(a, Stack):
        return _did(zero(a))
    kind = a.dtype.kind
    if kind == "b":
        return _did(bind1(registry["logical_not"], x))
    if kind in "iu":
        return _did(bind1(registry["add"], x, full_like(x, 1)))
    return _did(bind1(registry["neg"], x))


def doubled(x: Any) -> Any:
    """Twice it."""
    a = aval_of(x)
    if isinstance(a, Stack):
        return _did(add_stacks(x, x))
    return _did(bind1(registry["add"], x, x)) if a.dtype.kind in "fc" else x


def taken(x: Any, places: Sequence[int]) -> Any:
    """The stack of what a stack has at some places."""
    elem = aval_of(x).elem
    items = [bind1(registry["stack_element"], x, np.int64(i)) for i in places]
    return _did(bind1(registry["stack_collect"], *items, elem=elem))


def flipped(x: Any, axis: int = -1) -> Any:
    """Its elements in the other order along an axis; the first two of a stack, or the first."""
    a = aval_of(x)
    if isinstance(a, Stack):
        return taken(x, (1, 0) if axis else (0,))
    if not a.shape or a.shape[axis] < 2:
        return x
    return _did(bind1(registry["reverse"], x, axes=(axis % len(a.shape),)))


def ones(x: Any) -> Any:
    """A tangent of ones."""
    return _did(full_like(x, 1))


def each(change: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """The change of all that is not zero."""
    return lambda items: tuple([None if x is None else change(x) for x in items])


def nothing(x: Any) -> Any:
    """A zero."""
    return _did(None)


def swapped(items: Any) -> tuple[Any, ...]:
    """The first two of equal type, exchanged."""
    out = list(items)
    there = [i for i, x in enumerate(out) if x is not None and not isinstance(x, Linear)]
    for i in there:
        for j in there:
            if i < j and _same(out[i], out[j]):
                out[i], out[j] = out[j], out[i]
                return _did(tuple(out))
    return tuple(out)


def _same(x: Any, y: Any) -> bool:
    a, b = aval_of(x), aval_of(y)
    if isinstance(a, Stack) or isinstance(b, Stack):
        return False
    return (
        a.shape == b.shape and a.dtype == b.dtype and x is not y and getattr(x, "atom", x) is not getattr(y, "atom", y)
    )


def without(items: Any, which: int) -> tuple[Any, ...]:
    """One of several that are there, dropped."""
    out = list(items)
    there = [i for i, x in enumerate(out) if x is not None]
    if len(there) > 1:
        out[there[which]] = _did(None)
    return tuple(out)


# -- around the derivative


def of_tangents_out(change: Callable[[Any], Any]) -> Callable[[Rule], Rule]:
    """The tangents that a rule gives, changed."""

    def wrap(rule: Rule) -> Rule:
        def jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
            outs, dots = rule(primal, primals, tangents, **params)
            return outs, change(tuple(dots))

        return jvp

    return wrap


def of_tangents_in(change: Callable[[Any], Any]) -> Callable[[Rule], Rule]:
    """The tangents that a rule gets, changed."""

    def wrap(rule: Rule) -> Rule:
        return lambda primal, primals, tangents, **params: rule(primal, primals, list(change(tangents)), **params)

    return wrap


def of_outputs(rule: Rule) -> Rule:
    """Another value next to the tangent."""

    def jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
        outs, dots = rule(primal, primals, tangents, **params)
        outs = list(outs)
        return [negated(outs[0]), *outs[1:]], dots

    # the equation itself is kept where a rule records it: the changed value must be seen
    def replaced(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
        copy = _Unrecorded(primal)
        return jvp(copy, primals, tangents, **params)

    return replaced


class _Unrecorded:
    """The primal of an equation, which a rule believes to have recorded."""

    def __init__(self, primal: Any) -> None:
        self.primal = primal

    def __call__(self) -> Any:
        outs = self.primal()
        self.primal.emitted = False
        return outs


def second_order(rule: Rule) -> Rule:
    """Right, once: the coefficients are constants to whoever differentiates again."""

    def jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
        constant = lambda x: _did(bind1(registry["stop_gradient"], x)) if aval_of(x).dtype.kind in "fc" else x
        held = lambda: [constant(y) for y in primal()]
        _, dots = rule(held, [constant(x) for x in primals], tangents, **params)
        return primal(), dots

    return jvp


def some_tangent(make: Callable[[Any, Any], Any]) -> Callable[[Rule], Rule]:
    """A tangent where there is none."""

    def wrap(rule: Rule) -> Rule:
        def jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
            outs, dots = rule(primal, primals, tangents, **params)
            given = next(t for t in tangents if t is not None)
            found = [make(y, given) if d is None and not isinstance(aval_of(y), Stack) else d
                     for y, d in zip(outs, dots, strict=True)]  # fmt: skip
            return outs, tuple(found)

        return jvp

    return wrap


def as_float(x: Any) -> Any:
    """A value as a tangent."""
    a = aval_of(x)
    return _did(x if a.dtype.kind in "fc" else bind1(registry["convert"], x, dtype=np.dtype(float), weak=False))


def fewer(rule: Rule) -> Rule:
    """No tangents at all, not even zeros."""
    return lambda *args, **params: _did((rule(*args, **params)[0], ()))


JVP: dict[str, Callable[[Rule], Rule]] = {
    "tangents negated": of_tangents_out(each(negated)),
    "tangents doubled": of_tangents_out(each(doubled)),
    "tangents zero": of_tangents_out(each(nothing)),
    "tangents reversed": of_tangents_out(each(flipped)),
    "tangents of the results swapped": of_tangents_out(swapped),
    "a tangent forgotten": of_tangents_in(lambda ts: without(ts, 0)),
    "another tangent forgotten": of_tangents_in(lambda ts: without(ts, 1)),
    "tangents of the operands swapped": of_tangents_in(swapped),
    "another value": of_outputs,
}
SECOND_ORDER = {"coefficients constant": second_order}
NO_JVP: dict[str, Callable[[Rule], Rule]] = {
    "a tangent of ones": some_tangent(lambda y, t: ones(as_float(y))),
    "the tangent of the operand": some_tangent(lambda y, t: _did(t)),
    "the value as tangent": some_tangent(lambda y, t: as_float(y)),
    "a tangent that is not a number": some_tangent(lambda y, t: _did(full_like(as_float(y), np.nan))),
    "no tangents": fewer,
    "another value": of_outputs,
}


# -- around the transpose


def of_cotangents(change: Callable[[Any], Any]) -> Callable[[Rule], Rule]:
    """The cotangents that a rule gives, changed."""

    def wrap(rule: Rule) -> Rule:
        return lambda *args, **params: change(tuple(rule(*args, **params)))

    return wrap


def of_cotangents_in(change: Callable[[Any], Any]) -> Callable[[Rule], Rule]:
    """The cotangents that a rule gets, changed."""

    def wrap(rule: Rule) -> Rule:
        return lambda cts, *args, **params: rule(list(change(cts)), *args, **params)

    return wrap


def turned(x: Any) -> Any:
    """Its last two axes exchanged, where it is square."""
    a = aval_of(x)
    n = 0 if isinstance(a, Stack) else len(a.shape)
    if n < 2 or a.shape[-1] != a.shape[-2] or a.shape[-1] < 2:
        return x
    return _did(bind1(registry["transpose"], x, axes=(*range(n - 2), n - 1, n - 2)))


TRANSPOSE: dict[str, Callable[[Rule], Rule]] = {
    "cotangents negated": of_cotangents(each(negated)),
    "cotangents doubled": of_cotangents(each(doubled)),
    "cotangents zero": of_cotangents(each(nothing)),
    "cotangents reversed": of_cotangents(each(flipped)),
    "cotangents reversed along the first axis": of_cotangents(each(lambda x: flipped(x, 0))),
    "cotangents turned": of_cotangents(each(turned)),
    "a cotangent forgotten": of_cotangents(lambda cts: without(cts, 0)),
    "another cotangent forgotten": of_cotangents(lambda cts: without(cts, 1)),
    "cotangents swapped": of_cotangents(swapped),
    "a cotangent of the results forgotten": of_cotangents_in(lambda cts: without(cts, 0)),
    "cotangents of the results swapped": of_cotangents_in(swapped),
    "cotangents of the results reversed": of_cotangents_in(each(flipped)),
}


# -- around the rows


def of_rows(change: Callable[[int, Any, Any], Any]) -> Callable[[Rule], Rule]:
    """The results of a rule, and the axes of their rows, changed."""

    def wrap(rule: Rule) -> Rule:
        def batch(size: int, args: Any, dims: Any, **params: Any) -> Any:
            outs, found = rule(size, args, dims, **params)
            pairs = [change(size, y, d) for y, d in zip(outs, found, strict=True)]
            return tuple([y for y, _ in pairs]), tuple([d for _, d in pairs])

        return batch

    return wrap


def of_operands(change: Callable[[int, Any, Any], Any]) -> Callable[[Rule], Rule]:
    """The operands of a rule, and the axes of their rows, changed."""

    def wrap(rule: Rule) -> Rule:
        def batch(size: int, args: Any, dims: Any, **params: Any) -> Any:
            pairs = [change(size, x, d) for x, d in zip(args, dims, strict=True)]
            return rule(size, [x for x, _ in pairs], tuple([d for _, d in pairs]), **params)

        return batch

    return wrap


def _array_rows(x: Any, d: int | None) -> bool:
    return d is not None and not isinstance(aval_of(x), Stack)


def next_axis(size: int, x: Any, d: int | None) -> Any:
    """The rows believed along the next axis."""
    if d is not None and isinstance(aval_of(x), Stack):
        return x, _did(d + 1)
    if not _array_rows(x, d) or len(aval_of(x).shape) < 2:
        return x, d
    return x, _did((d + 1) % len(aval_of(x).shape))


def rows_reversed(size: int, x: Any, d: int | None) -> Any:
    """The rows in the other order."""
    if d == -1:
        return taken(x, range(size - 1, -1, -1)), d
    return (flipped(x, d), d) if _array_rows(x, d) else (x, d)


def shared(size: int, x: Any, d: int | None) -> Any:
    """The rows believed to be one value."""
    return (x, _did(None)) if d is not None else (x, d)


def first_row(size: int, x: Any, d: int | None) -> Any:
    """The first row in place of all."""
    if d == -1:
        return taken(x, [0] * size), d
    if not _array_rows(x, d) or size < 2:
        return x, d
    shape = aval_of(x).shape
    stop = tuple([1 if k == d else n for k, n in enumerate(shape)])
    row = bind1(registry["slice"], x, start=(0,) * len(shape), stop=stop, step=(1,) * len(shape))
    row = bind1(registry["reshape"], row, shape=(*shape[:d], *shape[d + 1 :]))
    axes = tuple([k for k in range(len(shape)) if k != d])
    return _did(bind1(registry["broadcast"], row, shape=shape, axes=axes)), d


BATCH: dict[str, Callable[[Rule], Rule]] = {
    "results: rows along the next axis": of_rows(next_axis),
    "results: rows reversed": of_rows(rows_reversed),
    "results: rows shared": of_rows(shared),
    "results: the first row": of_rows(first_row),
    "operands: rows along the next axis": of_operands(next_axis),
    "operands: rows reversed": of_operands(rows_reversed),
}


# -- around the split


def of_halves(change: Callable[[list[Any], list[Any]], Any]) -> Callable[[Rule], Rule]:
    """The known and the unknown equations, changed."""
    return lambda rule: lambda e, unknown: _did(change(*rule(e, unknown)))


SPLIT: dict[str, Callable[[Rule], Rule]] = {
    "halves swapped": of_halves(lambda known, unknown: (unknown, known)),
    "a known equation forgotten": of_halves(lambda known, unknown: (known[:-1], unknown)),
    "an unknown equation forgotten": of_halves(lambda known, unknown: (known, unknown[:-1])),
    "everything known": of_halves(lambda known, unknown: ([*known, *unknown], [])),
    "nothing known": lambda rule: lambda e, unknown: _did(([], [e])),
    "flags inverted": lambda rule: lambda e, unknown: _did(rule(e, tuple([not u for u in unknown]))),
    "operands unknown": lambda rule: lambda e, unknown: _did(rule(e, (True,) * len(unknown))),
    "the first unknown operand alone": lambda rule: (
        lambda e, unknown: _did(rule(e, tuple([u and not any(unknown[:i]) for i, u in enumerate(unknown)])))
    ),
}
WRAPPERS = {"jvp": JVP, "transpose": TRANSPOSE, "batch": BATCH, "split": SPLIT}


OF_RESULTS = {"tangents of the results swapped", "a cotangent of the results forgotten",
              "cotangents of the results swapped"}  # fmt: skip
FORGOTTEN = ("a tangent forgotten", "another tangent forgotten")  # of the first operand, of the second
OF_OPERANDS = {*FORGOTTEN, "tangents of the operands swapped"}


def wrappers_of(name: str, slot: str) -> dict[str, Callable[[Rule], Rule]]:
    """The faults that may be put around a slot; none that needs two operands or two results, where there is one."""
    op = registry[name]
    if refuses(name, slot):
        return {}
    if slot == "jvp" and getattr(op, "no_derivative", ""):
        return NO_JVP
    faults = WRAPPERS.get(slot, {})
    if slot == "jvp" and not isinstance(op, Op):
        faults = faults | NO_JVP
    if slot == "jvp" and any(getattr(op, "differentiable", ())) and not op.has("transpose"):
        faults = faults | SECOND_ORDER
    one = OF_RESULTS if isinstance(op, Op) else set()
    moves = getattr(op, "differentiable", ())
    one = one | (OF_OPERANDS if len(moves) == 1 else set())
    one = one | {fault for fault, flag in zip(FORGOTTEN, moves, strict=False) if not flag}
    return {fault: make for fault, make in faults.items() if fault not in one}


def wrap(name: str, slot: str, fault: str) -> Callable[[], None]:
    """What puts a fault around a slot, when called."""
    make, rule = wrappers_of(name, slot)[fault], getattr(registry[name], slot)
    return lambda: setattr(registry[name], slot, functools.wraps(rule)(make(rule)))


# -- how structural zeros go through

ZEROS = ("keep", "source", "product", "sum", "guard")


def traits_of(op: Primitive) -> dict[str, Callable[[], None]]:
    """The faults of what `transforms.mask` reads: another trait, no guarded product, another one."""
    faults: dict[str, Callable[[], None]] = {}
    if op.traits.zero == "keep" and op.guarded is None:
        return faults
    guards = ("mask_mul", "mask_div", "mask_both")

    def trait(zero: Any) -> Callable[[], None]:
        return lambda: setattr(op, "traits", dataclasses.replace(op.traits, zero=zero))

    def guard(other: Primitive | None) -> Callable[[], None]:
        return lambda: setattr(op, "guarded", other)

    for value in ZEROS:
        if value != op.traits.zero:
            faults[f"zeros: {op.traits.zero}  →  {value}"] = trait(value)
    if op.guarded is not None:
        faults[f"guarded: {op.guarded.name}  →  none"] = guard(None)
        for g in guards:
            if g != op.guarded.name:
                faults[f"guarded: {op.guarded.name}  →  {g}"] = guard(registry[g])
    return faults
