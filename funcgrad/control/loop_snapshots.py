"""Reverse mode of a loop that keeps a few carries: the others are computed again, from the nearest one before them.

    loop[body=f snapshots=s]        its linear half is a loop over all of f, on the same operands
    transposed                      for i in n - 1 ... 0:
                                        from the last snapshot, f step by step to trip i, with snapshots on the way
                                        the transposed body of trip i

Which carries are kept is Griewank and Walther's binomial schedule: l trips from a snapshot on, with S places (its own
counted) and at most r passes over each trip, can be l <= C(S + r, r). A split after m trips leaves m of them for S
places and r - 1 passes, and l - m for S - 1 places and r passes. Three numbers per snapshot (its trip, r and the
binomial coefficient) are all there is to it, so that the Program is the same size for every n and s.

References
----------
Griewank and Walther, "Algorithm 799: revolve", ACM Transactions on Mathematical Software 26 (2000), section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL
from funcgrad.control.assemble import apply, assemble, element, put_element
from funcgrad.control.loop import INDEX, UNLIMITED, elem_of, links, loop, loop_p, parts
from funcgrad.core.check import checked
from funcgrad.core.ir import Aval, Equation, Program, Stack, Var, make_aval
from funcgrad.core.links import fixpoint
from funcgrad.core.primitive import Flags
from funcgrad.ops.arithmetic import add, mul, select, sub
from funcgrad.ops.comparison import eq, lt
from funcgrad.ops.extrema import maximum, minimum
from funcgrad.ops.op import aval_of, constant
from funcgrad.ops.rounding import floor_divide
from funcgrad.transforms.prune import prune
from funcgrad.transforms.split import Split, split

ONE, ZERO = np.int64(1), np.int64(0)


def keeps_snapshots(params: dict[str, Any], avals: Sequence[Aval]) -> bool:
    """Whether reverse mode of a loop goes by snapshots: not of stacks, and not if its effects would happen again."""
    able = not params["test"] and not params["body"].effects
    return bool(params["snapshots"]) and able and not any([isinstance(a, Stack) for a in avals])


def whole(e: Equation, halves: Split, out: Flags) -> Equation:
    """The loop over the unknown half of a body, which computes the known half again."""
    body, carry = e.params["body"], e.params["carry"]
    wanted = [u or j < carry for j, u in enumerate(out)]
    outputs = tuple([a for a, w in zip(body.outputs, wanted, strict=True) if w])
    equations = (*halves.known.equations, *halves.unknown.equations)
    program = checked(prune(Program(body.inputs, equations, outputs, body.name)))
    results = tuple([v if u else Var(v.aval) for v, u, w in zip(e.outputs, out, wanted, strict=True) if w])
    return Equation(loop_p, e.inputs, {**e.params, "body": program}, results, e.source)


# -- the body of the transposed loop


def known_carries(params: dict[str, Any], linear: Flags) -> Flags:
    """Which carries of a loop do not depend on its linear operands."""
    _, flags, _ = fixpoint(links(params), linear, lambda b, f: (None, split(b, f).out_unknown))
    return tuple([not f for f in parts(flags, params["consts"], params["carry"])[1]])


def step(params: dict[str, Any], linear: Flags, known: Flags) -> Program:
    """The Program from the number of a trip, the known constants, carries and xs to the next known carries."""
    body, consts = params["body"], params["consts"]
    _, xs = parts(linear, consts, params["carry"])[::2]
    unknown = (*linear[: 1 + consts], *[not k for k in known], *xs)
    outputs = tuple([a for a, k in zip(body.outputs, known, strict=False) if k])
    equations = split(body, unknown).known.equations
    inputs = tuple([v for v, u in zip(body.inputs, unknown, strict=True) if not u])
    return checked(prune(Program(inputs, equations, outputs, body.name)))


def given_carries(body: Program, consts: int, known: Flags) -> Program:
    """A body that gets its known carries from outside: they are its last inputs, and it does not return them."""
    carry = len(known)
    cs, ks, xs = parts(body.inputs, consts, carry)
    linear = [v for v, k in zip(ks, known, strict=True) if not k]
    given = [v for v, k in zip(ks, known, strict=True) if k]
    outputs = [a for a, k in zip(body.outputs, (*known, *[False] * (len(body.outputs) - carry)), strict=True) if not k]
    inputs = (body.inputs[0], *cs, *linear, *xs, *given)
    return checked(prune(Program(inputs, body.equations, tuple(outputs), body.name)))


# -- the schedule


def start(n: Any, places: int) -> list[Any]:
    """The passes that n trips need, and the binomial coefficient that goes with them."""
    first = [lt(ONE, n), ZERO, ONE]

    def more(_: Any, n: Any, go: Any, r: Any, b: Any) -> list[Any]:
        r = add(r, ONE)
        b = floor_divide(mul(b, add(r, np.int64(places))), r)
        return [lt(b, n), r, b]

    body = assemble("passes", [INDEX, INDEX, make_aval((), BOOL), INDEX, INDEX], more)
    return list(loop(body, UNLIMITED, [n], first, [], test=True)[1:])


def division(trips: Any, places: Any, r: Any, b: Any) -> tuple[Any, Any, Any]:
    """After how many of these trips the next snapshot is, and the binomial coefficients of what is before and after."""
    before = floor_divide(mul(b, r), add(places, r))  # C(S + r - 1, S)
    corner = floor_divide(mul(before, places), maximum(sub(add(places, r), ONE), ONE))  # C(S + r - 2, S - 1)
    after = maximum(minimum(before, sub(trips, corner)), ONE)
    return select(lt(ONE, places), after, sub(trips, ONE)), before, sub(b, before)


def reach(
    program: Program, i: Any, state: Sequence[Any], given: Sequence[Any], rows: int, n: Any, reverse: bool
) -> tuple[list[Any], list[Any]]:
    """The carries that trip i begins with, and the snapshots after it.

    `state` is the place of the last snapshot, the arrays of trips, passes and coefficients, and those of carries.
    `given` are the constants of `program` and then its xs, as whole arrays, so many as `rows`.
    """
    top, at, *_ = state
    places = aval_of(at).shape[0] - 1
    count = len(state) - 4
    consts = len(given) - rows
    kept = [element(x, 0, top) for x in state[4:]]
    q = element(at, 0, top)
    avals = lambda items: [aval_of(x) for x in items]

    def advance(j: Any, q: Any, n: Any, *rest: Any) -> list[Any]:
        trip = add(q, j)
        index = sub(sub(n, ONE), trip) if reverse else trip
        fixed, arrays, carry = rest[:consts], rest[consts : len(given)], rest[len(given) :]
        return apply(program, index, *fixed, *carry, *[element(x, 0, index) for x in arrays])

    steps = assemble("advance", [INDEX, INDEX, INDEX, *avals(given), *avals(kept)], advance)

    def save(_: Any, i: Any, n: Any, *rest: Any) -> list[Any]:
        operands, (_, q, *rest) = rest[: len(given)], list(rest[len(given) :])
        carry, (top, at, passes, coefficients), arrays = rest[:count], rest[count : count + 4], rest[count + 4 :]
        free = sub(np.int64(places), top)
        r, b = element(passes, 0, top), element(coefficients, 0, top)
        m, before, behind = division(sub(add(i, ONE), q), free, r, b)
        carry = loop(steps, m, [q, n, *operands], carry, [], snapshots=places)
        q, above = add(q, m), add(top, ONE)
        passes = put_element(put_element(passes, sub(r, ONE), top), r, above)
        coefficients = put_element(put_element(coefficients, before, top), behind, above)
        arrays = [put_element(x, c, above) for x, c in zip(arrays, carry, strict=True)]
        top = select(lt(ONE, free), above, top)
        return [lt(q, i), q, *carry, top, put_element(at, q, above), passes, coefficients, *arrays]

    begin = [lt(q, i), q, *kept, *state]
    middle = assemble("snapshots", [INDEX, INDEX, INDEX, *avals(given), *avals(begin)], save)
    _, _, *rest = loop(middle, UNLIMITED, [i, n, *given], begin, [], test=True)
    carry, (top, at, *others) = rest[:count], rest[count:]
    used = eq(element(at, 0, top), i)
    return carry, [select(used, sub(top, ONE), top), at, *others]


def initial(n: Any, carry: Sequence[Any], places: int) -> list[Any]:
    """The state of `reach` before the first of n trips: one snapshot, of what the loop begins with.

    One more place is there to write to, when none is free.
    """
    r, b = start(n, places)
    numbers = [put_element(constant(0, make_aval((places + 1,), INDEX.dtype)), x, ZERO) for x in (ZERO, r, b)]
    arrays = [put_element(constant(0, make_aval((places + 1, *a.shape), a.dtype)), x, ZERO)
              for x, a in zip(carry, [aval_of(x) for x in carry], strict=True)]  # fmt: skip
    return [ZERO, *numbers, *arrays]


def backward(
    turned: Program,
    program: Program,
    n: Any,
    fixed: Sequence[Any],
    carry: Sequence[Any],
    sums: Sequence[Any],
    rows: Sequence[Any],
    cts: Sequence[Any],
    params: dict[str, Any],
) -> tuple[Any, ...]:
    """The results of the transposed loop.

    Parameters
    ----------
    turned
        The transposed body: the trip, `fixed`, `sums`, one of `rows`, the carries of that trip, one of `cts`.
    program
        What makes the next carries: the trip, `fixed`, the carries, one of `rows`.
    """
    reverse, places = params["reverse"], params["snapshots"]
    state = initial(n, carry, places)
    given = [n, *fixed, *rows]
    groups = [[n], fixed, rows, state, sums, rows, cts]

    def function(i: Any, *items: Any) -> list[Any]:
        at, pieces = 0, []
        for g in groups:
            pieces.append(items[at : at + len(g)])
            at += len(g)
        (n,), fixed, arrays, state, sums, elements, own = pieces
        trip = sub(sub(n, ONE), i) if reverse else i
        carry, state = reach(program, trip, state, [*fixed, *arrays], len(arrays), n, reverse)
        return [*state, *apply(turned, i, *fixed, *sums, *elements, *carry, *own)]

    avals = [aval_of(x) for g in groups[:5] for x in g] + [elem_of(aval_of(x)) for g in groups[5:] for x in g]
    body = assemble(turned.name, [INDEX, *avals], function)
    form = {"length": params["length"], "reverse": not reverse, "snapshots": places}
    return loop(body, n, given, [*state, *sums], [*rows, *cts], **form)[len(state) :]
