"""vmap of loops and branches: batched bodies where every row does the same, a loop over the rows where not.

A loop whose number of trips, or a branch whose choice, differs from row to row becomes a loop over rows (`lanes`)
with the original operation inside. No row computes what it would not compute alone, so nothing can raise, hang or
leak a NaN on account of another row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.control.assemble import apply, assemble, element, empty_p, zero
from funcgrad.control.body import computed
from funcgrad.control.loop import INDEX, elem_of, form, links, loop, loop_p, parts
from funcgrad.core.ir import Aval, Program, Stack, stack_of
from funcgrad.core.links import fixpoint
from funcgrad.core.primitive import Flags, Links, Primitive, Traits, registry
from funcgrad.core.stacked import stacked
from funcgrad.core.trace import bind, bind1
from funcgrad.ops.arithmetic import add, select
from funcgrad.ops.broadcasting import align, broadcast
from funcgrad.ops.comparison import eq
from funcgrad.ops.extrema import maximum
from funcgrad.ops.op import accumulate, set_add_stacks
from funcgrad.transforms.batch import Dims, batch, batched_aval

# -- stacks


length_p = Primitive("stack_length", Traits(kind="stack_length"), doc="The number of values in a stack.")
length_p.abstract = lambda x: (INDEX,)
length_p.evaluate = lambda x: (np.int64(len(x)),)
length_p.jvp = lambda primal, primals, tangents: (primal(), (None,))
length_p.decline("transpose", "a length has no derivative")

element_p = Primitive("stack_element", Traits(kind="stack_element"), "One value of a stack; zero beyond its end.")


def _only(ct: Any, i: Any) -> Any:
    """The stack of a value at `i` and zeros before it."""

    def pick(j: Any, i: Any, ct: Any) -> list[Any]:
        if not isinstance(ct.aval, Stack):
            return [select(broadcast(eq(i, j), ct.aval.shape, ()), ct, zero(ct.aval))]
        none = assemble("none", [INDEX, ct.aval], lambda _, ct: [bind1(empty_p, elem=ct.aval.elem)])
        same = assemble("same", [INDEX, ct.aval], lambda _, ct: [ct])
        return [bind1(registry["branch"], select(eq(i, j), np.int64(1), np.int64(0)), ct, branches=(none, same))]

    return loop(assemble("only", [INDEX, INDEX, ct.aval], pick), add(i, np.int64(1)), [i, ct], [], [])[0]


def _element_batch(size: int, args: Any, dims: Any) -> Any:
    d, rows = dims
    if rows is not None or d == -1:
        return lanes(size, element_p, args, dims, {})
    return bind(element_p, *args), (d if d >= 0 else d + 1,)


element_p.abstract = lambda x, i: (x.elem,)
element_p.evaluate = lambda x, i: (x.at(int(i)),)
element_p.jvp = lambda primal, primals, tangents: (primal(), (bind1(element_p, tangents[0], primals[1]),))
element_p.transpose = lambda cts, x, i: [_only(cts[0], i), None]
element_p.batch = _element_batch

empty_p.abstract = lambda elem: (stack_of(elem),)
empty_p.evaluate = lambda elem: (stacked([], elem),)
empty_p.decline("jvp", "it has no operands")
empty_p.decline("transpose", "it has no operands")
empty_p.decline("batch", "it has no operands")


add_p = Primitive("stack_add", Traits(kind="program"), "x + y of stacks, one of which may be empty.")


def _sum_of(stack: Stack) -> Program:
    """What it computes. How long the result is depends on the stacks: as one operation it is linear all the same."""

    def function(x: Any, y: Any) -> list[Any]:
        n = maximum(bind1(length_p, x), bind1(length_p, y))
        body = assemble("add", [INDEX, stack.elem, stack.elem], lambda i, a, b: [accumulate(a, b)])
        return list(loop(body, n, [], [], [x, y]))

    return assemble("add", [stack, stack], function)


def add_stacks(x: Any, y: Any) -> Any:
    """x + y of stacks, one of which may be empty."""
    return bind1(add_p, x, y, program=_sum_of(x.aval))


def _add_jvp(primal: Any, primals: Any, tangents: Any, *, program: Program) -> Any:
    dots = [t for t in tangents if t is not None]
    return primal(), (add_stacks(*dots) if len(dots) > 1 else dots[0],)


def _add_batch(size: int, args: Any, dims: Any, *, program: Program) -> Any:
    if dims[0] == dims[1]:
        return (add_stacks(*args),), (dims[0],)
    return lanes(size, add_p, args, dims, {"program": program})


add_p.abstract = lambda x, y, program: program.out_avals
add_p.evaluate = lambda x, y, program: computed(program, x, y)
add_p.jvp = _add_jvp
add_p.transpose = lambda cts, x, y, program: (cts[0], cts[0])
add_p.batch = _add_batch
add_p.links = lambda params: Links((params["program"],), lambda bodies, *_: {"program": bodies[0]})
set_add_stacks(add_stacks)

# -- lanes


def lanes(
    size: int, primitive: Primitive, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
) -> Any:
    """The results of `primitive` for every row, one after the other, and where their rows are."""
    fixed = [a for a, d in zip(args, dims, strict=True) if d is None or _turned(a, d)]
    rows = [
        (a if isinstance(a.aval, Stack) else align(a, d, 0, size))
        for a, d in zip(args, dims, strict=True)
        if not (d is None or _turned(a, d))
    ]
    avals = [INDEX, *[a.aval for a in fixed], *[elem_of(a.aval) for a in rows]]

    def function(i: Any, *items: Any) -> Sequence[Any]:
        same, own = iter(items[: len(fixed)]), iter(items[len(fixed) :])
        operands = []
        for a, d in zip(args, dims, strict=True):
            if d is None:
                operands.append(next(same))
            elif _turned(a, d):
                operands.append(_row_of_stack(next(same), d, i))
            else:
                operands.append(next(own))
        return bind(primitive, *operands, **params)

    body = assemble(primitive.name, avals, function)
    results = loop(body, np.int64(size), fixed, [], rows, length=size)
    return results, [-1 if isinstance(a, Stack) else 0 for a in body.out_avals]


def _turned(a: Any, d: int) -> bool:
    """Whether the rows of a stack lie inside its values."""
    return isinstance(a.aval, Stack) and d != -1


def _row_of_stack(x: Any, d: int, i: Any) -> Any:
    """One row of a stack whose rows lie inside its values, which may be stacks: the stack of that row's values."""
    elem = x.aval.elem

    def pick(_: Any, row: Any, value: Any) -> list[Any]:
        if not isinstance(elem, Stack):
            return [element(value, d, row)]
        if d == -2:  # the value is the stack of what the rows have
            return [bind1(element_p, value, row)]
        return [_row_of_stack(value, d if d >= 0 else d + 1, row)]

    body = assemble("row", [INDEX, INDEX, elem], pick)
    return loop(body, bind1(length_p, x), [i], [], [x])[0]


