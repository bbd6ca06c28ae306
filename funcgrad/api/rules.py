"""Functions with rules of their own: from what the user wrote to Programs, traced when the function is applied.

Everything that the function or a rule captures from around becomes an operand, so that it is differentiated as well.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import optree

from funcgrad.api.tracing import (
    Traced,
    boundary,
    function_name,
    leaf,
    leaf_names,
    require_callable,
    results,
    trace,
    value_and_aval,
    written_at,
)
from funcgrad.base import tree
from funcgrad.base.dtypes import Dtype, float0, is_inexact, short
from funcgrad.base.errors import ArgumentError, CustomRuleError, FuncgradError, UnexpectedTracerError, printed
from funcgrad.control.rules import Later, Programs, Rules, same, union, with_operands
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.ir import Atom, Aval, Equation, Literal, tangent_aval
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import Trace, Tracer, bind, current
from funcgrad.numpy.operands import array, as_dtype, dtype_key
from funcgrad.ops.op import aval_of, zeros_of

ORDERS = 3  # of a rule that applies its own function, as many are traced with the values of Python control flow


@dataclass(frozen=True, slots=True)
class SymbolicZero:
    """A tangent or cotangent known to be zero; only rules defined with ``symbolic_zeros=True`` are given any.

    A rule may also return one, in place of an array of zeros.
    """

    shape: tuple[int, ...]
    dtype: Dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


def symbolic_zero(aval: Aval) -> SymbolicZero:
    """The symbolic zero of the tangents of `aval`."""
    t = tangent_aval(aval)
    return SymbolicZero(t.shape, t.dtype)


# -- the call of a function


@dataclass(frozen=True, slots=True)
class Application:
    """A call of a function with rules: its static arguments, and the types of the leaves of the others.

    `zeros` says for each leaf whether its tangent is known to be zero. No values are held: a rule that is traced later
    must not keep them alive.
    """

    transform: str
    name: str
    count: int
    static: dict[int, Any]
    treedef: tree.Treedef
    avals: list[Aval]
    names: list[str]
    zeros: list[bool]

    def arguments(self, leaves: Sequence[Any]) -> list[Any]:
        """All arguments, with other leaves."""
        rest = iter(tree.unflatten(self.treedef, leaves))
        return [self.static[i] if i in self.static else next(rest) for i in range(self.count)]

    def inputs(self, values: Sequence[Any] | None) -> list[tuple[Any, Aval]]:
        """Values, if they are shown, and types of the leaves."""
        return list(zip(values or [None] * len(self.avals), self.avals, strict=True))

    @property
    def moving(self) -> list[bool]:
        """For each leaf, whether it has tangents."""
        return [is_inexact(a.dtype) for a in self.avals]


@dataclass(frozen=True, slots=True)
class Result:
    """The tree of a function's result, and the types of its leaves."""

    treedef: tree.Treedef
    avals: tuple[Aval, ...]


def signature_of(f: Any) -> inspect.Signature | None:
    """The signature, if the function has one."""
    try:
        return inspect.signature(f)
    except (TypeError, ValueError):
        return None


def resolved(f: Any, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Any) -> tuple[Any, ...]:
    """The arguments by position, with defaults."""
    if signature is None:
        if kwargs:
            raise ArgumentError(f"{function_name(f)} has no signature: pass its arguments by position")
        return args
    bound = signature.bind(*args, **kwargs)
    kinds = {name: p.kind for name, p in signature.parameters.items()}
    words = [n for n in bound.arguments if kinds[n] in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)]
    if words:
        raise ArgumentError(
            f"{function_name(f)} has keyword-only arguments, {', '.join(map(repr, words))}: "
            "functions with rules take arguments by position",
            hint="drop the * from its signature",
        )
    bound.apply_defaults()
    return bound.args


