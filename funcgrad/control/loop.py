"""`loop`: one primitive for every loop. scan, map, fori and while loops, and the rows of a vmap, are loops.

    carry, ys = loop(n, *consts, *carry, *xs)

runs its body n times. The body takes the number of the trip, the constants, the carry and one element of each of xs,
and returns the next carry and one element of each of ys. With `test`, the first carry is a bool that says whether to
go on, and n is only a limit. `reverse` runs the trips from the last to the first.

If the number of trips is static, ys are arrays; otherwise they are stacks (`core.ir.Stack`), and that is how the
reverse mode of a while loop keeps what it needs: its residuals are ys.

    program body(i: i64[], a: f64[], x: f64[]) -> (f64[]) {     loop 3 trips: x = x * a
      b: f64[] = mul x a
      return b
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from funcgrad.base.dtypes import BOOL, INT
from funcgrad.base.errors import ProgramError
from funcgrad.control.assemble import apply, assemble, zero
from funcgrad.core.evaluate import execute
from funcgrad.core.ir import Aval, Equation, Program, Stack, Var, make_aval, stack_of, tangent_aval
from funcgrad.core.links import fixpoint
from funcgrad.core.primitive import Flags, Links, Primitive, Traits
from funcgrad.core.stacked import Stacked, stacked
from funcgrad.core.trace import bind
from funcgrad.transforms.jvp import jvp

T = TypeVar("T")
INDEX = make_aval((), INT)
UNLIMITED = np.int64(np.iinfo(np.int64).max)

loop_p = Primitive("loop", Traits(kind="loop"), "A Program applied again and again.")
loop_p.hidden_params = {"reverse": False, "test": False, "length": None, "snapshots": 0}


def loop(
    body: Program,
    n: Any,
    consts: Sequence[Any],
    carry: Sequence[Any],
    xs: Sequence[Any],
    *,
    length: int | None = None,
    test: bool = False,
    reverse: bool = False,
    snapshots: int = 0,
) -> tuple[Any, ...]:
    """Run `body` n times; the final carry, then ys.

    Parameters
    ----------
    n
        The number of trips, an int64 scalar; with `test` the most there can be.
    length
        n, if it is static: xs and ys are then arrays with that many rows.
    snapshots
        How many carries reverse mode keeps (`loop_snapshots`); 0: what it needs of every trip.
    """
    return bind(
        loop_p,
        n,
        *consts,
        *carry,
        *xs,
        body=body,
        consts=len(consts),
        carry=len(carry),
        length=length,
        test=test,
        reverse=reverse,
        snapshots=snapshots,
    )


def parts(items: Sequence[T], consts: int, carry: int) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
    """What belongs to constants, carry and xs, of something for each operand."""
    at = 1 + consts
    return items[1:at], items[at : at + carry], items[at + carry :]


def strong(aval: Aval) -> Aval:
    """The type, not weak."""
    return make_aval(aval.shape, aval.dtype) if aval.weak else aval


def elem_of(aval: Aval) -> Aval:
    """The type of one element of xs or ys."""
    return aval.elem if isinstance(aval, Stack) else make_aval(aval.shape[1:], aval.dtype)


def rows_of(elem: Aval, length: int | None) -> Aval:
    """The type of ys for elements of this type."""
    if length is None or isinstance(elem, Stack):
        return stack_of(elem)
    return make_aval((length, *elem.shape), elem.dtype)


def _abstract(
    *avals: Aval, body: Program, consts: int, carry: int, length: int | None, test: bool, reverse: bool, snapshots: int
) -> tuple[Aval, ...]:
    cs, ks, xs = parts(avals, consts, carry)
    expected = (INDEX, *cs, *ks, *[elem_of(x) for x in xs])
    outs = body.out_avals
    rest = [strong(a) for a in body.in_avals[1 + consts + carry :]]  # a row of an array is not weak
    if avals[0] != INDEX or (*body.in_avals[: 1 + consts + carry], *rest) != expected or outs[:carry] != tuple(ks):
        types = [", ".join([str(a) for a in group]) for group in (body.in_avals, outs, avals)]
        raise ProgramError(f"loop: a body ({types[0]}) -> ({types[1]}) for operands ({types[2]})")
    if test and (not carry or ks[0] != make_aval((), BOOL)):
        raise ProgramError("loop: the first carry of a loop with a test is not bool[]")
    if length is not None and any(not isinstance(x, Stack) and x.shape[0] != length for x in xs):
        raise ProgramError(f"loop: xs {xs} for {length} trips")
    return (*outs[:carry], *[rows_of(y, length) for y in outs[carry:]])


def _interpret(
    n: Any,
    *args: Any,
    body: Program,
    consts: int,
    carry: int,
    length: int | None,
    test: bool,
    reverse: bool,
    snapshots: int,
) -> tuple[Any, ...]:
    cs, ks, xs = args[:consts], list(args[consts : consts + carry]), args[consts + carry :]
    trips = int(n)
    elems = body.out_avals[carry:]
    ys: list[list[Any]] = [[] for _ in elems]
    i = trips - 1 if reverse else 0
    while 0 <= i < trips and (not test or ks[0]):
        out = execute(body, [np.int64(i), *cs, *ks, *[_row(x, i) for x in xs]])
        ks = out[:carry]
        for y, value in zip(ys, out[carry:], strict=True):
            y.append(value)
        i += -1 if reverse else 1
    if reverse:
        for y in ys:
            y.reverse()
    return (*ks, *[_rows(y, elem, length) for y, elem in zip(ys, elems, strict=True)])


def _evaluate(*args: Any, **params: Any) -> tuple[Any, ...]:
    body = params["body"]
    fixed = 1 + params["consts"] + params["carry"]
    rows = [x.aval if isinstance(x, Stacked) else make_aval(x.shape, x.dtype) for x in args[fixed:]]
    avals = (*body.in_avals[:fixed], *rows)
    key = ("alone", *[params[k] for k in ("consts", "carry", "length", "test", "reverse")], avals)
    return tuple(execute(body.remember(key, lambda: alone(loop_p, avals, params)), args))


def alone(primitive: Primitive, avals: Sequence[Aval], params: dict[str, Any]) -> Program:
    """The Program of one equation: how a loop or branch on plain arrays gets to `execute`."""
    inputs = tuple([Var(a) for a in avals])
    outputs = tuple([Var(a) for a in primitive.abstract(*avals, **params)])
    return Program(inputs, (Equation(primitive, inputs, params, outputs, None),), outputs, primitive.name)


def _row(x: Any, i: int) -> Any:
    return x.at(i) if isinstance(x, Stacked) else x[i]


def _rows(values: list[Any], elem: Aval, length: int | None) -> Any:
    found = stacked(values, elem)
    return found if length is None or isinstance(elem, Stack) else found.data


def links(params: dict[str, Any]) -> Links:
    """How the operands of a loop are tied to its body."""
    body, consts, carry = params["body"], params["consts"], params["carry"]

    def rebuild(bodies: tuple[Program, ...], inputs: Flags, results: Flags) -> dict[str, Any]:
        cs, ks, _ = parts(inputs, consts, carry)
        return {**params, "body": bodies[0], "consts": sum(cs), "carry": sum(ks)}

    carries = tuple([(j, 1 + consts + j) for j in range(carry)])
    return Links((body,), rebuild, carries, (0,) if params["test"] else (), (0,))


# -- forward mode


def _jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
    body, consts, carry = params["body"], params["consts"], params["carry"]
    given = tuple([t is not None for t in tangents])
    derived, flags, out = body.remember(("loop jvp", given, consts, carry), lambda: _derive(given, params))
    n = primals[0]
    cs, ks, xs = parts(primals, consts, carry)
    c_dots, k_dots, x_dots = parts(tangents, consts, carry)
    moving = parts(flags, consts, carry)[1]
    starts = [zero(v.aval) if d is None else d
              for v, d, m in zip(body.inputs[1 + consts :], k_dots, moving, strict=False) if m]  # fmt: skip
    new_consts = [*cs, *[d for d in c_dots if d is not None]]
    new_carry = [*ks, *starts]
    new_xs = [*xs, *[d for d in x_dots if d is not None]]
    results = iter(loop(derived, n, new_consts, new_carry, new_xs, **form(params)))
    take = lambda flags: [next(results) if f else None for f in flags]
    final, final_dots = take([True] * carry), take(out[:carry])
    ys, y_dots = take([True] * (len(out) - carry)), take(out[carry:])
    return (*final, *ys), (*final_dots, *y_dots)


def form(params: dict[str, Any]) -> dict[str, Any]:
    """How a loop runs: what the loops derived from it have in common with it."""
    return {k: params[k] for k in ("length", "test", "reverse", "snapshots")}


def _derive(given: Flags, params: dict[str, Any]) -> tuple[Program, Flags, Flags]:
    """The body of values and tangents; which of its inputs and outputs have a tangent."""
    body, consts, carry = params["body"], params["consts"], params["carry"]
    ((derived, own),), flags, out = fixpoint(links(params), given, lambda b, f: _paired(jvp(b, f)))
    avals = body.in_avals
    cs, ks, xs = parts(avals, consts, carry)
    cf, kf, xf = parts(flags, consts, carry)
    dots = lambda avals, flags: [tangent_aval(a) for a, f in zip(avals, flags, strict=True) if f]
    groups = [[INDEX], cs, dots(cs, cf), ks, dots(ks, kf), xs, dots(xs, xf)]
    moved = (*kf, *out[carry:])

    def function(*args: Any) -> list[Any]:
        i, c, cd, k, kd, x, xd = _grouped(args, groups)
        results = apply(derived, *i, *c, *k, *x, *cd, *kd, *xd)
        values, tangents = results[: len(own)], iter(results[len(own) :])
        found = [next(tangents) if f else None for f in own]
        filled = [zero(a) if d is None and m else d for a, d, m in zip(body.out_avals, found, moved, strict=True)]
        given = lambda items: [d for d in items if d is not None]
        return [*values[:carry], *given(filled[:carry]), *values[carry:], *given(filled[carry:])]

    return assemble(body.name, [a for g in groups for a in g], function), flags, moved


def _paired(result: tuple[Program, Flags]) -> tuple[tuple[Program, Flags], Flags]:
    return result, result[1]


def _grouped(items: Sequence[Any], groups: Sequence[Sequence[Any]]) -> list[Sequence[Any]]:
    """`items` cut into pieces as long as the groups."""
    out, at = [], 0
    for g in groups:
        out.append(items[at : at + len(g)])
        at += len(g)
    return out


loop_p.abstract = _abstract
loop_p.evaluate = _evaluate
loop_p.interpret = _interpret
loop_p.jvp = _jvp
loop_p.links = links
loop_p.effects_of = lambda params: params["body"].effects

__all__ = ["INDEX", "UNLIMITED", "alone", "elem_of", "form", "links", "loop", "loop_p", "parts", "rows_of"]
