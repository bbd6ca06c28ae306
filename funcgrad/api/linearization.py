"""What every derivative starts from: a function of the leaves of some arguments, linearised at a point.

Trace, `transforms.jvp`, then `transforms.split` into what is known and what is linear. Products that meet a structural
zero are guarded by `transforms.mask`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.api.placement import to_device
from funcgrad.api.tracing import Traced, function_name, leaf, leaf_names, results, trace, value_and_aval
from funcgrad.base import tree
from funcgrad.base.dtypes import float0, is_inexact, short
from funcgrad.base.errors import ArgumentError, DtypeError, ShapeError, TreeError, printed
from funcgrad.core.device_array import device_of
from funcgrad.core.evaluate import evaluate
from funcgrad.core.ir import Aval, Program, tangent_aval
from funcgrad.core.trace import Trace, current
from funcgrad.numpy.operands import as_dtype, dtype_key
from funcgrad.ops.op import aval_of, constant
from funcgrad.transforms.jvp import jvp as jvp_program
from funcgrad.transforms.mask import mask
from funcgrad.transforms.prune import prune
from funcgrad.transforms.split import split
from funcgrad.transforms.transpose import transpose

# -- arguments


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """A call ``f(*args, **kwargs)`` seen as a function of the leaves of some positional arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: tuple[int, ...]
    treedef: tree.Treedef
    leaves: list[tuple[Any, Aval]]
    names: list[str]

    def call(self, leaves: Sequence[Any]) -> Any:
        """Call the function with other leaves."""
        args = list(self.args)
        for position, value in zip(self.positions, tree.unflatten(self.treedef, leaves), strict=True):
            args[position] = value
        return self.function(*args, **self.kwargs)

    @property
    def values(self) -> list[Any]:
        """The leaves as operands."""
        return [value for value, _ in self.leaves]

    @property
    def avals(self) -> tuple[Aval, ...]:
        """Types of the leaves."""
        return tuple([aval for _, aval in self.leaves])


def arguments(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    positions: tuple[int, ...],
    transform: str,
) -> Arguments:
    """Flatten the differentiated arguments and check that they can be differentiated."""
    leaves, treedef = tree.flatten(tuple([args[i] for i in positions]))
    names = leaf_names(f, treedef, positions)
    pairs = [value_and_aval(leaf(x, n)) for x, n in zip(leaves, names, strict=True)]
    return Arguments(f, args, kwargs, positions, treedef, pairs, names)


def require_inexact(a: Arguments, transform: str) -> None:
    """Raise for integer and boolean leaves."""
    for (_, aval), name in zip(a.leaves, a.names, strict=True):
        if not is_inexact(aval.dtype):
            example = f"{name}=float({name})" if not aval.shape else f"{name}.astype(float)"
            raise DtypeError(
                f"{transform} differentiates with respect to floats, but {name} is {aval}", hint=f"pass {example}"
            )


def positions_of(f: Any, argnums: int | Sequence[int], count: int, transform: str) -> tuple[int, ...]:
    """`argnums` as positions in 0 ... count - 1."""
    out = []
    given = argnums if isinstance(argnums, tuple | list) else (argnums,)
    if not given:
        raise ArgumentError(f"{transform}: argnums is empty: {printed(argnums)}")
    for i in given:
        if not isinstance(i, int | np.integer) or isinstance(i, bool):
            raise ArgumentError(f"{transform}: argnums is an int or a tuple of ints, got {printed(argnums)}")
        if not -count <= i < count:
            name = function_name(f)
            raise ArgumentError(
                f"{transform}: argnums={i}, but {name} was called with {count} positional argument{'s'[: count != 1]}",
                hint="pass the argument by position; keywords are not differentiated",
            )
        out.append(int(i) % count)
    if len(set(out)) < len(out):
        raise ArgumentError(f"{transform}: argnums names an argument twice: {printed(argnums)}")
    return tuple(out)


# -- linearization


