"""Devices, and arrays on them: devices, device_put, device_get; and what a `DeviceArray` can do.

Every operator, method and NumPy function on a `DeviceArray` is jitted, once for each kind of arguments, and runs where
the array is. Numbers are traced where they may change from call to call, and are constants where they say how many or
along which axis.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from funcgrad.api.jit import jit
from funcgrad.api.placement import device_name, to_device, to_host
from funcgrad.api.tracing import boundary, results
from funcgrad.base import tree
from funcgrad.base.errors import (
    ArgumentError,
    AssignmentError,
    FuncgradError,
    ParameterError,
    TracerValueError,
    printed,
)
from funcgrad.base.source import user_source
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.trace import Tracer, describe
from funcgrad.lowering import DEVICES
from funcgrad.numpy import indexing, methods, operators, updates
from funcgrad.numpy.operands import _on_device, has_tracer


@dataclass(frozen=True, slots=True)
class Device:
    """Where arrays can be, and functions can run.

    Attributes
    ----------
    name
        ``"cpu"``, ``"cuda:0"`` …: what `jit` and `device_put` take for ``device=``, as well as this object.
    title
        What its maker calls it.
    arch
        What code is compiled for.
    memory
        Bytes.
    """

    name: str
    title: str
    arch: str
    memory: int

    def __repr__(self) -> str:
        return f"Device({self.name!r}, {self.title!r}, {self.arch!r}, {self.memory / 2**30:.1f} GiB)"


@boundary
def devices(kind: str | None = None) -> list[Device]:
    """The devices of this machine: the CPU, then the GPUs that CuPy finds.

    Parameters
    ----------
    kind
        ``"cpu"`` or ``"cuda"``: those alone, of which there is at least one. By default all; that never raises.

    Raises
    ------
    DeviceError
        GPUs were asked for, and there is none; says what is missing.
    ParameterError
        No such kind.

    Examples
    --------
    >>> import funcgrad as fg
    >>> fg.devices()[0].name
    'cpu'
    """
    if kind is not None and (not isinstance(kind, str) or kind not in DEVICES):
        raise ParameterError(
            f"devices: kind is {' or '.join(map(repr, DEVICES))}, got {printed(kind)}", hint="fg.devices() has all"
        )
    chosen = list(DEVICES) if kind is None else [kind]
    found = [Device(d.name, d.title, d.arch, d.memory) for k in chosen for d in DEVICES[k].devices()]
    if not found:
        DEVICES[chosen[0]].device(f"{kind}:0")  # raises
    return found


@boundary
def device_put(x: Any, device: Any = None) -> Any:
    """`x`, a pytree of arrays and numbers, with every leaf on `device`.

    Parameters
    ----------
    device
        ``"cuda"``, ``"cuda:1"``, ``"cpu"``, or one of `devices`. It has to be said: there is no default.

    Returns
    -------
    pytree
        Of `DeviceArray` (arrays that are there already are not copied), or of `Array` for the CPU. Arrays of other
        libraries, which have ``__cuda_array_interface__`` or ``__dlpack__``, are taken over without a copy if they are
        in C order.

    Raises
    ------
    DeviceError
        The device is not there; says what is missing.
    """
    name = device_name(device, "device_put")
    if name is None:
        raise ArgumentError(
            "device_put: no device was given; it is 'cpu', 'cuda', 'cuda:1' …, or one of funcgrad.devices()",
            hint="fg.device_put(x, 'cuda'); functions for the CPU take arrays as they are",
        )
    leaves, treedef = tree.flatten(x)
    traced = [leaf for leaf in leaves if type(leaf) is Tracer]
    if traced:
        raise ArgumentError(
            f"device_put: {describe(traced[0])} is traced, and what is traced together runs in one place",
            hint="jit(f, device=...) says where; or put the arguments there before the call",
        )
    there = [to_device(leaf, name) for leaf in leaves]
    if name == "cpu":
        there = results([np.asarray(leaf) for leaf in there], leaves)
    return tree.unflatten(treedef, there)


@boundary
def device_get(x: Any) -> Any:
    """`x`, a pytree, with every array on a GPU, also of another library, copied to ordinary memory, as an ndarray."""
    leaves, treedef = tree.flatten(x)
    return tree.unflatten(treedef, [to_host(leaf) for leaf in leaves])


# -- what is done with arrays on a device


@dataclass(frozen=True, slots=True)
class _Hole:
    """Stands in a recipe for the next traced leaf."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice that hashes."""

    start: Any
    stop: Any
    step: Any


class _Plain(Exception):
    """What a function returned that does not depend on values."""


_HOLE = _Hole()
_ARRAYS = (DeviceArray, np.ndarray, np.generic)
_FRACTIONS = (float, complex)
_INDEXED = (indexing.getitem, updates.update, updates.read)
_TRACED: dict[Any, tuple[type, ...]] = dict.fromkeys(_INDEXED, (int, *_FRACTIONS))
"""Functions whose Python numbers are traced in a way of their own; elsewhere integers are constants."""


def _split(x: Any, traced: tuple[type, ...], leaves: list[Any]) -> Any:
    """Arguments as a recipe, which hashes; what is traced goes to `leaves`."""
    kind = type(x)
    if isinstance(x, _ARRAYS) or kind in traced:
        leaves.append(x)
        return _HOLE
    if kind is tuple or kind is list:
        return (kind, tuple([_split(item, traced, leaves) for item in x]))
    if kind is dict:
        return (kind, tuple([(k, _split(v, traced, leaves)) for k, v in x.items()]))
    if kind is slice:
        return _Slice(x.start, x.stop, x.step)
    return x


