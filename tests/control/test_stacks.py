"""Stacks, row by row: each primitive on rows that lie in any place of a stack does what it does on each row alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from funcgrad.control.assemble import assemble, zero
from funcgrad.control.loop import INDEX, loop
from funcgrad.control.rows import add_stacks, element_p, length_p
from funcgrad.control.unfold import collect_p
from funcgrad.core.evaluate import evaluate
from funcgrad.core.ir import Aval, Program, Stack, make_aval, stack_of
from funcgrad.core.stacked import Stacked, stacked
from funcgrad.core.trace import bind1
from funcgrad.ops.arithmetic import mul
from funcgrad.transforms.batch import batch, batched_aval
from funcgrad.transforms.jvp import jvp
from funcgrad.transforms.mask import mask
from funcgrad.transforms.prune import prune
from funcgrad.transforms.transpose import transpose
from funcgrad.transforms.zeros import zeros

F64 = np.dtype(np.float64)
ITEM = make_aval((2, 3), F64)
TYPES = {1: stack_of(ITEM), 2: stack_of(stack_of(ITEM)), 3: stack_of(stack_of(stack_of(ITEM)))}
ROWS = 4
RNG = np.random.default_rng(0)


def value(aval: Aval, lengths: Sequence[int]) -> Any:
    """Some value of a type; what is in a stack has the other lengths."""
    if not isinstance(aval, Stack):
        return RNG.normal(size=aval.shape)
    return stacked([value(aval.elem, lengths[1:]) for _ in range(lengths[0])], aval.elem)


def together(rows: Sequence[Any], aval: Aval, d: int | None) -> Any:
    """The values of all rows, of one type, in one value."""
    if d is None:
        return rows[0]
    if not isinstance(aval, Stack):
        return np.stack(rows, d)
    if d == -1:
        return stacked(rows, aval)
    inner = d if d >= 0 else d + 1
    items = [together([r.at(i) for r in rows], aval.elem, inner) for i in range(len(rows[0]))]
    return stacked(items, batched_aval(aval.elem, ROWS, inner))


def apart(x: Any, d: int | None) -> list[Any]:
    """The value of each row, as lists of lists."""
    if d is None:
        return [plain(x)] * ROWS
    if not isinstance(x, Stacked):
        return [plain(np.take(x, r, d)) for r in range(ROWS)]
    if d == -1:
        return [plain(x.at(r)) for r in range(len(x))]
    items = [apart(x.at(i), d if d >= 0 else d + 1) for i in range(len(x))]
    return [[item[r] for item in items] for r in range(ROWS)]


def plain(x: Any) -> Any:
    return [plain(x.at(i)) for i in range(len(x))] if isinstance(x, Stacked) else np.asarray(x).tolist()


def rows_of(program: Program, args: Sequence[Sequence[Any]], dims: Any) -> None:
    """The program on all rows at once, and on one after the other."""
    batched, out_dims = batch(program, ROWS, tuple(dims))
    given = [together(rows, a, d) for rows, a, d in zip(args, program.in_avals, dims, strict=True)]
    found = [apart(y, d) for y, d in zip(evaluate(batched, given), out_dims, strict=True)]
    for r in range(ROWS):
        alone = evaluate(program, [rows[0 if d is None else r] for rows, d in zip(args, dims, strict=True)])
        assert [y[r] for y in found] == [plain(y) for y in alone]


def places(depth: int) -> list[int]:
    """Where the rows of stacks of this depth may be."""
    return [*range(-depth, 0), *range(ITEM.ndim + 1)]


def stacks(depth: int, d: int | None = None, ragged: bool = True) -> list[Any]:
    """A value for each row; of different lengths where the rows lie outside."""
    own = ragged and d == -1
    return [value(TYPES[depth], [3 - (r % 2 if own else 0), 2, 2]) for r in range(ROWS)]


CASES = [(depth, d) for depth in TYPES for d in places(depth)]


@pytest.mark.parametrize("which", [None, 0])
@pytest.mark.parametrize(("depth", "d"), CASES)
def test_elements_of_rows(depth: int, d: int, which: int | None) -> None:
    """The same position for all, or one for each, the last one beyond the end."""
    program = assemble("f", [TYPES[depth], INDEX], lambda x, i: [bind1(element_p, x, i)])
    rows_of(program, [stacks(depth, d), [np.int64(k) for k in (1, 0, 2, 7)]], (d, which))


def test_elements_at_positions_that_differ() -> None:
    program = assemble("f", [TYPES[1], INDEX], lambda x, i: [bind1(element_p, x, i)])
    rows_of(program, [stacks(1), [np.int64(k) for k in (1, 0, 2, 7)]], (None, 0))


@pytest.mark.parametrize(("depth", "d"), CASES)
def test_lengths_of_rows(depth: int, d: int) -> None:
    rows_of(assemble("f", [TYPES[depth]], lambda x: [bind1(length_p, x)]), [stacks(depth, d)], (d,))


def test_a_length_has_no_derivative() -> None:
    program = assemble("f", [TYPES[1]], lambda x: [bind1(length_p, x)])
    derived, nonzero = jvp(program, (True,))
    assert nonzero == (False,)
    assert evaluate(derived, [value(TYPES[1], [3]), value(TYPES[1], [3])]) == [3]


@pytest.mark.parametrize("other", [None, -1, 0, 2])
@pytest.mark.parametrize("d", [-1, 0, 1, 2])
def test_stacks_of_rows(d: int, other: int | None) -> None:
    """Two values are put on a stack, the rows of each somewhere else."""
    elem = TYPES[1]
    program = assemble("f", [elem, elem], lambda x, y: [bind1(collect_p, x, y, elem=elem)])
    rows_of(program, [stacks(1, d), stacks(1, other)], (d, other))
    assert ("loop" in str(batch(program, ROWS, (d, other))[0])) == (d != other), "rows that lie alike need no loop"


@pytest.mark.parametrize("other", [None, 0, 2])
@pytest.mark.parametrize("d", [0, 1, 2])
def test_stacks_of_rows_of_arrays(d: int, other: int | None) -> None:
    program = assemble("f", [ITEM, ITEM], lambda x, y: [bind1(collect_p, x, y, elem=ITEM)])
    rows_of(program, [[value(ITEM, ()) for _ in range(ROWS)] for _ in range(2)], (d, other))


@pytest.mark.parametrize("other", [None, -1, 0, 2])
@pytest.mark.parametrize(("depth", "d"), CASES[:10])
def test_sums_of_stacks_of_rows(depth: int, d: int, other: int | None) -> None:
    program = assemble("f", [TYPES[depth], TYPES[depth]], lambda x, y: [add_stacks(x, y)])
    rows_of(program, [stacks(depth, d), stacks(depth, other)], (d, other))


@pytest.mark.parametrize("moving", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("depth", TYPES)
def test_derivatives_of_a_sum_of_stacks(depth: int, moving: tuple[bool, bool]) -> None:
    """Of one that moves alone, its tangent; backwards, the cotangent for both."""
    program = assemble("f", [TYPES[depth]] * 2, lambda x, y: [add_stacks(x, y)])
    x, y, *dots = [value(TYPES[depth], [3, 2, 2]) for _ in range(2 + sum(moving))]
    derived, nonzero = jvp(program, moving)
    z, z_dot = evaluate(derived, [x, y, *dots])
    assert nonzero == (True,) and plain(z) == plain(evaluate(program, [x, y])[0])
    assert plain(z_dot) == plain(evaluate(program, dots)[0] if all(moving) else dots[0])
    assert ("stack_add" in [e.primitive.name for e in prune(derived, (False, True)).equations]) == all(moving)
    back, flags = transpose(program, (True, True), (True,))
    x_bar, y_bar = evaluate(back, [z])
    assert flags == (True, True) and plain(x_bar) == plain(y_bar) == plain(z)


def test_a_sum_of_stacks_with_its_own_program_is_the_same() -> None:
    (e,) = assemble("f", [TYPES[1]] * 2, lambda x, y: [add_stacks(x, y)]).equations
    links = e.primitive.links(e.params)  # type: ignore[misc]
    assert links.rebuild(links.bodies, (True, True), (True,)) == e.params and links.bodies[0].out_avals == (TYPES[1],)


@pytest.mark.parametrize("structural", [(True, True), (True, False), (False, True), (False, False)])
def test_zeros_of_a_sum_of_stacks(structural: tuple[bool, bool]) -> None:
    """They are structural where both are."""
    program = assemble("f", [TYPES[2]] * 2, lambda x, y: [add_stacks(x, y)])
    masked, flags = mask(program, (True, True), structural)
    assert flags == (all(structural),) and masked is program


def test_stacks_of_zeros_are_computed() -> None:
    """What hands out a stack of zeros says how many there are; what sums them up is nothing."""

    def f(n: Any, x: Any) -> list[Any]:
        rows = assemble("rows", [INDEX, ITEM], lambda i, x: [x * 2.0])
        (held,) = loop(rows, n, [x], [], [])
        (total,) = loop(assemble("sum", [INDEX, ITEM, ITEM], lambda i, s, a: [s + a]), n, [], [zero(ITEM)], [held])
        return [total, held]

    without, flags = zeros(assemble("f", [INDEX, ITEM], f), (False, True))
    total, held = evaluate(without, [np.int64(4)])
    assert len(held) == 4 and not np.any(held.data) and not np.any(total) and not flags[1]


@pytest.mark.parametrize("depth", TYPES)
def test_derivatives_of_an_element(depth: int) -> None:
    """Of the stack: a value of its tangent, and forward again, its cotangent at that position alone."""
    elem = TYPES[depth].elem
    program = assemble("f", [TYPES[depth], INDEX], lambda x, i: [bind1(element_p, x, i)])
    x, dot = value(TYPES[depth], [3, 2, 2]), value(TYPES[depth], [3, 2, 2])
    derived, nonzero = jvp(program, (True, False))
    y, y_dot = evaluate(derived, [x, np.int64(1), dot])
    assert nonzero == (True,) and plain(y) == plain(x.at(1)) and plain(y_dot) == plain(dot.at(1))
    back, flags = transpose(program, (True, False), (True,))
    ct = value(elem, [2, 2])
    (x_bar,) = evaluate(back, [np.int64(1), ct])
    assert flags == (True,) and len(x_bar) == 2 and plain(x_bar.at(1)) == plain(ct)
    assert not np.any(x_bar.at(0).data if isinstance(elem, Stack) else x_bar.at(0))


@pytest.mark.parametrize("elem", [ITEM, TYPES[1]])
def test_derivatives_of_a_stack(elem: Aval) -> None:
    """One of two values moves; the other has an empty tangent, or zeros."""
    program = assemble("f", [elem, elem], lambda x, y: [bind1(collect_p, x, y, elem=elem)])
    x, y, dot = [value(elem, [3]) for _ in range(3)]
    z, z_dot = evaluate(jvp(program, (False, True))[0], [x, y, dot])
    assert plain(z) == [plain(x), plain(y)] and plain(z_dot.at(1)) == plain(dot)
    assert not np.any(z_dot.at(0).data if isinstance(elem, Stack) else z_dot.at(0))
    back, flags = transpose(program, (True, False), (True,))
    (x_bar,) = evaluate(back, [y, stacked([dot, x], elem)])
    assert flags == (True,) and plain(x_bar) == plain(dot)


def test_a_loop_over_rows_of_stacks() -> None:
    body = assemble("twice", [INDEX, ITEM], lambda i, x: [mul(x, x)])
    program = assemble("f", [TYPES[1], INDEX], lambda x, n: [loop(body, n, [], [], [x])[0]])
    for d in places(1):
        rows_of(program, [stacks(1, d, ragged=False), [np.int64(3)] * ROWS], (d, None))
        rows_of(program, [stacks(1, d, ragged=False), [np.int64(k) for k in (3, 1, 0, 2)]], (d, 0))
