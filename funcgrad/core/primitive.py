"""A primitive: an atomic operation and everything the rest of funcgrad needs to know about it.

The rules are slots on the object, filled in the block that defines the op; a slot left empty must be declined
with a reason, which is what the user reads when a transform needs it.

| slot | signature |
|---|---|
| `abstract` | ``(*avals, **params) -> tuple of avals`` |
| `evaluate` | ``(*values, **params) -> tuple of values``; NumPy, never fills its inputs |
| `interpret` | as `evaluate`, without compiling the whole; for primitives whose `evaluate` compiles |
| `jvp` | ``(primal, primals, tangents, **params) -> (outputs, tangents_out)`` |
| `transpose` | ``(cotangents, *args, **params) -> one cotangent or None per argument`` |
| `batch` | ``(size, args, dims, **params) -> (outputs, dims_out)`` |
| `split` | ``(equation, unknown) -> (known equations, unknown equations)``; default: all or nothing |
| `emit` | ``(builder, dtype, *registers, **params) -> register``; elementwise ops as instructions |
| `flops` | operations per element, for `cost`; default: from the traits |
| `reduction` | ``(dtype) -> Reduction``; reductions as instructions (`ops.reductions`) |
| `view` | ``(view of the operand, **params) -> view or None``; ops that move nothing |
| `combine` | the elementwise op with which a scatter brings an update to what is there; default: it replaces |
| `recurrence` | a `Recurrence`; cumulative ops as instructions |
| `device_of` | ``(params) -> the name of the device that it asks to run on, or None`` |
| `effects_of` | ``(params) -> frozenset of names``; what has any is never dropped, shared, reordered or run again |
| `refusal` | ``(params) -> error``; of what cannot be computed anywhere |
| `unfold` | ``(*tracers, **params) -> outputs``; the same, bound piece by piece, where values are known |
| `links` | ``(params) -> Links``; for primitives that hold Programs |
| `compiled` | ``(equation) -> Compiled or None``; foreign operations whose function Numba compiled |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal as OneOf

from funcgrad.base.dtypes import Dtype
from funcgrad.base.errors import FuncgradError, RuleError
from funcgrad.base.tree import Treedef
from funcgrad.core.ir import Aval, Equation, Program

ZeroTrait = OneOf["keep", "source", "product", "sum", "guard"]


@dataclass(frozen=True, slots=True)
class Traits:
    """What passes may know of a primitive; they read these and never its name.

    Parameters
    ----------
    exact
        In group E: the compiled result equals the evaluated one bit for bit.
    may_raise
        Evaluation can raise for some values (an index out of bounds).
    zero
        How structural zeros go through it as a linear operation: ``keep`` (linear in one operand), ``source``
        (its zeros are structural: select, pad, scatter against a literal zero), ``product`` (bilinear, guarded
        by the primitive `guarded`), ``sum`` (structural only if all terms are), ``guard`` (a guarded product: the
        first operand itself where that is 0).
    kind
        How it is lowered: elementwise, check, reduce, argreduce, view (other addresses of the same elements), index
        (movement), iota, dot, gather and scatter (at index arrays), window and update (from traced positions on),
        cumulative, sort, solve, foreign (a function of the user's, called), program.
    """

    exact: bool = False
    may_raise: bool = False
    zero: ZeroTrait = "keep"
    kind: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """Stands in a transpose rule for an operand that the operation is linear in."""

    aval: Aval


Flags = tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """How a primitive ties its operands and results to the Programs it holds.

    Operand i is input i of every body, and result j is output j of every body (of the one that runs). The bodies alone
    are the value of the operation: other Programs in the parameters say how it is differentiated.

    Attributes
    ----------
    bodies
        The Programs.
    rebuild
        The parameters for other bodies of the same kind, given which operands and which results are kept.
    carries
        Pairs (output, input): that output of the body comes back as that input in the next round.
    needed
        Outputs that are always wanted.
    held
        Inputs that are never dropped.
    fixed
        Operands and results are also those of other Programs in the parameters: none can be dropped.
    opaque
        The bodies need not be linear where the operation stands in a linear Program: no product in it is guarded.
    """

    bodies: tuple[Program, ...]
    rebuild: Callable[[tuple[Program, ...], Flags, Flags], dict[str, Any]]
    carries: tuple[tuple[int, int], ...] = ()
    needed: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    fixed: bool = False
    opaque: bool = False


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A cumulative op step by step, as instructions.

    Parameters
    ----------
    start
        ``(dtype) -> ((dtype, constant), ...)``: the state before the first step, for results of that dtype.
    step
        ``(builder, dtype, state, *registers) -> (state, register)``: what it is after one, and its result.
    combine
        ``(builder, dtype, register, register) -> register``, if the state is one register and the state after some
        steps is that after the first of them combined with that of the others alone: such steps can be made in parts.
    """

    start: Callable[[Dtype], tuple[tuple[Dtype, float], ...]]
    step: Callable[..., tuple[list[Any], Any]]
    combine: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """The call of a function that Numba compiled: what its flat operands and results are to it.

    Attributes
    ----------
    function
        What Numba code can call, and in `entries` what was made of it for types met before.
    who
        For errors.
    arguments, result
        The trees of its positional arguments and of its result. A leaf without axes is a number.
    keywords
        Fixed arguments.
    levels
        For each vmap around, outermost first, how many rows there are, and which operands have them.
    """

    function: Any
    entries: dict[Hashable, Any]
    who: str
    arguments: Treedef
    result: Treedef
    keywords: dict[str, Any] = field(default_factory=dict)
    levels: tuple[tuple[int, Flags], ...] = ()


class Primitive:
    """An atomic operation. See the module docstring for the slots."""

    def __init__(self, name: str, traits: Traits | None = None, doc: str = "", *, listed: bool = True) -> None:
        if listed and name in registry:
            raise ValueError(f"there is a primitive {name!r} already")
        self.name = name
        self.key: Hashable = name if listed else object()  # equal for the same operation with the same rules only
        self.traits = traits if traits is not None else Traits()
        self.doc = doc
        self.abstract: Callable[..., tuple[Aval, ...]] = self._missing("abstract")
        self.evaluate: Callable[..., tuple[Any, ...]] = self._missing("evaluate")
        self.interpret: Callable[..., tuple[Any, ...]] | None = None
        self.jvp: Callable[..., tuple[Any, Any]] = self._missing("jvp")
        self.transpose: Callable[..., Any] = self._missing("transpose")
        self.batch: Callable[..., tuple[Any, Any]] = self._missing("batch")
        self.split: Callable[[Equation, tuple[bool, ...]], tuple[list[Equation], list[Equation]]] | None = None
        self.refusal: Callable[[dict[str, Any]], FuncgradError] | None = None
        self.unfold: Callable[..., Any] | None = None
        self.links: Callable[[dict[str, Any]], Links] | None = None
        self.compiled: Callable[[Equation], Compiled | None] | None = None
        self.device_of: Callable[[dict[str, Any]], str | None] | None = None
        self.effects_of: Callable[[dict[str, Any]], frozenset[str]] = _no_effects
        self.guarded: Primitive | None = None
        self.unguarded: Primitive | None = None  # it, if the second operand is finite and positive
        self.check: Callable[..., Any] | None = None  # as `emit`, of a check: -> (register, where it fails)
        self.fault: Callable[..., Exception] | None = (
            None  # the error for a value that a native check found, and params
        )
        self.linear_in: tuple[int, ...] | None = None  # the operands that `transpose` is for, if not all
        self.moved_by: tuple[int, ...] | None = None  # the operands that are said to have a derivative, if not all
        self.neutral: dict[int, int] = {}  # operand position → constant there that leaves the other operand as it is
        self.add_onto: Callable[..., Any] | None = None  # (total, *operands, **params) -> total + the result, in place
        self.flops: int | None = None  # per element, if not what follows from the traits (`lowering.cost`)
        self.emit: Callable[..., Any] | None = None  # (builder, dtype, *registers, **params) -> register
        self.reduction: Callable[[Dtype], Any] | None = None
        self.view: Callable[..., Any] | None = None
        self.combine: Primitive | None = None
        self.recurrence: Recurrence | None = None
        self.hidden_params: dict[str, Hashable] = {}  # not printed at this value; None: never printed
        self.declined: dict[str, str] = {}
        if listed:
            registry[name] = self

    def _missing(self, slot: str) -> Callable[..., Any]:
        def raise_missing(*args: Any, **params: Any) -> Any:
            reason = self.declined.get(slot, f"it has no {slot} rule")
            raise RuleError(f"{self.name}: {reason}")

        raise_missing.missing = True  # type: ignore[attr-defined]
        return raise_missing

    def has(self, slot: str) -> bool:
        """Whether the slot was filled."""
        return not getattr(getattr(self, slot), "missing", False)

    def decline(self, slot: str, reason: str) -> None:
        """Say why the slot stays empty; the reason is the error message."""
        self.declined[slot] = reason

    def __repr__(self) -> str:
        return f"{self.name}_p"

    def __reduce__(self) -> tuple[Any, ...]:
        if registry.get(self.name) is not self:
            raise TypeError(f"{self.name} cannot be pickled: only operations of funcgrad are known by their name")
        return _by_name, (self.name,)


registry: dict[str, Primitive] = {}
"""Every primitive of funcgrad by name, in order of definition; those of users are not listed."""


def _by_name(name: str) -> Primitive:
    return registry[name]


def _no_effects(params: dict[str, Any]) -> frozenset[str]:
    return frozenset()
