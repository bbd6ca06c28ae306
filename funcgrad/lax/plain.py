"""Loops and branches as Python runs them, on values: what `disable_jit` makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.api.tracing import function_name, output_leaves, results, role_of, shown
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, CarryTypeError, printed
from funcgrad.core.ir import make_aval
from funcgrad.core.modes import jit_disabled
from funcgrad.core.trace import Trace, Tracer, current, is_known, value_of
from funcgrad.lax.bodies import Carry
from funcgrad.numpy import stack
from funcgrad.ops.op import aval_of


def plainly(*values: Any) -> bool:
    """Whether to run as Python: jit is disabled, and the values that Python has to know are known."""
    if not jit_disabled():
        return False
    trace = current()
    if type(trace) is Trace and not trace.shows:
        return False
    return all([type(v) is not Tracer or is_known(v) for v in values])


class _State:
    """What a loop carries; checked as it is when the loop is traced."""

    def __init__(self, name: str, init: Any, what: str) -> None:
        self.name = name
        self.carry = Carry.of(init, what)
        self.value = shown(init)

    def set(self, value: Any) -> None:
        leaves, treedef = output_leaves(value, self.name)
        self.carry.meets(self.name, treedef, [make_aval(a.shape, a.dtype) for a in map(aval_of, leaves)])
        self.value = shown(value)


def _finished(value: Any, name: str) -> Any:
    leaves, treedef = output_leaves(value, name)
    return tree.unflatten(treedef, results(leaves, [x for x in leaves if type(x) is not Tracer]))


def plain_scan(
    f: Callable[..., Any], init: Any, rows: Sequence[Any], treedef: tree.Treedef, trips: int, reverse: bool
) -> Any:
    """`scan` of at least one trip."""
    state, ys = _State("scan", init, "carry"), []
    for i in reversed(range(trips)) if reverse else range(trips):
        x = tree.unflatten(treedef, [r[i] if type(r) is Tracer else np.array(r[i]) for r in rows])
        pair = f(state.value, shown(x))
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ArgumentError(
                f"scan: {role_of(f, 'f')} returns {type(pair).__name__}, not a pair (carry, y)",
                hint="return carry, None",
            )
        state.set(pair[0])
        ys.append(output_leaves(pair[1], "scan"))
    columns = zip(*[leaves for leaves, _ in (reversed(ys) if reverse else ys)], strict=True)
    stacked = tree.unflatten(ys[0][1], [stack(c) for c in columns])
    return _finished((state.value, stacked), "scan")


def plain_fori(low: int, high: int, body: Callable[..., Any], init: Any) -> Any:
    """`fori_loop` between known bounds."""
    state = _State("fori_loop", init, "val")
    for i in range(low, high):
        state.set(body(np.int64(i), state.value))
    return _finished(state.value, "fori_loop")


def plain_while(test: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> tuple[bool, Any]:
    """`while_loop`; whether it could run, which depends on the first test having a value, and the result."""
    state = _State("while_loop", init, "val")
    first = True
    while True:
        flag = test(state.value)
        if first and not plainly(flag):
            return False, None
        first = False
        if getattr(flag, "dtype", np.asarray(flag).dtype).kind != "b" or np.shape(flag):
            raise CarryTypeError(
                f"while_loop: {role_of(test, 'cond_fun')} returns {printed(flag)}, not bool[]", hint="np.any(...)"
            )
        if not value_of(flag):
            return True, _finished(state.value, "while_loop")
        state.set(body(state.value))


def plain_call(f: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """The branch that was chosen."""
    return _finished(f(*shown(tuple(operands))), function_name(f))


__all__ = ["plain_call", "plain_fori", "plain_scan", "plain_while", "plainly"]
