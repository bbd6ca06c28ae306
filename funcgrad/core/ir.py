"""The IR: a `Program` is an ordered list of typed equations.

    program f(x: f64[3]) -> f64[] {
      a: f64[3] = sin x
      b: f64[]  = reduce_sum[axes=(0,)] a
      return b
    }

Invariants (`core.check` proves them): every Var is defined once, before its uses; the avals of outputs are what
the primitive's abstract evaluation gives; parameters are static and hashable. A Program is closed: what a
function captured is among its inputs. Nothing here is changed after it was built, so Programs may share
equations and Vars, and derived Programs are remembered on the Program they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from funcgrad.base.dtypes import Dtype, short, tangent_dtype
from funcgrad.base.source import Source

if TYPE_CHECKING:
    from funcgrad.core.primitive import Primitive

Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Aval:
    """An abstract value: what is known of an array while tracing.

    `weak` marks a Python scalar, which takes the dtype of what it meets; only shape ``()`` is ever weak.
    """

    shape: Shape
    dtype: Dtype
    weak: bool = False

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def __str__(self) -> str:
        return f"{short(self.dtype)}[{','.join(map(str, self.shape))}]" + ("~" if self.weak else "")


class Typed:
    """What has an `aval`, and the attributes of an array that follow from it."""

    __slots__ = ()
    aval: Aval

    @property
    def shape(self) -> Shape:
        """Lengths of the axes."""
        return self.aval.shape

    @property
    def dtype(self) -> Dtype:
        """The dtype."""
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.aval.size

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.aval.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.aval.size * self.aval.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Stack(Aval):
    """The type of a run-time number of values of one type, along a leading axis whose length is not known before.

    What a loop without a known number of trips hands out, one value a trip. Stacks nest: the inner lengths may
    differ. `shape` begins with -1.
    """

    elem: Aval = Aval((), np.dtype(np.float64))

    def __str__(self) -> str:
        inner = ",".join(["*" if n < 0 else str(n) for n in self.shape])
        return f"{short(self.dtype)}[{inner}]"


@lru_cache(maxsize=1024)
def stack_of(elem: Aval) -> Stack:
    """The type of stacks of `elem`, which are not weak."""
    if elem.weak:
        elem = make_aval(elem.shape, elem.dtype)
    return Stack((-1, *elem.shape), elem.dtype, False, elem)


@lru_cache(maxsize=8192)
def make_aval(shape: Shape, dtype: Dtype, weak: bool = False) -> Aval:
    """The `Aval` of that shape and dtype; the same object for the same arguments, mostly."""
    return Aval(shape, dtype, weak)


@lru_cache(maxsize=8192)
def tangent_aval(aval: Aval) -> Aval:
    """The aval of a tangent of a value of type `aval`."""
    if isinstance(aval, Stack):
        return stack_of(tangent_aval(aval.elem))
    return make_aval(aval.shape, tangent_dtype(aval.dtype))


class Var:
    """A value inside a Program; two Vars are the same only if they are one object."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval) -> None:
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var({self.aval})"


class Literal:
    """A constant: one scalar repeated over the shape of `aval`.

    `value` is a NumPy scalar of the dtype of `aval`. Small enough to print, and exact when printed.
    """

    __slots__ = ("_array", "aval", "value")

    def __init__(self, value: Any, aval: Aval) -> None:
        self.value = value
        self.aval = aval
        self._array: Any = None

    @property
    def array(self) -> Any:
        """The constant as an array (stride 0, read-only) or, for shape ``()``, the scalar."""
        if self._array is None:
            self._array = splat(self.value, self.aval)
        return self._array

    @property
    def key(self) -> Hashable:
        """Equal for equal bits: tells 0.0 from -0.0 and knows NaN."""
        return (self.value.tobytes(), self.aval)

    def is_zero(self) -> bool:
        """True for 0, 0.0, -0.0 and False."""
        return not self.value

    def __repr__(self) -> str:
        return f"Literal({self.value!r}, {self.aval})"


Atom = Var | Literal


def splat(value: Any, aval: Aval) -> Any:
    """`value` (a NumPy scalar) repeated over the shape of `aval`, without taking memory for it; read-only."""
    if not aval.shape:
        return value
    out = np.ndarray(aval.shape, aval.dtype, np.asarray(value), 0, (0,) * len(aval.shape))
    out.flags.writeable = False
    return out