@dataclasses.dataclass(slots=True)
class Linearization:
    """A function near a point: its value there, and its derivative as a linear Program.

    Attributes
    ----------
    traced : Traced
    outputs : list
        Values of the outputs at the point (raw, or tracers).
    linear : Program
        Takes the residuals, then one tangent per differentiated leaf; returns the tangents of the outputs where
        `moves` is True.
    residuals : list
    moves : tuple of bool
        For each output, whether its derivative is not identically zero.
    device : str or None
        Where the value was computed, if not in ordinary memory: the derivative is computed there too.
    """

    traced: Traced
    outputs: list[Any]
    linear: Program
    residuals: list[Any]
    moves: tuple[bool, ...]
    device: str | None

    @property
    def linear_flags(self) -> tuple[bool, ...]:
        """Which inputs of `linear` are tangents."""
        n = len(self.residuals)
        return (False,) * n + (True,) * (len(self.linear.inputs) - n)

    def forward(self, structural: bool = False) -> Program:
        """`linear` with guarded products; `structural`: the tangents are basis vectors."""
        flags = self.linear_flags
        return mask(self.linear, flags, tuple([f and structural for f in flags]))[0]

    def backward(self, nonzero: tuple[bool, ...], structural: bool = False) -> tuple[Program, tuple[bool, ...]]:
        """From cotangents of the moving outputs flagged in `nonzero` to the cotangents of the leaves."""
        back, flags = transpose(self.linear, self.linear_flags, nonzero)
        n = len(self.residuals)
        seeds = (False,) * n + (True,) * (len(back.inputs) - n)
        return mask(back, seeds, tuple([s and structural for s in seeds]))[0], flags


def linearization(a: Arguments, traced: Traced, outputs: int) -> Linearization:
    """Differentiate the first `outputs` results of a traced function, at the point where it was traced."""
    program = traced.program
    known = len(traced.constants)
    flags = (False,) * known + tuple([is_inexact(aval.dtype) for _, aval in a.leaves])
    derived, moves = jvp_program(program, flags)
    if outputs < len(program.outputs):  # auxiliary data has no derivative
        kept = [m and i < outputs for i, m in enumerate(moves)]
        derived = prune(derived, (*[True] * len(moves), *[k for k, m in zip(kept, moves, strict=True) if m]))
        moves = tuple(kept)
    tangents = len(derived.inputs) - len(program.inputs)
    halves = split(derived, (False,) * len(program.inputs) + (True,) * tangents)
    point = [*traced.constants, *a.values]
    computed = evaluate(halves.known, point, traced.values)
    outputs = computed[: len(program.outputs)]
    # a tangent that does not depend on the tangents of the inputs is a constant zero
    varying = iter(halves.out_unknown[len(program.outputs) :])
    moves = tuple([m and next(varying) for m in moves])
    first = halves.out_unknown.count(False)
    residuals = [point[i] for i in halves.forwarded] + computed[first:]
    return Linearization(traced, outputs, halves.unknown, residuals, moves, device_of(program, point))


def keep(residuals: list[Any], borrowed: Sequence[Any]) -> list[Any]:
    """Residuals that outlive the call: those that share memory with an argument are copied."""
    arrays = [b for b in borrowed if isinstance(b, np.ndarray)]
    return [
        np.array(r) if isinstance(r, np.ndarray) and any([np.may_share_memory(r, b) for b in arrays]) else r
        for r in residuals
    ]


def zeros_for(aval: Aval, device: str | None) -> Any:
    """A zero cotangent or tangent for the user, of a function that was computed on `device`."""
    if not is_inexact(aval.dtype):
        return np.zeros(aval.shape, float0)
    if isinstance(current(), Trace):
        return constant(0, tangent_aval(aval))
    return there([np.zeros(aval.shape, aval.dtype)], device)[0]


def there(values: Sequence[Any], device: str | None) -> list[Any]:
    """Results of what was computed on `device`, of which some are constants in ordinary memory."""
    if device in (None, "cpu"):
        return list(values)
    return [to_device(v, device) if isinstance(v, np.ndarray | np.generic) else v for v in values]


