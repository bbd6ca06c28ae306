"""The checker is checked: a wrong rule, planted in a right op, is found, and found by the step that should find it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from funcgrad.core import canonical
from funcgrad.core.ir import make_aval
from funcgrad.core.primitive import Linear, Primitive, registry
from funcgrad.core.trace import bind, bind1
from funcgrad.ops.arithmetic import add, mul, neg, select, stop_gradient, sub
from funcgrad.ops.broadcasting import broadcast, reduce_sum, transpose
from funcgrad.ops.comparison import eq
from funcgrad.ops.movement import convert, reverse
from funcgrad.ops.op import full_like, zeros_of
from funcgrad.ops.powers import square
from funcgrad.ops.trigonometric import cos, sin
from tests.rule_checker import RuleFailure, all_primitives, check_rules

all_primitives()

X = np.array([[0.5, -1.25, 0.75], [1.5, 0.25, -0.5]])
Y = np.array([[1.5, 0.75, -2.0], [-0.5, 1.25, 0.6]])
M = np.array([[0.5, -1.25], [0.75, 1.5]])
KEEP = np.array([[True, False, True], [False, True, True]])
F32 = np.dtype(np.float32)


def op(name: str, **params: Any) -> Callable[..., Any]:
    """The application of a primitive, as a function."""
    return lambda *args: bind1(registry[name], *args, **params)


def rule(*rules: Callable[..., Any] | None) -> Callable[..., Any]:
    """A jvp slot from one lambda per operand, as `Op.def_jvp` makes it."""

    def jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
        outs, total = primal(), None
        for r, dot in zip(rules, tangents, strict=True):
            if r is not None and dot is not None:
                term = r(dot, outs[0], *primals, **params)
                total = term if total is None else add(total, term)
        return outs, (total,)

    return jvp


def mutating(compute: Callable[..., Any]) -> Callable[..., Any]:
    """An evaluation that counts on owning its first argument."""

    def evaluate(x: Any, *rest: Any, **params: Any) -> Any:
        out = compute(x, *rest, **params)
        if isinstance(x, np.ndarray) and x.ndim and x.flags.writeable:
            x *= 2
        return (out,)

    return evaluate


def rows_in_front(primitive: str) -> Callable[..., Any]:
    """A batching rule that believes that rows always lie along the first axis."""

    def batch(size: int, args: Any, dims: Any, **params: Any) -> Any:
        return bind(registry[primitive], *args, **params), (0,)

    return batch


def sum_of_first_axis(size: int, args: Any, dims: Any, *, axes: tuple[int, ...]) -> Any:
    """A batching rule of reduce_sum that forgets to shift the axes past the rows."""
    return (reduce_sum(args[0], tuple(a + 1 for a in axes)),), (0,)


def mixed_axes(size: int, args: Any, dims: Any, *, contract: Any, batch: Any) -> Any:
    """A batching rule of dot that contracts the rows of one operand with what follows those of the other."""
    x = args[0] if dims[0] is not None else broadcast(args[0], (size, 2, 2), (1, 2))
    y = args[1] if dims[1] is not None else broadcast(args[1], (size, 2, 2), (1, 2))
    return (bind1(registry["dot"], x, y, contract=((1,), (1,)), batch=((0,), (0,))),), (0,)


def lost_row(size: int, args: Any, dims: Any, **params: Any) -> Any:
    """A batching rule that turns the rows round."""
    return (reverse(bind1(registry["sin"], args[0]), (dims[0],)),), (dims[0],)


def select_one_branch(cts: Any, c: Any, x: Any, y: Any) -> Any:
    """A transpose rule of select that hands the cotangent on, whatever the condition."""
    return None, cts[0] if isinstance(x, Linear) else None, None if not isinstance(y, Linear) else zeros_of(y.aval)


# name: primitive, slot, wrong rule, function, arguments, oracle, the step that finds it
FAULTS: dict[str, tuple[str, str, Any, Any, tuple[Any, ...], Any, str]] = {
    # first order, forward
    "sign": ("cos", "jvp", rule(lambda d, y, x: mul(d, sin(x))), op("cos"), (X,), "complex", "jvp"),
    "factor 2": ("square", "jvp", rule(lambda d, y, x: mul(d, x)), op("square"), (X,), "complex", "jvp"),
    "other operand": (
        "mul", "jvp", rule(lambda d, z, x, y: mul(d, y), lambda d, z, x, y: mul(d, y)),
        op("mul"), (X, Y), "complex", "jvp",
    ),
    "operand forgotten": (
        "pow", "jvp", rule(lambda d, z, x, y: mul(d, mul(y, bind1(registry["pow"], x, sub(y, 1.0)))), None),
        op("pow"), (abs(X), Y), "complex", "jvp",
    ),
    "axis": (
        "cumsum", "jvp",
        lambda primal, primals, tangents, *, axis, reverse: (
            primal(), (bind1(registry["cumsum"], tangents[0], axis=1 - axis, reverse=reverse),)),
        op("cumsum", axis=0, reverse=False), (X,), "linear", "jvp",
    ),
    "tangent of another dtype": (
        "sin", "jvp", rule(lambda d, y, x: convert(mul(d, cos(x)), F32)), op("sin"), (X,), "complex", "jvp",
    ),
    "tangent of another shape": (
        "sin", "jvp", rule(lambda d, y, x: reduce_sum(mul(d, cos(x)), (0,))), op("sin"), (X,), "complex", "jvp",
    ),
    "other value": (
        "sin", "jvp", lambda primal, primals, tangents: ([cos(primals[0])], (mul(tangents[0], cos(primals[0])),)),
        op("sin"), (X,), "complex", "jvp",
    ),
    # first order, reverse
    "forgotten sum": (
        "broadcast", "transpose",
        lambda cts, x, *, shape, axes: (
            transpose(bind1(registry["slice"], cts[0], start=(0, 0), stop=(1, 3), step=(1, 1)), (1, 0)),),
        op("broadcast", shape=(2, 3), axes=(1,)), (X[0],), "linear", "vjp",
    ),
    "first row instead of the sum": (
        "broadcast", "transpose",
        lambda cts, x, *, shape, axes: (
            bind1(registry["reshape"], bind1(registry["slice"], cts[0], start=(0, 0), stop=(1, 3), step=(1, 1)),
                  shape=(3,)),),
        op("broadcast", shape=(2, 3), axes=(1,)), (X[0],), "linear", "vjp",
    ),
    "inverse of an order of axes": (
        "transpose", "transpose", lambda cts, x, *, axes: (transpose(cts[0], axes),),
        op("transpose", axes=(1, 2, 0)), (np.stack([M, M + 1]),), "linear", "vjp",
    ),
    "direction": (
        "cumsum", "transpose",
        lambda cts, x, *, axis, reverse: (bind1(registry["cumsum"], cts[0], axis=axis, reverse=reverse),),
        op("cumsum", axis=1, reverse=False), (X,), "linear", "vjp",
    ),
    "sign of the second operand": (
        "sub", "transpose",
        lambda cts, x, y: (cts[0] if isinstance(x, Linear) else None, cts[0] if isinstance(y, Linear) else None),
        op("sub"), (X, Y), "linear", "transpose",
    ),
    "cotangent of another dtype": (
        "neg", "transpose", lambda cts, x: (convert(neg(cts[0]), F32),), op("neg"), (X,), "linear", "vjp",
    ),
    "condition ignored": ("select", "transpose", select_one_branch, op("select"), (KEEP, X, Y), "linear", "vjp"),
    "no transpose": ("mul", "transpose", registry["mul"]._missing("transpose"), op("mul"), (X, Y), "complex", "vjp"),
    "other branch": (
        "select", "transpose", lambda cts, c, x, y: (
            None, select(c, cts[0], full_like(cts[0], 0.0)) if isinstance(x, Linear) else None,
            select(c, cts[0], full_like(cts[0], 0.0)) if isinstance(y, Linear) else None),
        op("select"), (KEEP, X, Y), "linear", "vjp",
    ),
    # right at first order, wrong at second
    "stop_gradient in the rule": (
        "sin", "jvp", rule(lambda d, y, x: mul(d, stop_gradient(cos(x)))), op("sin"), (X,), "complex", "second",
    ),
    "stop_gradient of one operand": (
        "mul", "jvp", rule(lambda d, z, x, y: mul(d, stop_gradient(y)), lambda d, z, x, y: mul(x, d)),
        op("mul"), (X, Y), "complex", "second",
    ),
    "a guard that is a constant": (
        "square", "jvp",
        rule(lambda d, y, x: select(eq(x, 0.0), full_like(x, 0.0), mul(d, add(x, x)))),
        op("square"), (np.array([0.0, 0.5]),), "complex", "second",
    ),
    "a second derivative through a constant": (
        "square", "jvp", rule(lambda d, y, x: mul(d, stop_gradient(add(x, x)))), op("square"), (X,), "complex",
        "second, forward over forward",
    ),
    "a derivative rule that only looks right": (
        "tanh", "jvp", rule(lambda d, y, x: mul(d, sub(1.0, square(stop_gradient(y))))),
        op("tanh"), (X,), "complex", "second",
    ),
    "second order in reverse only": (
        "mul", "transpose",
        lambda cts, x, y: (
            mul(cts[0], stop_gradient(y)) if isinstance(x, Linear) else None,
            mul(stop_gradient(x), cts[0]) if isinstance(y, Linear) else None),
        op("mul"), (X, Y), "complex", "second, (forward|reverse) over (forward|reverse)",
    ),
    # batching
    "rows believed in front": ("reverse", "batch", rows_in_front("reverse"), op("reverse", axes=(0,)), (X,),
                               "linear", "batch"),
    "axes not shifted": ("reduce_sum", "batch", sum_of_first_axis, op("reduce_sum", axes=(1,)), (X,), "linear",
                         "batch"),
    "axes mixed": ("dot", "batch", mixed_axes, op("dot", contract=((1,), (0,)), batch=((), ())), (M, M + 1),
                   "complex", "batch"),
    "order of the rows": ("sin", "batch", lost_row, op("sin"), (X,), "complex", "batch"),
    "rows declared unbatched": (
        "sin", "batch", lambda size, args, dims: (bind(registry["sin"], *args), (None,)), op("sin"), (X,), "complex",
        "batch",
    ),
    # values
    "written to its argument": ("sin", "evaluate", mutating(np.sin), op("sin"), (X,), "complex", "abstract|jvp"),
    "cotangent written to": ("neg", "evaluate", mutating(np.negative), op("neg"), (X,), "linear", "abstract|jvp"),
    "abstract shape": (
        "reduce_sum", "abstract", lambda x, *, axes: (make_aval(x.shape, x.dtype),), op("reduce_sum", axes=(0,)),
        (X,), "linear", "abstract",
    ),
    "abstract dtype": ("sin", "abstract", lambda x: (make_aval(x.shape, F32),), op("sin"), (X,), "complex", "abstract"),
    "evaluated dtype": (
        "sin", "evaluate", lambda x: (np.sin(x).astype(F32),), op("sin"), (X,), "complex", "abstract",
    ),
    "evaluated shape": ("sin", "evaluate", lambda x: (np.sin(x)[..., :1],), op("sin"), (X,), "complex", "abstract"),
}  # fmt: skip


def plant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the wrong rule in its slot, and forget what was derived with the right one."""
    primitive, slot, wrong = FAULTS[name][:3]
    monkeypatch.setattr(registry[primitive], slot, wrong)
    monkeypatch.setattr(canonical, "_programs", OrderedDict())


