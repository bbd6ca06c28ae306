"""Reverse mode of `loop`: split it into the loop that is known and the linear one, and turn the linear one round.

The known loop hands out what the linear one needs of each trip, as more ys. What does not change from trip to trip
is not handed out but computed by both, and the number of the trip is known to both. It stays in the loop, where it
has no derivative if there is no trip: `hoist` takes it out when all derivatives are taken. A loop with a test also
counts its trips: the linear loop, and the transposed one after it, run that many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.base.errors import RuleError
from funcgrad.control.assemble import apply, assemble, zero
from funcgrad.control.hoist import invariants, makers
from funcgrad.control.loop import INDEX, links, loop, loop_p, parts, rows_of
from funcgrad.control.loop_snapshots import backward, given_carries, keeps_snapshots, known_carries, step, whole
from funcgrad.core.check import checked
from funcgrad.core.ir import Atom, Aval, Equation, Literal, Program, Var, tangent_aval
from funcgrad.core.links import fixpoint
from funcgrad.core.primitive import Flags, Linear, registry
from funcgrad.transforms.split import Split, split
from funcgrad.transforms.transpose import transpose

# -- split


def _split(e: Equation, unknown: Flags) -> tuple[list[Equation], list[Equation]]:
    consts, carry = e.params["consts"], e.params["carry"]
    halves, flags, out = _halves(e, unknown)
    if unknown[0] or (e.params["test"] and flags[1 + consts]):
        raise RuleError("loop: the number of trips depends on an unknown value")
    if keeps_snapshots(e.params, [a.aval for a in e.inputs[1 + consts :]]):
        return [_known(e, halves, flags, out, [], [])[0]], [whole(e, halves, out)]
    body = e.params["body"]
    place = dict(zip(body.inputs, e.inputs, strict=True))  # what the body reads → the operand
    kept = set(body.inputs[:1] + body.inputs[1 + consts : 1 + consts + carry])  # changes with the trip: index, carry
    residuals, again = _recomputed(halves, body.inputs[1 : 1 + consts])
    ys = dict(zip(halves.known.outputs, [v for v, u in zip(e.outputs, out, strict=True) if not u], strict=False))
    final = set(e.outputs[:carry])

    fixed: list[tuple[Var, Atom]] = []  # constants of the linear loop: what its body reads, and the operand
    moving: list[tuple[Var, Atom]] = []  # its xs
    saved: list[Var] = []  # what the known body hands out for it
    for v in residuals:
        if v is body.inputs[0]:
            continue
        if v in place and v in body.inputs[1 : 1 + consts]:
            fixed.append((v, place[v]))
        elif v in place and v not in kept:
            moving.append((v, place[v]))
        elif v in ys and ys[v] not in final:
            moving.append((v, ys[v]))
        else:
            saved.append(v)
            moving.append((v, Var(rows_of(v.aval, e.params["length"]))))
    stored = [dict(moving)[v] for v in saved]
    known, trips = _known(e, halves, flags, out, saved, stored)
    linear = _linear(e, halves, again, flags, out, trips, fixed, moving)
    return [known], [linear]


def _recomputed(halves: Split, consts: Sequence[Var]) -> tuple[list[Var], list[Equation]]:
    """What the unknown half reads of the known one, and equations for what is the same in every trip, in its place."""
    read = list(halves.unknown.inputs[: len(halves.forwarded) + halves.computed])
    same = invariants(halves.known, consts)
    again = makers(halves.known, [v for v in read if v in same])
    made = {v for e in again for v in e.outputs}
    leaves = [a for e in again for a in e.inputs if isinstance(a, Var) and a not in made]
    return list(dict.fromkeys([*[v for v in read if v not in made], *leaves])), again


def _halves(e: Equation, unknown: Flags) -> tuple[Split, Flags, Flags]:
    """The halves of the body; which of its inputs and outputs are unknown."""
    consts, carry = e.params["consts"], e.params["carry"]
    (halves,), flags, out = fixpoint(links(e.params), unknown, lambda b, f: _with_flags(split(b, f)))
    carried = flags[1 + consts : 1 + consts + carry]
    if tuple(carried) != out[:carry]:  # an unknown carry that this body sets to a known value
        halves = split(e.params["body"], flags, (*carried, *[False] * (len(out) - carry)))
    return halves, flags, halves.out_unknown


def _with_flags(halves: Split) -> tuple[Split, Flags]:
    return halves, halves.out_unknown


def _known(
    e: Equation, halves: Split, flags: Flags, out: Flags, saved: list[Var], stored: list[Any]
) -> tuple[Equation, Atom]:
    """The loop over the known half, and the number of its trips."""
    p = e.params
    body, consts, carry = halves.known, p["consts"], p["carry"]
    operands = [a for a, f in zip(e.inputs, flags, strict=True) if not f]
    inputs = list(body.inputs)
    outputs = [a for a, u in zip(p["body"].outputs, out, strict=True) if not u]
    results = [v for v, u in zip(e.outputs, out, strict=True) if not u]
    equations = list(body.equations)
    cs, ks, _ = parts(flags, consts, carry)
    n_consts, n_carry = cs.count(False), ks.count(False)
    trips: Atom = e.inputs[0]
    if p["test"]:
        one, zeroth = Literal(INDEX.dtype.type(1), INDEX), Literal(INDEX.dtype.type(0), INDEX)
        count, trips = Var(INDEX), Var(INDEX)
        equations.append(Equation(registry["add"], (inputs[0], one), {}, (count,), e.source))
        at = 1 + n_consts + n_carry
        inputs.insert(at, Var(INDEX))
        operands.insert(at, zeroth)
        outputs.insert(n_carry, count)
        results.insert(n_carry, trips)
        n_carry += 1
    program = checked(Program(tuple(inputs), tuple(equations), (*outputs, *saved), body.name))
    params = {**p, "body": program, "consts": n_consts, "carry": n_carry}
    return Equation(loop_p, tuple(operands), params, (*results, *stored), e.source), trips


def _linear(
    e: Equation,
    halves: Split,
    again: list[Equation],
    flags: Flags,
    out: Flags,
    trips: Atom,
    fixed: list[tuple[Var, Atom]],
    moving: list[tuple[Var, Atom]],
) -> Equation:
    """The loop over the unknown half."""
    p = e.params
    body = halves.unknown
    unknown_inputs = dict(zip(p["body"].inputs, zip(flags, e.inputs, strict=True), strict=True))
    picked = lambda vs: [(v, unknown_inputs[v][1]) for v in vs if unknown_inputs[v][0]]
    cs, ks, xs = parts(p["body"].inputs, p["consts"], p["carry"])
    index = (p["body"].inputs[0], trips)
    pairs = [index, *fixed, *picked(cs), *picked(ks), *moving, *picked(xs)]
    program = checked(Program(tuple([v for v, _ in pairs]), (*again, *body.equations), body.outputs, body.name))
    params = {
        **p,
        "body": program,
        "consts": len(fixed) + len(picked(cs)),
        "carry": len(picked(ks)),
        "test": False,
        "snapshots": 0,
    }
    outputs = tuple([v for v, u in zip(e.outputs, out, strict=True) if u])
    return Equation(loop_p, tuple([a for _, a in pairs]), params, outputs, e.source)


# -- transpose


def _transpose(cts: Any, *args: Any, **params: Any) -> Any:
    consts, carry = params["consts"], params["carry"]
    assert not params["test"], "a loop with a test is not linear"
    linear = tuple([isinstance(a, Linear) for a in args])
    cs, ks, xs = parts(args, consts, carry)
    known = known_carries(params, linear) if params["snapshots"] else (False,) * carry
    body = given_carries(params["body"], consts, known) if any(known) else params["body"]
    k_cts = [c for c, k in zip(cts, known, strict=False) if not k]
    given = tuple([c is not None for c in (*k_cts, *cts[carry:])])
    moving = (*linear[: 1 + consts], *[True] * len(k_cts), *linear[1 + consts + carry :], *[False] * sum(known))
    turned, flags = _remembered_turn(body, consts, len(k_cts), moving, given)
    summed, carried, handed = flags.consts, flags.carry, flags.xs
    lc = [c for c in cs if isinstance(c, Linear)]
    starts = [zero(c.aval) for c, f in zip(lc, summed, strict=True) if f]
    k_avals = body.in_avals[1 + consts : 1 + consts + len(k_cts)]
    starts += [zero(a) if c is None else c for a, c, f in zip(k_avals, k_cts, carried, strict=True) if f]
    fixed = [c for c in cs if not isinstance(c, Linear)]
    rows = [x for x in xs if not isinstance(x, Linear)]
    y_cts = [c for c in cts[carry:] if c is not None]
    if any(known):
        begin = [k for k, f in zip(ks, known, strict=True) if f]
        found = backward(turned, step(params, linear, known), args[0], fixed, begin, starts, rows, y_cts, params)
    else:
        form = {"length": params["length"], "reverse": not params["reverse"]}
        found = loop(turned, args[0], fixed, starts, [*rows, *y_cts], **form)
    results = iter(found)
    c_bars = [next(results) if f else None for f in summed]
    k_bars = iter([next(results) if f else None for f in carried])
    x_bars = [next(results) if f else None for f in handed]
    spread = lambda args, bars: [next(bars) if isinstance(a, Linear) else None for a in args]
    bars = [None if k else next(k_bars) for k in known]
    ends = [bar if isinstance(k, Linear) else None for k, bar in zip(ks, bars, strict=True)]
    return [None, *spread(cs, iter(c_bars)), *ends, *spread(xs, iter(x_bars))]


def _remembered_turn(body: Program, consts: int, carry: int, linear: Flags, given: Flags) -> tuple[Program, _Flags]:
    key = ("loop transpose", linear, given, consts, carry)
    return body.remember(key, lambda: _turn(body, consts, carry, linear, given))


class _Flags:
    """What has a cotangent: the linear constants, all carries, the linear xs."""

    __slots__ = ("carry", "consts", "xs")

    def __init__(self, consts: Flags, carry: Flags, xs: Flags) -> None:
        self.consts, self.carry, self.xs = consts, carry, xs


def _turn(body: Program, consts: int, carry: int, linear: Flags, given: Flags) -> tuple[Program, _Flags]:
    """The body of the transposed loop: the sums of constants' cotangents are carries, in front of the others."""
    cl, _, xl = parts(linear, consts, carry)
    moving = (False, *cl, *[True] * carry, *xl)
    n = cl.count(True)
    while True:
        _, nonzero = transpose(body, moving, given)
        grown = (*[g or f for g, f in zip(given[:carry], nonzero[n : n + carry], strict=True)], *given[carry:])
        if grown == given:
            break
        given = grown
    summed, handed = nonzero[:n], nonzero[n + carry :]
    back, found = transpose(body, moving, given, (*summed, *[False] * (len(nonzero) - n)))
    carried = given[:carry]
    cs, ks, xs = parts(body.in_avals, consts, carry)
    pick = lambda avals, flags: [a for a, f in zip(avals, flags, strict=True) if f]
    not_ = lambda flags: [not f for f in flags]
    groups: list[Sequence[Aval]] = [
        [INDEX],
        pick(cs, not_(cl)),
        [tangent_aval(a) for a in pick(pick(cs, cl), summed)],
        [tangent_aval(a) for a in pick(ks, carried)],
        pick(xs, not_(xl)),
        [tangent_aval(a) for a in pick(body.out_avals[carry:], given[carry:])],
    ]

    def function(*args: Any) -> list[Any]:
        at, pieces = 0, []
        for g in groups:
            pieces.append(args[at : at + len(g)])
            at += len(g)
        i, fixed, sums, k_cts, rows, y_cts = pieces
        results = iter(apply(back, *i, *fixed, *rows, *k_cts, *y_cts, *sums))
        bars = [next(results) if f else None for f in found]
        c_bars = [b for b, f in zip(bars[:n], summed, strict=True) if f]
        k_bars = [zero(a) if b is None else b for a, b, f in zip(ks, bars[n : n + carry], carried, strict=True) if f]
        return [*c_bars, *k_bars, *[b for b, f in zip(bars[n + carry :], handed, strict=True) if f]]

    avals = [a for g in groups for a in g]
    return assemble(body.name, avals, function), _Flags(summed, carried, handed)


loop_p.split = _split
loop_p.transpose = _transpose