def all_leaves(
    treedef: tree.Treedef,
    avals: Sequence[Aval],
    found: Sequence[Any],
    flags: Sequence[bool],
    borrowed: Sequence[Any],
    device: str | None,
) -> Any:
    """Cotangents (`found` where `flags`) as the tree of the differentiated arguments; zeros elsewhere."""
    values = iter(found)
    nonzero = iter(flags)
    out = []
    for aval in avals:
        moving = is_inexact(aval.dtype) and next(nonzero)
        out.append(next(values) if moving else zeros_for(aval, device))
    floats = results([x for x in out if x.dtype != float0], borrowed)
    published = [x if x.dtype == float0 else floats.pop(0) for x in out]
    return tree.unflatten(treedef, published)


def traced_for(a: Arguments, transform: str, has_aux: bool) -> tuple[Traced, int, tree.Treedef | None]:
    """Trace; with `has_aux` the outputs are those of the result, then those of the auxiliary data."""
    shape: dict[str, Any] = {}

    def function(tracers: list[Any]) -> Any:
        out = a.call(tracers)
        if has_aux:
            if not isinstance(out, tuple) or len(out) != 2:
                raise TreeError(
                    f"{transform} with has_aux=True: {function_name(a.function)} must return (output, aux), "
                    f"got {type(out).__name__}",
                    hint="return loss, aux",
                )
            shape["out"], shape["aux"] = tree.structure(out[0]), tree.structure(out[1])
        else:
            shape["out"] = tree.structure(out)
        return out

    name = function_name(a.function)
    traced = trace(function, a.leaves, a.names, name=name, purpose=transform, shows=True)
    return dataclasses.replace(traced, out_tree=shape["out"]), shape["out"].num_leaves, shape.get("aux")


# -- derivatives as functions


@dataclasses.dataclass(frozen=True, slots=True)
class LinearRule:
    """The static part of a `LinearMap`: equal for equal functions and types.

    Attributes
    ----------
    program : Program
        Takes the residuals, then what the map is applied to.
    flags : tuple of bool
        Of a transposed map: for each float leaf of the primals, whether `program` returns its cotangent.
    moves : tuple of bool
        For each output of the function, whether its derivative is not identically zero.
    """

    program: Program
    flags: tuple[bool, ...]
    moves: tuple[bool, ...]
    out_tree: tree.Treedef
    out_avals: tuple[Aval, ...]
    in_tree: tree.Treedef
    in_avals: tuple[Aval, ...]
    name: str
    device: str | None
    """Where it is applied, unless its residuals are elsewhere by now."""


class LinearMap:
    """The derivative of a function at a point, or its transpose; a pytree, whose leaves are the residuals."""

    __slots__ = ("__weakref__", "residuals", "rule")

    def __init__(self, residuals: list[Any], rule: LinearRule) -> None:
        self.residuals = residuals
        self.rule = rule

    @property
    def device(self) -> str | None:
        """Where it is applied."""
        return device_of(self.rule.program, self.residuals) or self.rule.device


def register_linear_map(cls: type[LinearMap]) -> None:
    """Make the instances of `cls` pytrees."""
    tree.register_node(cls, lambda m: (m.residuals, m.rule), lambda rule, residuals: cls(list(residuals), rule))


# -- tangents and cotangents


def matching(given: Any, treedef: tree.Treedef, avals: Sequence[Aval], what: str, of: str) -> list[Any]:
    """The leaves of a tangent or cotangent, checked against what they belong to."""
    leaves, found = tree.flatten(given)
    if found != treedef:
        raise TreeError(f"the {what} must have the tree of {of}; {tree.describe_mismatch(what, treedef, found)}")
    out = []
    for i, (x, aval) in enumerate(zip(leaves, avals, strict=True)):
        path = tree.leaf_paths(treedef, what)[i]
        if not is_inexact(aval.dtype):
            out.append(x)
            continue
        x = leaf(x, path)
        key = dtype_key(x)
        if not isinstance(key, np.dtype):
            x = as_dtype(x, aval.dtype)
        a = aval_of(x)
        if a.shape != aval.shape:
            raise ShapeError(f"{path} must have the shape of {of}: expected {aval.shape}, got {a.shape}")
        if a.dtype != aval.dtype:
            raise DtypeError(
                f"{path} must have the dtype of {of}: expected {short(aval.dtype)}, got {short(a.dtype)}",
                hint=f"{what}.astype({str(aval.dtype)!r})",
            )
        out.append(x)
    return out
