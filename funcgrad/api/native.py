"""The native entry of a jitted call: what one specialisation takes and gives, told to `lowering.entry`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from funcgrad.api.tracing import Traced
from funcgrad.base import tree
from funcgrad.core.ir import Equation, Stack, subprograms
from funcgrad.lowering import executable
from funcgrad.lowering.entry_layout import available
from funcgrad.lowering.entry_table import Leaf, Native, Spec, Static, Tree, prepare, tree_of
from funcgrad.lowering.kernels import Control, Loop, Product
from funcgrad.lowering.schedule import schedule

LONG = 50_000  # operations: some 20 µs, from which on other threads run meanwhile


def native_entry(
    traced: Traced,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    statics: set[int],
    static_names: Sequence[str],
    donated: tuple[int, ...],
) -> Native | None:
    """The table of a specialisation, or None where only Python can serve it.

    Parameters
    ----------
    args, kwargs
        Arguments that the specialisation was made for.
    statics, static_names
        Which of them are static.
    donated
        For each output the leaf whose memory it may take, or -1; empty for none.
    """
    if traced.captured_tracer or not available():
        return None
    if any([isinstance(a, Stack) for a in (*traced.program.in_avals, *traced.program.out_avals)]):
        return None
    machine = executable(traced.program).whole(inputs_of(traced, donated))
    if machine is None:
        return None
    types = traced.program.in_avals[len(traced.constants) :]
    leaves = iter([Leaf(a.dtype, a.shape, a.weak) for a in types])
    positional = [Static(x) if i in statics else _tree(x, leaves) for i, x in enumerate(args)]
    named: dict[str, Any] = {k: _tree(kwargs[k], leaves) for k in sorted(kwargs) if k not in static_names}
    named |= {k: Static(kwargs[k]) for k in static_names if k in kwargs}
    outs = [Leaf(a.dtype, a.shape) for a in traced.program.out_avals]
    spec = Spec(
        args=tuple(positional),
        keywords=tuple(named.items()),
        results=tree_of(traced.out_tree, outs),
        constants=tuple([np.array(c, order="C", copy=None) for c in traced.constants]),
        constants_first=True,
        donated=donated,
        arena_size=machine.arena,
        release_gil=_operations(machine.program) > LONG or any([t.compiled for t in machine.foreign]),
    )
    return prepare(
        spec,
        machine.library["program"],
        owner=(machine, traced),
        pool=machine.arenas,
        on_status=machine.fail,
    )


def inputs_of(traced: Traced, donated: tuple[int, ...]) -> tuple[int, ...]:
    """Positions of donated leaves as inputs of the Program, whose constants come first."""
    return tuple([i + len(traced.constants) if i >= 0 else -1 for i in donated])


def _tree(x: Any, leaves: Iterator[Leaf]) -> Tree:
    return tree_of(tree.structure(x), leaves)


def _operations(program: Any) -> int:
    total = 0
    for k in schedule(program).kernels:
        if isinstance(k, Loop):
            total += prod(k.shape) * (len(k.equations) + len(k.reductions) + len(k.writes))
        elif isinstance(k, Product):
            total += prod(k.x.shape) * k.y.shape[2] // 4
        elif isinstance(k, Control):
            total += _work(k.equation)
    return total


def _work(e: Equation) -> int:
    """Elements that an equation makes, in all trips of a loop; one without a known number of trips may be long."""
    own = sum([v.aval.size for v in e.outputs if not isinstance(v.aval, Stack)])
    inner = sum([_work(f) for _, body in subprograms(e) for f in body.equations])
    trips = e.params.get("length", 1)
    return own + inner * trips if trips is not None else LONG + 1