def _joined(recipe: Any, leaves: Iterator[Any]) -> Any:
    if recipe is _HOLE or type(recipe) is _Hole:
        return next(leaves)
    if type(recipe) is tuple:
        kind, items = recipe
        if kind is dict:
            return {k: _joined(v, leaves) for k, v in items}
        return kind([_joined(item, leaves) for item in items])
    if type(recipe) is _Slice:
        return slice(recipe.start, recipe.stop, recipe.step)
    return recipe


def _applied(function: Callable[..., Any]) -> Callable[..., Any]:
    def apply(recipe: Any, *operands: Any) -> Any:
        args, kwargs = _joined(recipe, iter(operands))
        out = function(*args, **kwargs)
        if not any([type(x) is Tracer for x in tree.flatten(out)[0]]):
            raise _Plain(out)
        return out

    apply.__name__ = apply.__qualname__ = getattr(function, "__name__", "f").strip("_")
    return apply


@functools.cache
def _jitted(function: Callable[..., Any]) -> Any:
    return jit(_applied(function), static_argnums=0)


def _once(function: Callable[..., Any], recipe: Any, leaves: list[Any], traced: int) -> Any:
    """The result, traced for this call alone: Python can ask for the values of all but the first `traced` leaves."""
    applied, place = _applied(function), next(x.device for x in leaves if type(x) is DeviceArray)

    def apply(*operands: Any) -> Any:
        return applied(recipe, *operands, *leaves[traced:])

    apply.__name__ = apply.__qualname__ = applied.__name__
    return jit(apply, device=place)(*leaves[:traced])


def _hashable(x: Any) -> bool:
    try:
        hash(x)
    except TypeError:
        return False
    return True


def on_device(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], traced: tuple[type, ...] = _FRACTIONS
) -> Any:
    """What a function of the public face returns for arguments of which one is a `DeviceArray`."""
    leaves: list[Any] = []
    recipe = _split((tuple(args), kwargs), _TRACED.get(function, traced), leaves)
    try:
        if not _hashable(recipe):  # an array is the end of a slice
            return _once(function, recipe, leaves, len(leaves))
        try:
            return _jitted(function)(recipe, *leaves)
        except TracerValueError:  # an array is a shape, an axis, a mask ...
            try:
                return _once(function, recipe, leaves, 1)
            except TracerValueError:  # the first one is
                return _once(function, recipe, leaves, 0)
    except _Plain as plain:
        return plain.args[0]
    except FuncgradError as error:
        raise error.at(user_source()) from error.__cause__  # the line that asked now, not the one it was traced for


_on_device[:] = [on_device]

# -- operators and methods

_NUMBERS = (bool, int, *_FRACTIONS)


def _operator(function: Callable[..., Any], traced: tuple[type, ...]) -> Callable[..., Any]:
    @boundary
    def method(self: Any, *args: Any) -> Any:
        if has_tracer(args):
            return function(self, *args)
        if not all([operators.accepted(x) for x in args]):
            return NotImplemented
        return on_device(function, (self, *args), {}, traced)

    return method


def _getitem(self: Any, index: Any) -> Any:
    """``x[index]``, as of `Array`. An integer is no part of what is compiled."""
    return indexing.getitem(self, index) if has_tracer((index,)) else on_device(indexing.getitem, (self, index), {})


def _iterate(self: Any) -> Iterator[Any]:
    if not self.shape:
        raise TypeError("iteration over an array without axes")
    return (self[i] for i in range(self.shape[0]))


def _contains(self: Any, value: Any) -> bool:
    return bool((self == value).any())


def _refuse(self: Any, index: Any, value: Any = None) -> NoReturn:
    raise AssignmentError(f"{self.aval} on {self.device} cannot be changed in place", hint="x = x.at[index].set(value)")


def _moved(self: Any, device: Any, /, *, stream: Any = None) -> Any:
    """The array on another device; see `device_put`."""
    return device_put(self, device)


def _copied(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A copy on its device, which stays if the array itself is donated."""
    return self.copied()


def _install() -> None:
    table: dict[str, Any] = {}
    for name, function in operators.operators().items():
        if callable(function):
            powers = name in ("__pow__", "__rpow__")
            table[name] = _operator(function, () if powers else _NUMBERS)
        else:
            table[name] = function
    table |= {name: _operator(f, _NUMBERS) for name, f in methods.matrix_products().items()}
    table |= methods.supported()
    for name, function in methods.read_only().items():
        table[name] = property(functools.partial(lambda f, self: on_device(f, (self,), {}), function))
    table |= {
        "at": property(updates.At, doc="Functional updates: ``x.at[index].set(v)`` returns a changed copy."),
        "__getitem__": _getitem, "__iter__": _iterate, "__contains__": _contains, "__setitem__": _refuse,
        "__delitem__": _refuse, "__hash__": None, "to_device": _moved, "copy": _copied, "__copy__": _copied,
        "__deepcopy__": _copied,
    }  # fmt: skip
    for name, value in table.items():
        setattr(DeviceArray, name, value)


_install()
