"""A function compiled for a GPU that is not there, executed by the interpreter of PTX, against the target of the CPU.

Exact operations and elementwise functions have the bits of the CPU; what adds or multiplies many numbers does so in
another order. What stands in the code of the kernels is checked along the way (`check_code`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.core.ir import Equation, Program, subprograms
from funcgrad.core.trace import eagerly
from funcgrad.lowering.cuda.executable import CudaExecutable, ptx_of
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.machine import host
from tests.cuda.interpreted import Interpreted
from tests.ptx.parse import parse
from tests.ptx.static import Static
from tests.rule_checker import TOLERANCES, same_bits

ARCHS = ("sm_75", "sm_80", "sm_90")
REORDERED = {
    "reduce",
    "cumulative",
    "scatter",
    "dot",
    "solve",
}  # kinds whose inexact ones add in another order on a GPU
DOUBLE = {"pow", "erfinv", "linear_recurrence", "sinc", "sin", "cos", "tan"}
"""What computes in float64 for float32, as on the CPU: sin, cos and tan for large angles, sinc for its derivatives."""
DIVIDE = {"floor_divide", "remainder", "fmod", "lcm", "gcd"}
Function = Callable[..., Any]


@cache
def device(arch: str) -> Interpreted:
    """An interpreter of PTX for an architecture."""
    return Interpreted(ARCHS.index(arch), arch)


def equations(program: Program) -> Iterator[Equation]:
    """All of them, those of bodies too."""
    for e in program.equations:
        yield e
        for _, body in subprograms(e):
            yield from equations(body)


def compiled(f: Function, args: Sequence[Any], arch: str = "sm_80") -> CudaExecutable:
    """A function for a GPU, whose code was checked."""
    with eagerly():
        executable = CudaExecutable(fg.make_program(f)(*args), device(arch))
        check_code(executable, arch)
        return executable


def compared(f: Function, args: Sequence[Any], arch: str = "sm_80", scale: float = 1.0) -> list[Any]:
    """The results on the GPU, when they are those of the CPU.

    Parameters
    ----------
    scale
        Where sums are in another order, results may differ by the rounding of numbers that large.
    """
    program = fg.make_program(f)(*args)
    values = [np.asarray(x) for x in fg.tree.leaves(args)]
    with eagerly():
        expected = [np.asarray(x) for x in Executable(program)(values)]
    executable = compiled(f, args, arch)
    found = [np.asarray(x) for x in executable(values)]
    assert len(found) == len(expected)
    same = has_same_bits(program)
    for k, (x, y) in enumerate(zip(found, expected, strict=True)):
        assert x.dtype == y.dtype and x.shape == y.shape
        if same or x.dtype.kind != "f":
            assert same_bits(x, y), (k, x, y)
        else:
            finite = np.abs(y[np.isfinite(y)])
            size = max(scale, float(finite.max(initial=0.0)))
            np.testing.assert_allclose(x, y, rtol=0, atol=TOLERANCES[x.dtype].same * size)
    return found


def has_same_bits(program: Program) -> bool:
    """Whether results have the bits of the CPU: exact operations do, others if a processor has `fma` as every GPU."""
    inexact = [e.primitive.traits.kind for e in equations(program) if not e.primitive.traits.exact]
    return not REORDERED.intersection(inexact) and (host().fma or not set(inexact) - {"loop", "branch", "program"})


# -- code


def check_code(executable: CudaExecutable, arch: str) -> None:
    """No kernel contracts, computes in float64 without being asked, divides by 64 bits, or has a stack."""
    program = executable.program
    every = list(equations(program))
    names, kinds = {e.primitive.name for e in every}, {e.primitive.traits.kind for e in every}
    types = {x.aval.dtype for e in every for x in (*e.inputs, *e.outputs)}
    exact = all([e.primitive.traits.exact or e.primitive.traits.kind in ("loop", "branch", "program") for e in every])
    module = parse(ptx_of(executable.module, arch))
    for name in [f.name for f in module.functions.values() if f.entry]:
        code = Static(module, name)
        if exact:
            assert not code.opcodes("fma"), name
        if np.dtype(np.float64) not in types and not names & DOUBLE:
            assert not code.opcodes("f64"), (name, code.opcodes("f64"))
        if not names & DIVIDE:
            assert not code.opcodes("div.s64", "div.u64", "rem.s64", "rem.u64"), name
        if not kinds & {"loop", "branch"}:
            assert not code.opcodes("local"), (name, code.opcodes("local"))