# -- batch


def _batch(size: int, args: Any, dims: Any, **params: Any) -> Any:
    body, consts, carry = params["body"], params["consts"], params["carry"]
    cs, ks, xs = parts(args, consts, carry)
    cd, kd, xd = parts(dims, consts, carry)
    apart = dims[0] is not None or any(isinstance(x.aval, Stack) and d == -1 for x, d in zip(xs, xd, strict=True))
    if apart:
        return lanes(size, loop_p, args, dims, params)
    elems = [_elem_dim(x, d) for x, d in zip(xs, xd, strict=True)]
    start = tuple([d is not None for d in (None, *cd, *kd, *elems)])
    stepped = lambda b, flags: _batched(b, size, _dims(flags, consts, cd, elems))
    ((batched, out_dims),), flags, out = fixpoint(links(params), start, stepped)
    moving = parts(flags, consts, carry)[1]
    k_avals = body.in_avals[1 + consts : 1 + consts + carry]
    if (params["test"] and moving[0]) or any(m and isinstance(a, Stack) for m, a in zip(moving, k_avals, strict=True)):
        return lanes(size, loop_p, args, dims, params)

    def function(*items: Any) -> list[Any]:
        values = apply(batched, *items)
        place = [0 if f and not isinstance(a, Stack) else d
                 for f, a, d in zip((*moving, *out[carry:]), body.out_avals, out_dims, strict=True)]  # fmt: skip
        return [v if p is None else align(v, d, p, size) for v, d, p in zip(values, out_dims, place, strict=True)]

    in_dims = _dims(flags, consts, cd, elems)
    wrapped = assemble(
        body.name, [batched_aval(a, size, d) for a, d in zip(body.in_avals, in_dims, strict=True)], function
    )
    new_carry = [align(k, d, 0, size) if m else k for k, d, m in zip(ks, kd, moving, strict=True)]
    new_xs = [
        x if d is None or isinstance(x.aval, Stack) else align(x, d, 1, size) for x, d in zip(xs, xd, strict=True)
    ]
    results = loop(wrapped, args[0], cs, new_carry, new_xs, **form(params))
    ends = [0 if m else None for m in moving]
    ys = [_rows_dim(a, d if isinstance(a, Stack) else 0, params["length"]) if f else None
          for a, d, f in zip(body.out_avals[carry:], out_dims[carry:], out[carry:], strict=True)]  # fmt: skip
    return results, (*ends, *ys)


def _batched(body: Program, size: int, dims: Dims) -> tuple[tuple[Program, Dims], Flags]:
    result = batch(body, size, dims)
    return result, tuple([d is not None for d in result[1]])


def _dims(flags: Flags, consts: int, cd: Sequence[int | None], elems: Sequence[int | None]) -> Dims:
    """The axes of the rows of the body's inputs: a carry that has rows has them first."""
    carried = flags[1 + consts : len(flags) - len(elems)]
    return (None, *cd, *[0 if f else None for f in carried], *elems)


def _elem_dim(x: Any, d: int | None) -> int | None:
    """Where the rows of one element of xs are."""
    if d is None or not isinstance(x.aval, Stack):
        return None if d is None else 0
    return d if d >= 0 else d + 1


def _rows_dim(elem: Aval, d: int, length: int | None) -> int:
    """Where the rows of ys are, if those of an element are at `d`."""
    if isinstance(elem, Stack):
        return d if d >= 0 else d - 1
    return d if length is None else d + 1


loop_p.batch = _batch


def _length_batch(size: int, args: Any, dims: Any) -> Any:
    if dims[0] == -1:
        return lanes(size, length_p, args, dims, {})
    return bind(length_p, *args), (None,)


length_p.batch = _length_batch

__all__ = ["element_p", "lanes"]
