"""What is the same in every trip of a loop, taken out of it.

loop: x = x * sin(a)        becomes        b = sin a; loop: x = x * b
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from funcgrad.core.ir import Atom, Equation, Literal, Program, Var

MOVEMENT = ("index", "view", "iota")  # kinds that cost nothing where they are


def invariants(body: Program, fixed: Iterable[Var]) -> set[Any]:
    """The values of a body that are the same in every trip, and may be computed although no trip is run."""
    found: set[Any] = set(fixed)
    for e in body.equations:
        plain = not e.primitive.traits.may_raise and e.primitive.links is None and not e.primitive.effects_of(e.params)
        if plain and all([isinstance(a, Literal) or a in found for a in e.inputs]):
            found.update(e.outputs)
    return found


def makers(body: Program, wanted: Iterable[Var]) -> list[Equation]:
    """The equations that `wanted` values of a body are made by, from its inputs."""
    needed = set(wanted) - set(body.inputs)
    chain = []
    for e in reversed(body.equations):
        if not needed.isdisjoint(e.outputs):
            chain.append(e)
            needed.update([a for a in e.inputs if isinstance(a, Var)])
    return chain[::-1]


def computed_before(
    body: Program, wanted: Sequence[Var], place: dict[Var, Atom]
) -> tuple[list[Equation], dict[Var, Atom]]:
    """Equations, to stand before a loop, that compute `wanted` values of its body, and these values there.

    `place` says for each input of the body which operand of the loop it is.
    """
    env: dict[Any, Atom] = dict(place)
    equations = []
    for e in makers(body, wanted):
        outputs = tuple([Var(v.aval) for v in e.outputs])
        inputs = tuple([a if isinstance(a, Literal) else env[a] for a in e.inputs])
        equations.append(e.replace(inputs=inputs, outputs=outputs))
        env.update(zip(e.outputs, outputs, strict=True))
    return equations, {v: env[v] for v in wanted if v not in place}


def hoist(e: Equation) -> tuple[list[Equation], Equation]:
    """A loop without what is the same in every trip, and the equations that compute this before it."""
    body, consts = e.params["body"], e.params["consts"]
    same = invariants(body, body.inputs[1 : 1 + consts])
    made = {v: q for q in body.equations for v in q.outputs}
    costly = {v for v in same if v in made and made[v].primitive.traits.kind not in MOVEMENT}
    rest = [q for q in body.equations if costly.isdisjoint(q.outputs)]
    read = {a for q in rest for a in q.inputs} | set(body.outputs)
    wanted = [v for q in body.equations for v in q.outputs if v in costly and v in read]
    if not wanted:
        return [], e
    before, found = computed_before(body, wanted, dict(zip(body.inputs, e.inputs, strict=True)))
    at = 1 + consts
    inputs = (*body.inputs[:at], *wanted, *body.inputs[at:])
    operands = (*e.inputs[:at], *[found[v] for v in wanted], *e.inputs[at:])
    params = {**e.params, "body": Program(inputs, tuple(rest), body.outputs, body.name), "consts": consts + len(wanted)}
    return before, e.replace(inputs=operands, params=params)
