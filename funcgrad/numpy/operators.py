"""Python's operators on tracers.

Every operator is NumPy's ufunc of the same meaning, but an operator on weak scalars only stays weak, as in Python
(DESIGN §3.4). There is no ``__iadd__`` and its like: ``x += y`` rebinds the name. `install` puts the operators, and
the methods and protocols of the modules beside this one, on `Tracer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np

from funcgrad.base.dtypes import BOOL
from funcgrad.base.errors import AssignmentError, DtypeError
from funcgrad.base.source import user_source
from funcgrad.core.trace import Tracer, describe, name_of
from funcgrad.numpy.elementwise import call, ops
from funcgrad.ops.op import constant

_KNOWN = (Tracer, float, int, bool, complex, np.ndarray)
_ACCEPTED = (np.generic, np.ndarray, int, float, complex, list, tuple)


def accepted(other: Any) -> bool:
    """Whether an operator takes `other`; anything else gets its own chance first."""
    kind = type(other)
    return kind in _KNOWN or isinstance(other, _ACCEPTED) or hasattr(other, "__array__")


def _unary(ufunc: Any) -> Callable[..., Any]:
    op = ops[ufunc]
    return lambda self: call(op, self, keep_weak=True)


def _binary(ufunc: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    op = ops[ufunc]

    def forward(self: Any, other: Any) -> Any:
        return call(op, self, other, keep_weak=True) if accepted(other) else NotImplemented

    def reflected(self: Any, other: Any) -> Any:
        return call(op, other, self, keep_weak=True) if accepted(other) else NotImplemented

    return forward, reflected


# -- powers


def power(x: Any, y: Any) -> Any:
    """``x ** y``. As in NumPy, a Python number as exponent chooses a cheaper operation where there is one.

    x**2 is square(x), x**1 is x, x**-1 is reciprocal(x), x**0.5 is sqrt(x), and x**0 is 1, with derivative 0
    everywhere.
    """
    if not accepted(y):
        return NotImplemented
    if (type(y) is int or type(y) is float) and type(x) is Tracer:
        kind = x.aval.dtype.kind
        if kind in "fc" or (kind in "iu" and type(y) is int):
            if y == 2:
                return call(ops[np.square], x, keep_weak=True)
            if y == 1:
                return x
            if y == 0:
                return constant(1, x.aval)
            if kind in "fc" and y == -1:
                return call(ops[np.reciprocal], x, keep_weak=True)
            if y == 0.5:
                return call(ops[np.sqrt], x, keep_weak=True)
        elif kind == "b" and type(y) is int and y == 2:  # the square of bool is int8, every other power int64
            return call(ops[np.square], x)
    return call(ops[np.power], x, y, keep_weak=True)


def reflected_power(y: Any, x: Any) -> Any:
    """``x ** y`` with a tracer as exponent."""
    return call(ops[np.power], x, y, keep_weak=True) if accepted(x) else NotImplemented


# -- the rest


def positive(x: Any) -> Any:
    """``+x``: x itself; not defined for bool."""
    if x.aval.dtype == BOOL:
        raise DtypeError("positive: not defined for bool")
    return x


def _divmod(x: Any, y: Any) -> Any:
    if not accepted(y):
        return NotImplemented
    return call(ops[np.floor_divide], x, y, keep_weak=True), call(ops[np.remainder], x, y, keep_weak=True)


def _rdivmod(y: Any, x: Any) -> Any:
    return _divmod(x, y) if accepted(x) else NotImplemented


def _iterate(x: Any) -> Iterator[Any]:
    if not x.aval.shape:
        raise TypeError(f"iteration over an array without axes: {describe(x)}")
    return (x[i] for i in range(x.aval.shape[0]))


def _contains(x: Any, value: Any) -> bool:
    found = x == value
    return bool(found.any()) if type(found) is Tracer else bool(found)


_ASSIGNMENT = re.compile(r"([A-Za-z_][\w.]*)\s*\[([^;]*)\]\s*(\*\*|[-+*/]|)=(?!=)\s*([^#;]*?)\s*(?:[#;].*)?")
_UPDATES = {"": "set", "+": "add", "-": "subtract", "*": "multiply", "/": "divide", "**": "power"}


def update_hint(name: str, function: str = "{}") -> str:
    """The user's assignment to an item, written as an update; in general terms where their line is not at hand."""
    source = user_source()
    found = _ASSIGNMENT.fullmatch(source.text) if source is not None else None
    target, where, operator, value = found.groups() if found else (name, "index", "", "value")
    value = value if len(value) < 40 else "value"
    return f"{target} = {function.format(target)}.at[{where}].{_UPDATES[operator]}({value})"


def _refuse_assignment(x: Any, index: Any, value: Any) -> NoReturn:
    raise AssignmentError(
        f"item assignment: {describe(x)} is traced and cannot be changed in place",
        hint=update_hint(name_of(x) or "x"),
    )


def _refuse_deletion(x: Any, index: Any) -> NoReturn:
    raise AssignmentError(f"item deletion: {describe(x)} is traced and cannot be changed in place")


_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.divide, "floordiv": np.floor_divide,
    "mod": np.remainder, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal,
}  # fmt: skip
_UNARY = {"neg": np.negative, "abs": np.absolute, "invert": np.invert}


def operators() -> dict[str, Any]:
    """Special method name → function."""
    table: dict[str, Any] = {
        "__pow__": power,
        "__rpow__": reflected_power,
        "__pos__": positive,
        "__divmod__": _divmod,
        "__rdivmod__": _rdivmod,
        "__iter__": _iterate,
        "__contains__": _contains,
        "__setitem__": _refuse_assignment,
        "__delitem__": _refuse_deletion,
        "__array_priority__": 1000.0,
    }
    for name, ufunc in _BINARY.items():
        table[f"__{name}__"], table[f"__r{name}__"] = _binary(ufunc)
    for name, ufunc in _COMPARE.items():
        table[f"__{name}__"], _ = _binary(ufunc)
    for name, ufunc in _UNARY.items():
        table[f"__{name}__"] = _unary(ufunc)
    return table


def install(table: Mapping[str, Any]) -> None:
    """Put operators or methods on `Tracer`."""
    for name, value in table.items():
        setattr(Tracer, name, value)
