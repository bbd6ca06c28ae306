"""Writing a Program that wraps another one: the bodies that the rules of control primitives make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.core.check import checked
from funcgrad.core.evaluate import inline
from funcgrad.core.ir import Aval, Program, Stack, tangent_aval
from funcgrad.core.primitive import Primitive, Traits
from funcgrad.core.trace import Trace, bind1, current
from funcgrad.ops.broadcasting import reshape
from funcgrad.ops.op import aval_of, zeros_of
from funcgrad.ops.windows import dynamic_slice, dynamic_update_slice


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


def element(x: Any, axis: int, i: Any) -> Any:
    """Element `i` of an array along an axis."""
    shape = aval_of(x).shape
    sizes = tuple([1 if k == axis else n for k, n in enumerate(shape)])
    window = dynamic_slice(x, *_starts(len(shape), axis, i), sizes=sizes, mode="clip")
    return reshape(window, (*shape[:axis], *shape[axis + 1 :]))


def put_element(x: Any, value: Any, i: Any) -> Any:
    """An array with another element `i` along its first axis."""
    shape = aval_of(x).shape
    return dynamic_update_slice(x, reshape(value, (1, *shape[1:])), *_starts(len(shape), 0, i), mode="clip")


def _starts(ndim: int, axis: int, i: Any) -> list[Any]:
    return [i if k == axis else np.int64(0) for k in range(ndim)]


empty_p = Primitive(
    "stack_empty", Traits(kind="stack_empty"), "A stack without values, which stands for zeros of any length."
)


def zero(aval: Aval) -> Any:
    """The zero tangent of a value of this type, of stacks too."""
    if isinstance(aval, Stack):
        return bind1(empty_p, elem=tangent_aval(aval.elem))
    return zeros_of(aval)


__all__ = ["apply", "assemble", "element", "empty_p", "put_element", "zero"]