SECOND_ORDER = [name for name, fault in FAULTS.items() if fault[-1].startswith("second")]


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, f, args, oracle, found_by = FAULTS[name]
    check_rules(f, *args, oracle=oracle)
    plant(name, monkeypatch)
    with pytest.raises(RuleFailure, match=f"^({found_by})"):
        check_rules(f, *[np.array(a) for a in args], oracle=oracle)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_a_fault_of_second_order_is_right_at_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, f, args, oracle, _ = FAULTS[name]
    plant(name, monkeypatch)
    check_rules(f, *args, oracle=oracle, orders=1, batch=False)


def test_the_faults_are_many_and_of_every_slot() -> None:
    assert len(FAULTS) >= 15 and len(SECOND_ORDER) >= 4
    assert {fault[1] for fault in FAULTS.values()} == {"abstract", "evaluate", "jvp", "transpose", "batch"}


def test_an_op_that_is_not_linear_is_not_taken_for_one() -> None:
    with pytest.raises(RuleFailure, match="not linear"):
        check_rules(op("square"), X, oracle="linear")


def test_a_primitive_without_a_rule_is_reported() -> None:
    bare = Primitive("bare")
    try:
        bare.abstract = lambda x: (x,)
        bare.evaluate = lambda x: (np.sin(x),)
        with pytest.raises(RuleFailure, match=r"^jvp: RuleError: bare: it has no jvp rule"):
            check_rules(lambda x: bind1(bare, x), X)
        bare.decline("jvp", "nobody knows it")
        with pytest.raises(RuleFailure, match=r"^jvp: RuleError: bare: nobody knows it"):
            check_rules(lambda x: bind1(bare, x), X)
    finally:
        del registry["bare"]
