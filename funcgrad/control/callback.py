"""`callback`: a Python function that is called when the Program runs.

    results = callback(*operands)

The function gets its operands as fresh arrays, and what it returns is checked against the declared types and copied.
An effect is what must happen once, in its place: it is never dropped, shared, moved out of a loop or run again in the
reverse mode. Without one the function is pure, and may be called as often as it is needed, or not at all.

Under vmap it is called for every row, the rows of an outer vmap outside: `levels` says for each vmap around, outermost
first, how many rows there are and which operands have them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from types import BuiltinMethodType, MethodType
from typing import Any

import numpy as np

from funcgrad.base import tree
from funcgrad.base.dtypes import is_inexact
from funcgrad.base.errors import CallbackError, FuncgradError, RuleError
from funcgrad.core.ir import Aval, Equation, make_aval
from funcgrad.core.nans import once
from funcgrad.core.primitive import Compiled, Flags, Primitive, Traits
from funcgrad.core.trace import bind, outside
from funcgrad.ops.broadcasting import align, reshape
from funcgrad.ops.op import aval_of

callback_p = Primitive(
    "callback", Traits(kind="foreign", may_raise=True), "A Python function called with arrays while the Program runs."
)
callback_p.hidden_params = {"effect": "", "vmap_method": "sequential", "levels": (), "results": None}

Levels = tuple[tuple[int, Flags], ...]
METHODS = ("sequential", "expand_dims", "broadcast_all")


@dataclass(frozen=True, slots=True)
class Callee:
    """What is called, and how its flat operands and results are put together; equal for the same function.

    Attributes
    ----------
    function
        The user's.
    in_tree : Treedef
        Of its arguments, ``(args, kwargs)``.
    fixed : tuple
        Pairs (position, `Held`) of leaves that are no arrays, and are handed over as they are.
    out_tree : Treedef or None
        Of its result; None if the result does not matter.
    """

    function: Callable[..., Any] = field(compare=False)
    in_tree: tree.Treedef
    fixed: tuple[tuple[int, Held], ...]
    out_tree: tree.Treedef | None
    key: Hashable = None
    plain: bool = field(default=False, compare=False)  # its arguments are arrays by position

    @staticmethod
    def of(function: Callable[..., Any], in_tree: Any, fixed: Any, out_tree: Any) -> Callee:
        """A callee whose function is known by identity, unless it is a method or says when it is equal."""
        by_value = isinstance(function, MethodType | BuiltinMethodType) or getattr(function, "by_value", False)
        plain = not fixed and in_tree == tree.structure(((0,) * in_tree.num_leaves, {}))
        return Callee(function, in_tree, tuple(fixed), out_tree, function if by_value else Held(function), plain)

    def __call__(self, values: Sequence[Any]) -> Any:
        """The result for arrays."""
        if self.plain:
            return self.function(*values)
        leaves = list(values)
        for position, held in self.fixed:
            leaves.insert(position, held.value)
        args, kwargs = tree.unflatten(self.in_tree, leaves)
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """For errors."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __str__(self) -> str:
        return self.name


class Held:
    """Any object, known by identity, or by value if it is a string."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Held):
            return NotImplemented
        return self.value is other.value or (isinstance(self.value, str) and self.value == other.value)

    def __hash__(self) -> int:
        return hash(self.value) if isinstance(self.value, str) else id(self.value)


def callback(callee: Callee, results: tuple[Aval, ...], args: Sequence[Any], effect: str, vmap_method: str) -> Any:
    """Call `callee` when the Program runs; `effect` is "" for a pure function."""
    return bind(callback_p, *args, callee=callee, results=results, effect=effect, vmap_method=vmap_method, levels=())


def _abstract(
    *avals: Aval, callee: Callee, results: tuple[Aval, ...], effect: str, vmap_method: str, levels: Levels
) -> tuple[Aval, ...]:
    sizes = tuple([n for n, _ in levels])
    return tuple([make_aval((*sizes, *a.shape), a.dtype) for a in results])


def _evaluate(
    *values: Any, callee: Callee, results: tuple[Aval, ...], effect: str, vmap_method: str, levels: Levels
) -> tuple[Any, ...]:
    found: tuple[Any, ...] = once(lambda: _rows(callee, results, values, levels), bool(effect))
    return found


def _rows(callee: Callee, results: tuple[Aval, ...], values: Sequence[Any], levels: Levels) -> tuple[Any, ...]:
    """The results for every row, stacked; the first level is the outermost loop."""
    if not levels:
        return _call(callee, results, values)
    (size, mapped), *inner = levels
    out = [np.empty((size, *[n for n, _ in inner], *a.shape), a.dtype) for a in results]
    for i in range(size):
        row = [v[i] if m else v for v, m in zip(values, mapped, strict=True)]
        for whole, one in zip(out, _rows(callee, results, row, tuple(inner)), strict=True):
            whole[i] = one
    return tuple(out)


_ONE = (np.ndarray, np.generic, float, int)


def _call(callee: Callee, results: tuple[Aval, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    found = called(callee, values)
    if callee.out_tree is None:
        return ()
    if callee.out_tree.is_leaf() and isinstance(found, _ONE):
        leaves, out_tree = [found], callee.out_tree
    else:
        leaves, out_tree = tree.flatten(found)
    if out_tree != callee.out_tree:
        what = f"callback: the result of {callee.name}"
        raise CallbackError(tree.describe_mismatch(what, callee.out_tree, out_tree))
    try:
        return tuple([checked_copy("", x, a, "") for x, a in zip(leaves, results, strict=True)])
    except CallbackError:  # once more, with the names for the message
        paths = tree.leaf_paths(out_tree, "result")
        for x, a, path in zip(leaves, results, paths, strict=True):
            checked_copy(f"callback: {callee.name}", x, a, path)
        raise


def called(function: Callable[[list[Any]], Any], values: Sequence[Any]) -> Any:
    """What a function of the user's returns for copies of `values`, called as if nothing were traced."""
    arrays = [np.array(v, order="C", subok=False) for v in values]
    try:
        with outside():
            return function(arrays)
    except FuncgradError as error:
        error.settled = True
        raise


