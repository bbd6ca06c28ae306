"""Writing a Program that wraps another one: the bodies that the rules of control primitives make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.core.check import checked
from funcgrad.core.evaluate import inline
from funcgrad.core.ir import Aval, Program, Stack, tangent_aval
from funcgrad.core.primitive import Primitive, Traits
from funcgrad.core.trace import Trace, bind1, current
from funcgrad.ops.op import zeros_of


def assemble(name: str, avals: Sequence[Aval], function: Callable[..., Sequence[Any]]) -> Program:
    """The Program of `function`, which takes one operand per type and returns operands; it captures nothing."""
    with Trace(name) as t:
        result = t.program(function(*[t.input(a) for a in avals]))
    assert not t.captured, "a rule captured a value"
    return checked(result)


def apply(program: Program, *args: Any) -> list[Any]:
    """The results of `program`, recorded in the innermost trace."""
    trace = current()
    assert type(trace) is Trace
    return inline(trace, program, args)


empty_p = Primitive(
    "stack_empty", Traits(kind="stack_empty"), "A stack without values, which stands for zeros of any length."
)


def zero(aval: Aval) -> Any:
    """The zero tangent of a value of this type, of stacks too."""
    if isinstance(aval, Stack):
        return bind1(empty_p, elem=tangent_aval(aval.elem))
    return zeros_of(aval)


__all__ = ["apply", "assemble", "empty_p", "zero"]
