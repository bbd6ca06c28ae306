"""Loops that would need more registers than a thread has: in what order they do things, and when they are several.

A GPU gives a thread 255 registers at most, and what does not fit goes through memory. So whatever is done with a value
is done as early as it can be, and reductions whose accumulators are too many are shared out between kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from funcgrad.core.ir import Equation
from funcgrad.lowering.cuda.plan import ALIGNED
from funcgrad.lowering.kernels import Loop
from funcgrad.lowering.loops import reduction_of

WORDS = 96  # of 32 bits: what the accumulators of a thread take, at most

Use = tuple[str, int, list[int]]
"""``"write"`` or ``"reduction"`` with its number, or ``"rest"``; and the equations to compute before."""


def parts(loop: Loop) -> list[Loop]:
    """Loops with some of the reductions each; the last one stores values, which may overwrite what the others read."""
    groups: list[list[Equation]] = []
    room = 0
    for e in loop.reductions:
        words = sum([max((d or e.inputs[0].aval.dtype).itemsize // 4, 1) for d, _ in reduction_of(e).start])
        words *= max(ALIGNED // e.inputs[0].aval.dtype.itemsize, 1)
        if words > room:
            groups.append([])
            room = WORDS
        groups[-1].append(e)
        room -= words
    if len(groups) < 2:
        return [loop]
    used = [needed(loop, [a for e in group for a in e.inputs]) for group in groups[:-1]]
    rest = needed(loop, [*[a for e in groups[-1] for a in e.inputs], *[w.value for w in loop.writes]])
    rest |= set(range(len(loop.equations))).difference(*used)
    pick = lambda some: [loop.equations[j] for j in sorted(some)]
    parts = [replace(loop, equations=pick(u), reductions=g, writes=[]) for u, g in zip(used, groups, strict=False)]
    return [*parts, replace(loop, equations=pick(rest), reductions=groups[-1])]


def needed(loop: Loop, atoms: Sequence[Any]) -> set[int]:
    """The numbers of the equations of a loop that some of its values come from."""
    maker = {v: j for j, e in enumerate(loop.equations) for v in e.outputs}
    found, waiting = set(), list(atoms)
    while waiting:
        j = maker.get(waiting.pop(), -1)
        if j >= 0 and j not in found:
            found.add(j)
            waiting += loop.equations[j].inputs
    return found


def uses(loop: Loop) -> list[Use]:
    """What a loop does with values, in the order of these; last the equations that nothing needs."""
    made = {v: j for j, e in enumerate(loop.equations) for v in e.outputs}
    writes = sorted(range(len(loop.writes)), key=lambda k: made.get(loop.writes[k].value, -1))
    every = [("write", k, needed(loop, [loop.writes[k].value])) for k in writes]
    every += [("reduction", k, needed(loop, e.inputs)) for k, e in enumerate(loop.reductions)]
    order: list[Use] = []
    done: set[int] = set()
    for role, k, equations in [*every, ("rest", 0, {*made.values()})]:
        order.append((role, k, sorted(equations - done)))
        done |= equations
    return order


def most_alive(loop: Loop) -> int:
    """How many words of values a thread holds at once, when it computes them in that order."""
    order = [j for _, _, equations in uses(loop) for j in equations]
    at = {v: k for k, j in enumerate(order) for v in loop.equations[j].outputs}
    last = dict(at)
    for k, j in enumerate(order):
        last |= {a: k for a in loop.equations[j].inputs if a in at}
    change = [0] * (len(order) + 1)
    for v, k in at.items():
        words = max(v.aval.dtype.itemsize // 4, 1)
        change[k] += words
        change[last[v]] -= words
    alive = most = 0
    for c in change:
        alive += c
        most = max(most, alive)
    return most
