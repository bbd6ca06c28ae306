"""First stage of lowering: one flat Program, without repetition.

In: a Program as traced. Out: an equal Program in which calls are inlined, an operation that was written twice is
computed once, exact operations on constants are folded, arrays that are constant but for a few diagonals are kept as
these (`diagonals`), what is the same in every trip of a loop stands before it, and dead equations are gone. What stands
on two sides of a barrier stays two operations. It happens here and nowhere earlier: differentiating first keeps the
order of cotangent sums.

    a = mul x 2.0; b = call[f] x; c = add a b     with f: mul x 2.0     becomes     a = mul x 2.0; c = add a a
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.control.hoist import hoist
from funcgrad.core.check import checked
from funcgrad.core.ir import Atom, Equation, Literal, Program, Var, static_key
from funcgrad.lowering.diagonals import along_diagonals
from funcgrad.transforms.prune import prune


def simplify(program: Program) -> Program:
    """`program` with calls inlined, common subexpressions shared, constants folded and dead code dropped."""
    return program.remember("simplified", lambda: _simplify(program))


def _simplify(program: Program) -> Program:
    state = _State()
    env: dict[Any, Atom] = {v: v for v in program.inputs}
    state.visit(program.equations, env)
    outputs = tuple([_read(env, a) for a in program.outputs])
    flat = prune(_without_barriers(_with(program, state, outputs)))
    state = _State()
    outputs = along_diagonals(flat, state)
    return checked(flat if outputs is None else _with(program, state, outputs))


def _with(program: Program, state: _State, outputs: tuple[Atom, ...]) -> Program:
    return prune(Program(program.inputs, tuple(state.equations), outputs, program.name, program.input_names))


def _with_simple_bodies(e: Equation) -> Equation:
    """An equation that holds Programs, with these simplified."""
    assert e.primitive.links is not None
    links = e.primitive.links(e.params)
    everything = (True,) * len(e.inputs), (True,) * len(e.outputs)
    return e.replace(params=links.rebuild(tuple([_updates_late(simplify(b)) for b in links.bodies]), *everything))


def _updates_late(program: Program) -> Program:
    """`program` in which an array is changed when its new values are needed: after the reads of the old ones.

    Then it can be changed in place.
    """
    waiting: dict[Any, Equation] = {}
    equations: list[Equation] = []
    for e in program.equations:
        equations += [waiting.pop(a) for a in dict.fromkeys(e.inputs) if a in waiting]
        if e.primitive.traits.kind in ("update", "scatter"):
            waiting[e.outputs[0]] = e
        else:
            equations.append(e)
    ordered = (*equations, *waiting.values())
    return Program(program.inputs, ordered, program.outputs, program.name, program.input_names)


def _without_barriers(program: Program) -> Program:
    """`program` in which the results of barriers are their operands: they have kept apart what had to be."""
    if not any([e.primitive.traits.kind == "barrier" for e in program.equations]):
        return program
    env: dict[Atom, Atom] = {}
    equations = []
    for e in program.equations:
        inputs = tuple([env.get(a, a) for a in e.inputs])
        if e.primitive.traits.kind == "barrier":
            env.update(zip(e.outputs, inputs, strict=True))
        else:
            equations.append(e.replace(inputs=inputs))
    outputs = tuple([env.get(a, a) for a in program.outputs])
    return Program(program.inputs, tuple(equations), outputs, program.name, program.input_names)


def _read(env: dict[Any, Atom], atom: Atom) -> Atom:
    return atom if isinstance(atom, Literal) else env[atom]


class _State:
    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.seen: dict[Any, tuple[Atom, ...]] = {}

    def visit(self, equations: Sequence[Equation], env: dict[Any, Atom]) -> None:
        """Append the equations, renamed by `env`, which learns their outputs."""
        for e in equations:
            inputs = tuple([_read(env, a) for a in e.inputs])
            if e.primitive.traits.kind == "loop":
                before, e = hoist(_with_simple_bodies(e))
                self.visit(before, env)
                inputs = tuple([_read(env, a) for a in e.inputs])
            elif e.primitive.traits.kind == "branch":
                e = _with_simple_bodies(e)
            if e.primitive.traits.kind == "identity":
                env.update(zip(e.outputs, inputs, strict=True))
            elif e.primitive.traits.kind == "program":
                assert e.primitive.links is not None
                (body,) = e.primitive.links(e.params).bodies
                inner: dict[Any, Atom] = dict(zip(body.inputs, inputs, strict=True))
                self.visit(body.equations, inner)
                env.update(zip(e.outputs, [_read(inner, a) for a in body.outputs], strict=True))
            else:
                env.update(zip(e.outputs, self.emit(e, inputs), strict=True))

    def emit(self, e: Equation, inputs: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """The results of one equation: found, folded, or recorded."""
        if e.primitive.effects_of(e.params):
            outputs = tuple([Var(v.aval) for v in e.outputs])
            self.equations.append(e.replace(inputs=inputs, outputs=outputs))
            return outputs
        e = _unguarded(e, inputs)
        atoms = tuple([a.key if isinstance(a, Literal) else a for a in inputs])
        key = (e.primitive, atoms, tuple([(k, static_key(v)) for k, v in sorted(e.params.items())]))
        found = self.seen.get(key)
        if found is None:
            found = self.seen[key] = _folded(e, inputs) or _unchanged(e, inputs) or self._record(e, inputs)
        return found

    def _record(self, e: Equation, inputs: tuple[Atom, ...]) -> tuple[Atom, ...]:
        outputs = tuple([Var(v.aval) for v in e.outputs])
        self.equations.append(e.replace(inputs=inputs, outputs=outputs))
        if e.primitive.traits.kind == "barrier":  # constants go through: what is made of them is folded on both sides
            return tuple([a if isinstance(a, Literal) else v for a, v in zip(inputs, outputs, strict=True)])
        return outputs


def _folded(e: Equation, inputs: tuple[Atom, ...]) -> tuple[Atom, ...] | None:
    """The results of an exact elementwise operation on constants, as constants."""
    traits = e.primitive.traits
    if traits.kind in ("view", "window", "gather") and isinstance(inputs[0], Literal):
        return (Literal(inputs[0].value, e.outputs[0].aval),)  # a constant, moved, is the same constant
    if not (traits.exact and traits.kind == "elementwise" and inputs):
        return None
    scalars = []
    for a in inputs:
        if not isinstance(a, Literal):
            return None
        scalars.append(a.value)
    with np.errstate(all="ignore"):
        values = e.primitive.evaluate(*scalars, **e.params)
    return tuple([Literal(np.asarray(v)[()], o.aval) for v, o in zip(values, e.outputs, strict=True)])


def _unguarded(e: Equation, inputs: tuple[Atom, ...]) -> Equation:
    """A guarded product or quotient with a finite positive constant is the plain one: the same bits, zeros too."""
    plain = e.primitive.unguarded
    if plain is None or not isinstance(inputs[1], Literal) or not 0 < inputs[1].value < np.inf:
        return e
    return Equation(plain, e.inputs, e.params, e.outputs, e.source)


def _unchanged(e: Equation, inputs: tuple[Atom, ...]) -> tuple[Atom, ...] | None:
    """The other operand, where one is the neutral constant of the operation: ``x * 1``, ``x - 0.0``, ``x / 1``."""
    for position, neutral in e.primitive.neutral.items():
        a, other = inputs[position], inputs[1 - position]
        is_neutral = isinstance(a, Literal) and a.aval.dtype.kind in "biuf" and a.value == neutral
        if is_neutral and not np.signbit(a.value) and other.aval == e.outputs[0].aval:
            return (other,)
    return None
