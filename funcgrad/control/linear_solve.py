"""`linear_solve`: the solution of a linear system that is given by what its matrix does, and by how it is solved.

    x = linear_solve[matvec=A solve=f transpose_solve=g captured=1] c b        A(c, x) -> b;  f(c, b) -> x

Derivatives solve the same system (A dx = db - dA x) and the transposed one; the solver itself is never differentiated.
"""

from __future__ import annotations

from typing import Any

from funcgrad.base.errors import RuleError
from funcgrad.control.body import computed, inlined, push
from funcgrad.core.check import checked
from funcgrad.core.ir import Aval, Literal, Program
from funcgrad.core.primitive import Linear, Links, Primitive, Traits
from funcgrad.core.trace import bind
from funcgrad.ops.arithmetic import neg, sub
from funcgrad.ops.broadcasting import align
from funcgrad.ops.op import zeros_of
from funcgrad.transforms.batch import batch_onto
from funcgrad.transforms.transpose import transpose

linear_solve_p = Primitive("linear_solve", Traits(kind="program"), "The solution of a linear system, by a solver.")
linear_solve_p.hidden_params = {"captured": 0, "transpose_solve": None}


def transposed(matvec: Program, captured: int) -> Program:
    """The transposed system: its matrix, applied to a cotangent."""
    return matvec.remember(("transposed", captured), lambda: _transposed(matvec, captured))


def _transposed(matvec: Program, captured: int) -> Program:
    unknowns = len(matvec.inputs) - captured
    linear = (False,) * captured + (True,) * unknowns
    program, nonzero = transpose(matvec, linear, (True,) * len(matvec.outputs))
    found = iter(program.outputs)
    outputs = [
        next(found) if flag else Literal(a.dtype.type(0), a)
        for flag, a in zip(nonzero, matvec.in_avals[captured:], strict=True)
    ]
    return checked(Program(program.inputs, program.equations, tuple(outputs), program.name, program.input_names))


def _abstract(*avals: Aval, matvec: Any, solve: Program, transpose_solve: Any, captured: int) -> tuple[Aval, ...]:
    return solve.out_avals


def _evaluate(*values: Any, matvec: Any, solve: Program, transpose_solve: Any, captured: int) -> tuple[Any, ...]:
    return computed(solve, *values)


def _jvp(primal: Any, primals: Any, tangents: Any, *, matvec: Program, captured: int, **solvers: Any) -> Any:
    outs = primal()
    right = list(tangents[captured:])
    if any([t is not None for t in tangents[:captured]]):  # A dx = db - dA x
        _, moved = push(inlined, matvec, [*primals[:captured], *outs], [*tangents[:captured], *[None] * len(outs)])
        right = [_difference(b, m) for b, m in zip(right, moved, strict=True)]
    if all([b is None for b in right]):
        return outs, right
    right = [zeros_of(x) if b is None else b for b, x in zip(right, primals[captured:], strict=True)]
    return outs, bind(linear_solve_p, *primals[:captured], *right, matvec=matvec, captured=captured, **solvers)


def _difference(a: Any, b: Any) -> Any:
    return a if b is None else neg(b) if a is None else sub(a, b)


def _transpose(
    cts: Any, *args: Any, matvec: Program, solve: Program, transpose_solve: Program | None, captured: int
) -> Any:
    if transpose_solve is None:
        raise RuleError(
            "custom_linear_solve: reverse mode solves the transposed system, and needs transpose_solve",
            hint="transpose_solve=lambda vecmat, ct: ..., or symmetric=True",
        )
    given = [zeros_of(a) if c is None else c for c, a in zip(cts, solve.out_avals, strict=True)]
    solvers = {"solve": transpose_solve, "transpose_solve": solve}
    other = transposed(matvec, captured)
    results = bind(linear_solve_p, *args[:captured], *given, matvec=other, captured=captured, **solvers)
    bars = [r if isinstance(a, Linear) else None for r, a in zip(results, args[captured:], strict=True)]
    return [None] * captured + bars


def _batch(
    size: int, args: Any, dims: Any, *, matvec: Program, solve: Program, transpose_solve: Any, captured: int
) -> Any:
    right = [align(b, d, 0, size) for b, d in zip(args[captured:], dims[captured:], strict=True)]

    def rows(program: Program) -> Program:
        inputs = (*dims[:captured], *[0] * (len(program.inputs) - captured))
        return batch_onto(program, size, inputs, (0,) * len(program.outputs))

    results = bind(
        linear_solve_p,
        *args[:captured],
        *right,
        matvec=rows(matvec),
        solve=rows(solve),
        transpose_solve=None if transpose_solve is None else rows(transpose_solve),
        captured=captured,
    )
    return results, (0,) * len(results)


linear_solve_p.abstract = _abstract
linear_solve_p.evaluate = _evaluate
linear_solve_p.jvp = _jvp
linear_solve_p.transpose = _transpose
linear_solve_p.batch = _batch
linear_solve_p.links = lambda params: Links(
    (params["solve"],), lambda bodies, *_: {**params, "solve": bodies[0]}, fixed=True
)
linear_solve_p.effects_of = lambda params: params["solve"].effects