def application(f: Any, args: tuple[Any, ...], static: Sequence[int], transform: str) -> tuple[Application, list[Any]]:
    """Flatten the arguments that are not static; the values of the leaves are apart."""
    name = function_name(f)
    fixed = {i % len(args): args[i] for i in static if -len(args) <= i < len(args)}
    if len(fixed) < len(static):
        raise ArgumentError(f"{transform}: nondiff_argnums={tuple(static)}, but {name} has {len(args)} arguments")
    for i, value in fixed.items():
        for x in optree.tree_leaves(value, namespace=tree.NAMESPACE):
            if type(x) is Tracer:
                raise UnexpectedTracerError(
                    f"{transform}: argument {i} of {name} is in nondiff_argnums, but it is traced: {x.aval}",
                    hint="nondiff_argnums is for functions, strings, flags; an array without derivative is an "
                    "argument like others, for which the rule returns None",
                )
    positions = [i for i in range(len(args)) if i not in fixed]
    leaves, treedef = tree.flatten(tuple([args[i] for i in positions]))
    names = leaf_names(f, treedef, positions)
    pairs = [value_and_aval(leaf(x, n)) for x, n in zip(leaves, names, strict=True)]
    values, avals = [v for v, _ in pairs], [t for _, t in pairs]
    zeros = [not is_inexact(t.dtype) or not _moves(v) for v, t in pairs]
    return Application(transform, name, len(args), fixed, treedef, avals, names, zeros), values


def _moves(x: Any) -> bool:
    """Whether a value may have a tangent."""
    return type(x) is Tracer and not x.stopped and not isinstance(x.atom, Literal)


# -- tracing of rules


@dataclass(eq=False, slots=True)
class Frame:
    """Rules that are being traced: of which function, what they captured so far, how many orders of them are."""

    function: Any
    captured: list[Any]
    orders: int = 1
    applied: bool = field(default=False)  # whether a rule applied its own function, which then waits for `captured`


FRAMES: ContextVar[tuple[Frame, ...]] = ContextVar("funcgrad_rules", default=())


class _open:  # noqa: N801 (reads as a statement)
    __slots__ = ("_frame", "_token")

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def __enter__(self) -> None:
        self._token = FRAMES.set((*FRAMES.get(), self._frame))

    def __exit__(self, *exc: object) -> None:
        FRAMES.reset(self._token)


Make = Callable[[Sequence[Any], Sequence[Any] | None], list[Traced]]
"""Traces the rules, given the tracers that they may capture, and the values of the arguments if they are shown."""


def apply(
    primitive: Primitive,
    function: Any,
    a: Application,
    values: list[Any],
    body: Traced,
    make: Make,
    rules: Sequence[Any],
    **params: Any,
) -> Any:
    """Bind a function with rules, and give its results their tree."""
    programs, captured = _rules(function, a, values, make, rules)
    operands = union(body.constants, captured)
    out = bind(
        primitive,
        *operands,
        *values,
        program=with_operands(body.program, body.constants, operands),
        rules=programs(operands),
        captured=len(operands),
        **params,
    )
    return tree.unflatten(body.out_tree, results(out, [*operands, *values]))


def _rules(
    function: Any, a: Application, values: list[Any], make: Make, rules: Sequence[Any]
) -> tuple[Callable[[list[Any]], Rules], list[Any]]:
    """The rules as a function of all operands, and what they capture."""
    around = current()
    assert type(around) is Trace
    mine = [f for f in FRAMES.get() if f.function is function]
    if mine and len(mine) >= mine[0].orders:
        mine[-1].applied = True
        captured = list(mine[-1].captured)
        if captured or any([getattr(f, "__closure__", None) or type(f) is not types.FunctionType for f in rules]):
            _forget(around)
        key = (function, *rules, _static(a), a.treedef, tuple(a.avals))

        def later(operands: list[Any]) -> Rules:
            avals = tuple([aval_of(x) for x in operands])
            slots = [x if any([same(x, y) for y in captured]) else t for x, t in zip(operands, avals, strict=True)]

            def traced() -> Programs:
                with _open(Frame(function, captured)):
                    found = make([x for x in captured if type(x) is Tracer], None)
                return tuple([with_operands(t.program, t.constants, slots) for t in found])

            return Later(traced, (key, avals))

        return later, captured
    frame = Frame(function, [], min(len(around.stack), ORDERS) if around.shows else 1)
    try:
        with _open(frame):
            found = make((), values)
            captured = _captured(found)
            if frame.applied and captured:
                frame.captured = captured
                found = make((), values)
                captured = _captured(found)
    except Exception as error:
        failed = error
        _forget(around)

        def fail() -> Programs:
            raise failed

        return lambda operands: Later(fail, failed), []
    return lambda operands: tuple([with_operands(t.program, t.constants, operands) for t in found]), captured


