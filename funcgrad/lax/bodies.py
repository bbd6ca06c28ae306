"""Bodies of loops and branches: a user's function traced once, with its captures as constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from funcgrad.api.tracing import called_with, function_name, results, role_of, trace
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, CarryTypeError, TreeError, UsageError, printed
from funcgrad.core.canonical import canonical
from funcgrad.core.ir import Aval, Program, make_aval
from funcgrad.core.trace import Tracer, current, eagerly
from funcgrad.numpy.operands import array, as_dtype, is_weak, operand
from funcgrad.ops.op import aval_of

FORMS = {
    "cond": "cond(pred, true_fun, false_fun, *operands)",
    "fori_loop": "fori_loop(lower, upper, body_fun, init_val)",
    "map": "map(f, xs)",
    "scan": "scan(f, init, xs)",
    "switch": "switch(index, branches, *operands)",
    "while_loop": "while_loop(cond_fun, body_fun, init_val)",
}
"""How each loop and branch is called, for errors."""


@dataclass(frozen=True, slots=True)
class Body:
    """A traced function.

    Attributes
    ----------
    program : Program
        Inputs: the constants, then the leaves of the arguments.
    constants : list
        What the function captured.
    out_tree : Treedef
        Structure of its result.
    """

    program: Program
    constants: list[Any]
    out_tree: tree.Treedef

    @property
    def arguments(self) -> Sequence[Any]:
        """The inputs of the Program after the constants."""
        return self.program.inputs[len(self.constants) :]


def trace_body(
    f: Callable[..., Any],
    treedef: tree.Treedef,
    avals: Sequence[Aval],
    names: Sequence[str],
    purpose: str,
    role: str,
) -> Body:
    """Trace ``f(*args)`` for leaves of the given types, where ``args`` has the structure `treedef`."""
    require_function(f, purpose, role)

    def function(tracers: list[Any]) -> Any:
        return called_with(ArgumentError, f"{purpose}: {role_of(f, role)}", f, tree.unflatten(treedef, tracers))

    traced = trace(function, [(None, a) for a in avals], names, name=function_name(f), purpose=purpose, shows=False)
    program, _ = canonical(traced.program, {})
    return Body(program, traced.constants, traced.out_tree)


def require_function(f: Any, name: str, role: str) -> None:
    """Raise unless the argument `role` of the loop or branch `name` can be called."""
    if not callable(f):
        constant = f"; a constant is lambda *args: {printed(f, 20)}" if isinstance(f, int | float | complex) else ""
        raise UsageError(f"{name}: {role} is a function, got {type(f).__name__}", hint=f"{FORMS[name]}{constant}")


def leaves_of(value: Any, what: str) -> tuple[list[Any], tree.Treedef, list[str]]:
    """The leaves of an operand as operands (Python scalars still weak), its structure, and a path for each leaf."""
    leaves, treedef = tree.flatten(value)
    paths = list(tree.leaf_paths(treedef, what))
    return [operand(x, p) for x, p in zip(leaves, paths, strict=True)], treedef, paths


@dataclass(slots=True)
class Carry:
    """The leaves of a carry: strong values, and which of them were Python scalars, whose dtype may still change."""

    values: list[Any]
    weak: list[bool]
    tree: tree.Treedef
    paths: list[str]

    @staticmethod
    def of(value: Any, what: str) -> Carry:
        """The carry that a user gave."""
        leaves, treedef, paths = leaves_of(value, what)
        return Carry([array(x) for x in leaves], [is_weak(x) for x in leaves], treedef, paths)

    @property
    def avals(self) -> list[Aval]:
        """Their types."""
        return [_strong_aval(x) for x in self.values]

    def meets(self, name: str, out_tree: tree.Treedef, out: Sequence[Aval]) -> bool:
        """Whether a body that returns `out` can go on with it; a Python scalar takes the dtype that the body gives.

        Raises
        ------
        TreeError
            The structures differ.
        CarryTypeError
            A type differs.
        """
        if out_tree != self.tree:
            raise TreeError(tree.describe_mismatch(f"{name}: the carry that the body returns", self.tree, out_tree))
        same = True
        for i, (mine, theirs) in enumerate(zip(self.avals, out, strict=True)):
            if mine == theirs:
                continue
            if not (self.weak[i] and mine.shape == theirs.shape and _widens(mine, theirs)):
                raise CarryTypeError(
                    f"{name}: {self.paths[i]} goes in as {mine} and comes back as {theirs}",
                    hint="start with an array of the type that the body returns, or convert in the body: .astype(...)",
                )
            self.values[i] = as_dtype(self.values[i], theirs.dtype)
            same = False
        return same


def _widens(mine: Aval, theirs: Aval) -> bool:
    return "biufc".index(mine.dtype.kind) <= "biufc".index(theirs.dtype.kind)


def _strong_aval(x: Any) -> Aval:
    aval = aval_of(x)
    return make_aval(aval.shape, aval.dtype)


def finish(values: Sequence[Any], borrowed: Sequence[Any]) -> list[Any]:
    """What the user gets."""
    return results(values, [x for x in borrowed if type(x) is not Tracer])


def run_bound(function: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    """Bind in the trace around, or compute at once."""
    if current() is None:
        with eagerly():
            return function()
    return function()
