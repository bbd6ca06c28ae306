"""What the builder's operands are: typed values of LLVM text, constants, and what the functions of a module share."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import pack, unpack
from typing import Any, NamedTuple

Number = float | int


@dataclass(frozen=True, slots=True)
class Target:
    """What the emitted text may rely on.

    Parameters
    ----------
    vector_bytes
        Width of a vector register: 64 with AVX-512, 32 with AVX2, 16 below.
    fma
        The CPU multiplies and adds with one rounding. Without the feature LLVM would call libm for each lane
        (20 times slower), so `Builder.fma` is then a product and a sum, and emitters choose other error terms.
    rounding
        The CPU rounds to integers in one instruction (SSE4.1); else `floor` and `rint` are built from sums.
    triple
        The LLVM target triple; "" is the host's.
    """

    vector_bytes: int = 16
    fma: bool = False
    rounding: bool = False
    triple: str = ""

    @property
    def libm(self) -> bool:
        """The C library can be called. PTX has none: there LLVM makes of `frem` a quotient that is rounded."""
        return not self.triple.startswith("nvptx")

    def lanes(self, itemsize: int) -> int:
        """How many elements of `itemsize` bytes fill a register."""
        return self.vector_bytes // itemsize


class Type:
    """A scalar (``lanes == 1``) or vector type. Types are interned: equal types are one object.

    Attributes
    ----------
    element : str
        ``"double" "float" "i128" "i64" "i32" "i16" "i8" "i1"``.
    text : str
        As LLVM writes it: ``"<8 x double>"``.
    suffix : str
        As intrinsics are named: ``"v8f64"``.
    """

    __slots__ = ("bits", "element", "fma", "is_float", "lanes", "suffix", "text")

    def __init__(self, element: str, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        self.is_float = element in ("double", "float")
        self.bits = {"double": 64, "float": 32}.get(element) or int(element[1:])
        self.text = element if lanes == 1 else f"<{lanes} x {element}>"
        self.suffix = ("" if lanes == 1 else f"v{lanes}") + (f"f{self.bits}" if self.is_float else element)
        self.fma = f"@llvm.fma.{self.suffix}"

    def __repr__(self) -> str:
        return self.text

    def with_element(self, element: str) -> Type:
        """The type of the same lane count with another element."""
        return make_type(element, self.lanes)


class Value(NamedTuple):
    """An operand: its text and its type."""

    text: str
    type: Type

    def __repr__(self) -> str:
        return f"{self.type} {self.text}"


Operand = Value | float | int

_types: dict[tuple[str, int], Type] = {}


def make_type(element: str, lanes: int = 1) -> Type:
    """The one `Type` object of an element and a lane count."""
    found = _types.get((element, lanes))
    if found is None:
        found = _types.setdefault((element, lanes), Type(element, lanes))
    return found


def constant(type: Type, value: Number) -> Value:
    """A constant in every lane; a float is rounded to the type, an integer must fit its bits."""
    if type.is_float:
        value = float(value)
        if type.bits == 32:
            value = _to_single(value)
        text = f"0x{pack('>d', value).hex().upper()}"
    else:
        if value != int(value) or not -(1 << (type.bits - 1)) <= value < 1 << type.bits:
            raise ValueError(f"{value} is not a constant of type {type}")
        text = str(int(value)) if type.bits > 1 else str(bool(value)).lower()
    return Value(text if type.lanes == 1 else f"splat ({type.element} {text})", type)


def _to_single(value: float) -> float:
    try:
        return float(unpack("<f", pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


@dataclass(slots=True)
class Function:
    """An outlined helper: the types it takes and returns, and its text."""

    params: tuple[Type, ...]
    results: tuple[Type, ...]
    text: str = ""

    @property
    def result(self) -> str:
        """The return type as LLVM writes it: a struct if there are several."""
        types = [t.text for t in self.results]
        return types[0] if len(types) == 1 else f"{{ {', '.join(types)} }}"


@dataclass(slots=True)
class Shared:
    """What the functions of one module have in common.

    Intrinsics to declare, outlined helpers by name, constants, how many bytes of ``@zeros`` there must be, and the
    calls of foreign code, by what they call: a number, and the equation (see `foreign`).
    """

    declares: dict[str, None] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    constants: dict[tuple[Type, Number | str], Value] = field(default_factory=dict)
    zeros: int = 0
    foreign: dict[Any, tuple[int, Any]] = field(default_factory=dict)

    def text(self) -> str:
        """The declarations and helper functions, to be written once into the module."""
        zeros = f"@zeros = internal global [{self.zeros} x i8] zeroinitializer, align 64"
        head = [*self.declares, *([zeros] if self.zeros else [])]
        return "\n".join([*head, *[f.text for f in self.functions.values()], ""])