def _captured(found: list[Traced]) -> list[Any]:
    out: list[Any] = []
    for t in found:
        out = union(out, t.constants)
    return out


def _forget(around: Trace) -> None:
    """The Program holds functions of the user's: it is not kept for other calls."""
    for t in around.stack:
        t.keeps = False


def _static(a: Application) -> Any:
    return tuple([(i, value if _hashable(value) else _Identity(value)) for i, value in sorted(a.static.items())])


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


class _Identity:
    """Equal only if of the same object."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return object.__hash__(self.value)


# -- what rules return


@contextmanager
def returned_by(rule: Any) -> Iterator[None]:
    """Errors about what a rule returned point at the rule, and not at where the function was applied."""
    try:
        yield
    except CustomRuleError as error:
        raise error.at(written_at(rule)) from error.__cause__


def require_moving(
    equations: Sequence[Equation],
    tangents: Sequence[Atom],
    zero: Sequence[Atom],
    found: Sequence[Atom],
    what: str,
    of: str = "tangents",
) -> None:
    """Raise if a tangent that a rule found depends on none of those it got; forward and reverse mode would differ.

    One that is zero may: a constant, one of the atoms `zero`, or a product with these.
    """
    moving, none = set(tangents), set(zero)
    is_zero = lambda a: a in none or (isinstance(a, Literal) and a.is_zero())
    for e in equations:
        if not moving.isdisjoint(e.inputs):
            moving.update(e.outputs)
        elif e.inputs:
            kind = e.primitive.traits.zero
            flags = [is_zero(a) for a in e.inputs]
            if all(flags) if kind in ("sum", "keep") else kind in ("product", "guard") and any(flags):
                none.update(e.outputs)
    for a in found:
        if a.aval.size and a not in moving and not is_zero(a):
            raise CustomRuleError(
                f"{what} that depends on none of the {of} it got: {a.aval}",
                hint="it is linear in them: multiply the derivative by one; if it is zero, return np.zeros_like(out)",
            )


def like(given: Any, treedef: tree.Treedef, avals: Sequence[Aval], what: str, of: str) -> list[Any]:
    """The leaves of what a rule returned, checked; integer leaves as they are."""
    leaves, found = tree.flatten(given)
    if found != treedef:
        raise CustomRuleError(f"{what} must have the tree of {of}; {tree.describe_mismatch(what, treedef, found)}")
    paths = tree.leaf_paths(treedef, what)
    return [fitting(x, aval, path, of) for x, aval, path in zip(leaves, avals, paths, strict=True)]


def fitting(x: Any, aval: Aval, path: str, of: str) -> Any:
    """A leaf as an operand of type `aval`, or an error."""
    if isinstance(x, SymbolicZero):
        return zeros_of(aval)
    try:
        x = leaf(x, path)
    except FuncgradError as error:
        raise CustomRuleError(error.message) from None
    if not isinstance(dtype_key(x), np.dtype):
        x = as_dtype(x, aval.dtype)
    a = aval_of(x)
    if a.shape != aval.shape:
        raise CustomRuleError(f"{path} must have the shape of {of}: expected {aval.shape}, got {a.shape}")
    if a.dtype != aval.dtype:
        raise CustomRuleError(
            f"{path} must have the dtype of {of}: expected {short(aval.dtype)}, got {short(a.dtype)}",
            hint=f".astype({str(aval.dtype)!r})",
        )
    return x


def cotangent_leaves(given: Any, treedef: tree.Treedef, what: str) -> list[Any]:
    """The leaves of a tree of cotangents, in which None stands for a subtree of zeros."""
    if given is None:
        return [None] * treedef.num_leaves
    leaves, found = tree.flatten(given)
    if found == treedef:
        return leaves
    _, spec = optree.tree_flatten(given, lambda x: x is not given, namespace=tree.NAMESPACE)
    if treedef.is_leaf() or spec.is_leaf() or spec.type is not treedef.type or spec.entries() != treedef.entries():
        raise CustomRuleError(
            f"{what} must have the tree of its argument; {tree.describe_mismatch(what, treedef, found)}",
            hint="None stands for zeros",
        )
    out: list[Any] = []
    children = zip(treedef.entries(), spec.flatten_up_to(given), treedef.children(), strict=True)
    for entry, part, node in children:
        out += cotangent_leaves(part, node, what + tree.path_string((entry,)))
    return out


def residual_leaves(given: Any, name: str) -> tuple[list[Any], tree.Treedef]:
    """Residuals as operands, or an error that names the path of what is no array."""
    leaves, treedef = tree.flatten(given)
    out = []
    for x, path in zip(leaves, tree.leaf_paths(treedef, "residuals"), strict=True):
        if type(x) is not Tracer and not isinstance(x, DeviceArray | np.ndarray | np.generic | int | float | complex):
            raise CustomRuleError(
                f"{name}: {path} is a {type(x).__name__}: {printed(x)}; residuals are arrays and numbers",
                hint="make it an argument in nondiff_argnums, which the backward rule gets as well",
            )
        out.append(array(x, path))
    return out, treedef


def no_tangent(aval: Aval, symbolic: bool) -> Any:
    """What stands for the tangent of an integer value."""
    return symbolic_zero(aval) if symbolic else np.zeros(aval.shape, float0)


class WithRules:
    """A function with derivative rules: what `custom_jvp` and `custom_vjp` have in common."""

    transform: ClassVar[str] = ""

    def __init__(self, f: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        require_callable(f, self.transform)
        functools.update_wrapper(self, f)
        given = nondiff_argnums if isinstance(nondiff_argnums, tuple | list) else (nondiff_argnums,)
        numbers = tuple(given)
        if not all([isinstance(i, int) and not isinstance(i, bool) for i in numbers]):
            raise ArgumentError(
                f"{self.transform}: nondiff_argnums is an int or a tuple of ints, got {printed(nondiff_argnums)}"
            )
        self.__wrapped__ = f
        self.name = function_name(f)
        self.signature = signature_of(f)
        self.nondiff_argnums = numbers

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{self.transform} of {self.name}>"

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._require_rules()
        args = resolved(self.__wrapped__, self.signature, args, kwargs)
        if type(current()) is not Trace:
            return self._value(*args)
        a, values = application(self.__wrapped__, args, self.nondiff_argnums, self.transform)
        traced = trace(
            lambda leaves: self._value(*a.arguments(leaves)),
            a.inputs(values),
            a.names,
            name=a.name,
            purpose=a.transform,
            shows=True,
        )
        return self._apply(a, values, traced, Result(traced.out_tree, traced.program.out_avals))

    def _value(self, *args: Any) -> Any:
        """The result of the function itself."""
        return self.__wrapped__(*args)

    def _require_rules(self) -> None:
        """Raise if no rule was defined."""

    def _apply(self, a: Application, values: list[Any], traced: Traced, result: Result) -> Any:
        """Bind the function, given its traced value."""
        raise NotImplementedError
