"""Where the values of straight-line code are: in registers, in memory, or in a growing buffer."""

from __future__ import annotations

from dataclasses import dataclass

from funcgrad.core.ir import Aval, Stack
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.values import Value, make_type
from funcgrad.ops.scalar import element_of

SMALL = 16  # elements of a value that is kept in registers
I64 = make_type("i64")


def memory_element(aval: Aval) -> str:
    """The element type in memory: bools take a byte."""
    return "i8" if aval.dtype.kind == "b" else element_of(aval.dtype)


def register_element(aval: Aval) -> str:
    """The element type in registers."""
    return element_of(aval.dtype)


@dataclass(frozen=True, slots=True)
class Memory:
    """An array in C order that begins at `pointer`."""

    pointer: str
    aval: Aval

    def at(self, b: Builder, place: Value | int) -> str:
        """The address of element `place`."""
        text = str(place) if isinstance(place, int) else place.text
        if text == "0":
            return self.pointer
        return b.emit(I64, f"getelementptr {memory_element(self.aval)}, ptr {self.pointer}, i64 {text}").text

    def load(self, b: Builder, place: Value | int) -> Value:
        """Element `place`."""
        element = memory_element(self.aval)
        value = b.emit(make_type(element), f"load {element}, ptr {self.at(b, place)}, align {self.aval.dtype.itemsize}")
        return b.ne(value, 0) if self.aval.dtype.kind == "b" else value

    def store(self, b: Builder, place: Value | int, value: Value) -> None:
        """Set element `place`."""
        if self.aval.dtype.kind == "b":
            value = b.convert(value, make_type("i8"))
        address = self.at(b, place)
        b.lines.append(f"  store {value.type.text} {value.text}, ptr {address}, align {self.aval.dtype.itemsize}")

    def row(self, b: Builder, i: Value, elem: Aval) -> Memory:
        """Row `i` along the first axis."""
        start = i if elem.size == 1 else b.imul(i, elem.size)
        return Memory(self.at(b, start), elem)


@dataclass(frozen=True, slots=True)
class StackCell:
    """A stack: rows `first` ... ``first + count - 1`` of the growing buffer whose description lies at `slot`."""

    slot: Value
    first: Value
    count: Value
    aval: Stack

    @property
    def words(self) -> tuple[Value, Value, Value]:
        """The integers that it consists of."""
        return self.slot, self.first, self.count


Cell = list[Value] | Memory | StackCell


def is_small(aval: Aval) -> bool:
    """Whether values of this type are kept in registers; stacks are, as three integers."""
    return isinstance(aval, Stack) or aval.size <= SMALL