class Equation:
    """One application of a primitive: ``outputs = primitive[params] inputs``."""

    __slots__ = ("inputs", "outputs", "params", "primitive", "source")

    def __init__(
        self,
        primitive: Primitive,
        inputs: tuple[Atom, ...],
        params: dict[str, Any],
        outputs: tuple[Var, ...],
        source: Source | None,
    ) -> None:
        self.primitive = primitive
        self.inputs = inputs
        self.params = params
        self.outputs = outputs
        self.source = source

    def replace(
        self,
        *,
        inputs: tuple[Atom, ...] | None = None,
        params: dict[str, Any] | None = None,
        outputs: tuple[Var, ...] | None = None,
    ) -> Equation:
        """A copy with some parts exchanged."""
        return Equation(
            self.primitive,
            self.inputs if inputs is None else inputs,
            self.params if params is None else params,
            self.outputs if outputs is None else outputs,
            self.source,
        )

    def __repr__(self) -> str:
        return f"Equation({self.primitive.name})"


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Inputs, equations in order, outputs.

    `input_names` are the user's names and tree paths, for printing only; equality is identity, `fingerprint`
    tells whether two Programs are the same computation.
    """

    inputs: tuple[Var, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    name: str = "f"
    input_names: tuple[str, ...] = ()
    _memo: dict[Hashable, Any] = field(default_factory=dict, repr=False)

    @property
    def in_avals(self) -> tuple[Aval, ...]:
        """Types of the inputs."""
        return tuple(v.aval for v in self.inputs)

    @property
    def out_avals(self) -> tuple[Aval, ...]:
        """Types of the outputs."""
        return tuple(a.aval for a in self.outputs)

    def remember(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned the first time for `key`: derived Programs live and die with this one."""
        try:
            return self._memo[key]  # type: ignore[no-any-return]
        except KeyError:
            return self._memo.setdefault(key, make())  # type: ignore[no-any-return]

    @property
    def fingerprint(self) -> Hashable:
        """Equal for Programs that are the same computation on the same types; names and lines do not count."""
        return self.remember("fingerprint", lambda: _fingerprint(self))

    @property
    def effects(self) -> frozenset[str]:
        """Effects of the equations: a Program with any must not be dropped, reordered or run twice."""
        return self.remember(
            "effects", lambda: frozenset().union(*(e.primitive.effects_of(e.params) for e in self.equations))
        )

    @property
    def may_raise(self) -> bool:
        """Whether an equation can raise for some values."""
        return self.remember(
            "may_raise", lambda: any([e.primitive.traits.may_raise or holds_raising(e) for e in self.equations])
        )

    @property
    def open_loops(self) -> bool:
        """Whether it holds a loop whose number of trips is not known before."""

        def found() -> bool:
            return any(
                [
                    e.params.get("length", 0) is None or any([body.open_loops for _, body in subprograms(e)])
                    for e in self.equations
                ]
            )

        return self.remember("open loops", found)

    def __str__(self) -> str:
        return PRINTER[0](self) if PRINTER else repr(self)


PRINTER: list[Callable[[Program], str]] = []  # filled by core.printer


def static_key(value: Any) -> Hashable:
    """Equal for equal parameters only: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    if type(value) is int or type(value) is str:
        return value
    if isinstance(value, Program):
        return value.fingerprint
    if isinstance(value, tuple):
        inner = tuple([static_key(v) for v in value])
        return inner if type(value) is tuple else (type(value), inner)
    if isinstance(value, float | complex | np.generic):
        return type(value).__name__, repr(value)
    return type(value), value


def _fingerprint(program: Program) -> Hashable:
    number: dict[Var, int] = {v: i for i, v in enumerate(program.inputs)}

    def atom(a: Atom) -> Hashable:
        return number[a] if isinstance(a, Var) else a.key

    rows: list[Hashable] = []
    for e in program.equations:
        ins = tuple([atom(a) for a in e.inputs])
        for v in e.outputs:
            number[v] = len(number)
        params = tuple([(k, static_key(v)) for k, v in sorted(e.params.items())])
        rows.append((e.primitive.key, ins, params, tuple([v.aval for v in e.outputs])))
    return (program.in_avals, tuple(rows), tuple(atom(a) for a in program.outputs))


def subprograms(equation: Equation) -> Iterable[tuple[str, Program]]:
    """The Programs that an equation holds, by parameter name."""
    for key, value in equation.params.items():
        if isinstance(value, Program):
            yield key, value
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                if isinstance(item, Program):
                    yield f"{key}{i}", item


def can_raise(equation: Equation) -> bool:
    """Whether an equation, or a Program that it holds, can raise for some values."""
    return equation.primitive.traits.may_raise or holds_raising(equation)


def holds_raising(equation: Equation) -> bool:
    """Whether a Program that the equation holds can raise for some values."""
    return any([body.may_raise for _, body in subprograms(equation)])


def last_uses(program: Program) -> tuple[tuple[Var, ...], ...]:
    """For each equation the Vars that nothing needs after it."""

    def find() -> tuple[tuple[Var, ...], ...]:
        alive = {a for a in program.outputs if isinstance(a, Var)}
        dead: list[tuple[Var, ...]] = []
        for e in reversed(program.equations):
            gone = [a for a in e.outputs if a not in alive]
            for a in e.inputs:
                if a not in alive and type(a) is Var:
                    alive.add(a)
                    gone.append(a)
            dead.append(tuple(gone))
        return tuple(reversed(dead))

    return program.remember("last_uses", find)