def checked_copy(who: str, x: Any, aval: Aval, path: str) -> Any:
    """A copy of one result, which has the declared type; a Python scalar takes the declared dtype if it can."""
    value = np.asarray(x)
    if type(x) in (bool, int, float, complex) and "biufc".index(value.dtype.kind) <= "biufc".index(aval.dtype.kind):
        try:
            value = np.array(x, aval.dtype)
        except OverflowError as error:
            raise CallbackError(f"{who} returns {x} as {path}, declared is {aval}: {error}") from None
    if value.shape != aval.shape or value.dtype != aval.dtype:
        known = value.dtype.kind in "biufc"
        found = str(make_aval(value.shape, value.dtype)) if known else f"a {type(x).__name__}"
        same = value.shape == aval.shape and known
        hint = f"return x.astype({str(aval.dtype)!r})" if same else "declare what it returns"
        raise CallbackError(f"{who} returns {found} as {path}, declared is {aval}", hint=hint)
    out = np.array(value, order="C", copy=True, subok=False)
    return out if out.ndim else out[()]


def _jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
    callee, results = params["callee"], params["results"]
    says = getattr(callee.function, "derivative", "custom_jvp says what it is")
    if any([is_inexact(a.dtype) for a in results]):
        k = next(i for i, t in enumerate(tangents) if t is not None)
        raise RuleError(
            f"callback: the derivative of {callee.name} is not known, "
            f"and operand {k} ({aval_of(primals[k])}) is differentiated",
            hint=f"{says}; stop_gradient(x) says that there is none",
        )
    return primal(), (None,) * len(results)


def _batch(size: int, args: Any, dims: Any, **params: Any) -> Any:
    method, results = params["vmap_method"], params["results"]
    if method == "sequential":
        mapped = tuple([d is not None for d in dims])
        rows = [align(x, d, 0, size) if d is not None else x for x, d in zip(args, dims, strict=True)]
        levels = ((size, mapped), *params["levels"])
        return bind(callback_p, *rows, **{**params, "levels": levels}), (0,) * len(results)
    every = method == "broadcast_all"
    rows = [_with_rows(x, d, size, every) for x, d in zip(args, dims, strict=True)]
    declared = tuple([make_aval((size, *a.shape), a.dtype) for a in results])
    return bind(callback_p, *rows, **{**params, "results": declared}), (0,) * len(results)


def _with_rows(x: Any, dim: int | None, size: int, every: bool) -> Any:
    """An operand with its rows first; one that is the same for all rows has one row, or `size` of them."""
    if dim is not None or every:
        return align(x, dim, 0, size)
    return reshape(x, (1, *aval_of(x).shape))


callback_p.abstract = _abstract
callback_p.evaluate = _evaluate
callback_p.jvp = _jvp
callback_p.decline("transpose", "a callback is not linear")
callback_p.batch = _batch


def _compiled(e: Equation) -> Compiled | None:
    callee = e.params["callee"]
    native = getattr(callee.function, "native", None)
    arguments, keywords = callee.in_tree.children()
    if native is None or keywords.num_leaves or callee.fixed or callee.out_tree is None:
        return None
    who = f"callback: {callee.name}"
    return Compiled(*native, who, arguments, callee.out_tree, levels=e.params["levels"])


callback_p.compiled = _compiled
callback_p.effects_of = lambda params: frozenset([params["effect"]] if params["effect"] else [])

__all__ = ["METHODS", "Callee", "callback", "callback_p", "called", "checked_copy"]
