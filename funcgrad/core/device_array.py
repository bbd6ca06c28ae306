"""`DeviceArray`: an array in the memory of a device. It never changes; what is done with it runs on its device.

What the device does is given by `lowering`, which fills `_runners`; operators and methods are installed by `api`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from funcgrad.base.errors import ArgumentError, DeviceError
from funcgrad.core.array import _immutable
from funcgrad.core.ir import Aval, Equation, Program, Stack, Typed, Var, make_aval, static_key
from funcgrad.core.primitive import Primitive
from funcgrad.core.stacked import Stacked

_runners: list[Callable[[Program, Sequence[Any], str], list[Any]]] = []  # filled by lowering


class DeviceArray(Typed):
    """An array in the memory of a device, as `jit` with ``device=`` and `device_put` return it.

    It has the operators and methods of `Array`, and NumPy's functions take it; each runs on its device, and so does
    what `grad` and its kin do with it. ``np.asarray(x)`` is a copy in ordinary memory. It cannot be changed in place:
    ``x.at[i].set(v)`` is a changed copy.
    """

    __slots__ = ("__weakref__", "_memory", "aval", "place")

    def __init__(self, place: Any, memory: Any, aval: Aval) -> None:
        if type(aval) is not Aval:
            raise ArgumentError("DeviceArray is not called to make one", hint="fg.device_put(x, 'cuda')")
        self.place = place
        self._memory = memory
        self.aval = aval

    @property
    def device(self) -> str:
        """The name of its device, such as ``"cuda:0"``."""
        return str(self.place.name)

    @property
    def address(self) -> int:
        """Where its elements begin, in C order, in the memory of the device."""
        if self._memory is None:
            raise DeviceError(
                f"an array of type {self.aval} on {self.device} is gone: donated to a jitted function, or deleted",
                hint="use the result of that function, or do not donate the argument",
            )
        return int(self._memory.address)

    def is_deleted(self) -> bool:
        """Whether its memory was given away, by donation or by `delete`."""
        return self._memory is None

    def delete(self) -> None:
        """Give the memory back now. Whatever uses the array after that raises DeviceError."""
        self._memory = None

    def hand_over(self) -> Any:
        """Its memory, which it gives away."""
        memory, self._memory = self._memory, None
        return memory

    @property
    def owns_memory(self) -> bool:
        """Whether its memory is its own, and not that of another library's array, which has an owner there."""
        return self._memory is not None and not hasattr(self._memory, "owner")

    def copied(self) -> DeviceArray:
        """A copy, in memory of its own."""
        address, memory = self.address, self.place.allocate(self.nbytes)
        if self.size:
            self.place.copy(memory.address, address, self.nbytes)
        return DeviceArray(self.place, memory, self.aval)

    def shares(self, other: Any) -> bool:
        """Whether the memory of another array is the same."""
        return type(other) is DeviceArray and other._memory is self._memory

    def to_host(self) -> np.ndarray:
        """A copy in ordinary memory, which waits until the array is computed."""
        address = self.address
        data = self.place.read(address, self.nbytes) if self.size else b""
        return np.frombuffer(data, self.dtype).reshape(self.shape).copy()

    def block_until_ready(self) -> DeviceArray:
        """Wait until the array is computed; returns it."""
        address = self.address
        if self.size:
            self.place.read(address, 1)
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"an array on {self.device} is copied to be a NumPy array")
        return self.to_host() if dtype is None else self.to_host().astype(dtype)

    def item(self, *args: Any) -> Any:
        """The Python scalar."""
        return self.to_host().item(*args)

    def tolist(self) -> Any:
        """Nested lists of Python scalars."""
        return self.to_host().tolist()

    def tobytes(self) -> bytes:
        """The bytes of the elements in C order."""
        return self.to_host().tobytes()

    def __float__(self) -> float:
        return float(self.to_host())

    def __int__(self) -> int:
        return int(self.to_host())

    def __complex__(self) -> complex:
        return complex(self.to_host())

    def __bool__(self) -> bool:
        return bool(self.to_host())

    def __index__(self) -> int:
        return int(self.to_host().__index__())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    def __repr__(self) -> str:
        if self.is_deleted():
            return f"DeviceArray({self.aval}, on {self.device}, deleted)"
        return np.array_repr(self.to_host()).replace("array", "DeviceArray", 1)[:-1] + f", device='{self.device}')"

    def __format__(self, spec: str) -> str:
        return format(self.to_host()[()], spec)

    def __reduce__(self) -> Any:
        return self.to_host().__reduce__()

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.place.to_dlpack(self, **kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.place.index  # kDLCUDA

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        address = self.address
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (address if self.size else 0, False),
            "strides": None,
            "version": 3,
            "stream": 1,  # all of funcgrad's work is on the legacy default stream
        }


class DeviceStack(Stacked):
    """A stack in the memory of a device. Its values are fetched where they are looked at, once.

    Parameters
    ----------
    memory
        Of its words, at `address`; `held` is all that they lead to.
    fetch
        Gives the stack in ordinary memory.
    """

    __slots__ = ("_fetch", "_fetched", "_held", "_memory", "place")

    def __init__(self, aval: Stack, place: Any, memory: Any, held: Any, fetch: Callable[[], Stacked]) -> None:
        self.aval, self.place, self._starts = aval, place, None
        self._memory, self._held, self._fetch = memory, held, fetch
        self._fetched: Stacked | None = None

    @property
    def device(self) -> str:
        """The name of its device."""
        return str(self.place.name)

    @property
    def address(self) -> int:
        """Where its words are, in the memory of the device."""
        return int(self._memory.address)

    def to_host(self) -> Stacked:
        """The stack in ordinary memory."""
        if self._fetched is None:
            self._fetched = self._fetch()
        return self._fetched

    @property
    def data(self) -> Any:
        """As that of a `Stacked`."""
        return self.to_host().data

    @property
    def counts(self) -> tuple[Any, ...]:  # type: ignore[override]
        """As those of a `Stacked`."""
        return self.to_host().counts


THERE = (DeviceArray, DeviceStack)
"""Values in the memory of a device."""
_immutable += [*THERE, Stacked]


def placed(x: Any, place: Any) -> DeviceArray:
    """An array, from ordinary memory or another device, on that device."""
    if type(x) is DeviceArray:
        if x.place is place:
            return x
        x = x.to_host()
    x = np.asarray(x, order="C")
    memory = place.allocate(x.nbytes)
    if x.size:
        place.write(memory.address, x.reshape(-1).view(np.uint8).data)
    return DeviceArray(place, memory, make_aval(x.shape, x.dtype))


def device_of(program: Program, args: Sequence[Any]) -> str | None:
    """Where a Program runs on `args` that nobody placed: where a function in it asked for, else where they lie.

    None: here, where all of them are.

    Raises
    ------
    DeviceError
        They lie on several devices, and nobody asked for one.
    """
    asked = _asked(program)
    if asked not in (None, "cpu"):
        return asked
    there = list(dict.fromkeys([str(a.device) for a in args if type(a) in THERE]))
    if len(there) > 1 and asked is None:
        raise DeviceError(
            f"{program.name}: its arrays lie on {' and '.join(there)}, and nothing says where to compute",
            hint=f"fg.device_put(x, {there[0]!r}) for the others, or jit(f, device={there[0]!r})",
        )
    return asked or there[0] if there else None


def fetched(x: Any) -> Any:
    """A value on a device, brought to ordinary memory; any other as it is."""
    return x.to_host() if type(x) in THERE else x


def _asked(program: Program) -> str | None:
    """The device that the first jitted function in a Program asked for."""

    def find() -> str | None:
        asked = [e.primitive.device_of(e.params) for e in program.equations if e.primitive.device_of is not None]
        return next(filter(None, asked), None)

    return program.remember("device", find)


def run_on(device: str, program: Program, args: Sequence[Any]) -> list[Any]:
    """Run a Program on a device; `args` may be anywhere."""
    return _runners[0](program, args, device)


def apply_there(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> tuple[Any, ...]:
    """Apply a primitive to values of which one is a `DeviceArray`: as a Program, on that device.

    What has effects happens here, on copies; and one that asks for a device itself takes values from anywhere.
    """
    if primitive.device_of is not None:
        return primitive.evaluate(*args, **params)
    if primitive.effects_of(params):
        return primitive.evaluate(*[a.to_host() if type(a) is DeviceArray else a for a in args], **params)
    avals = tuple([a.aval if isinstance(a, Stacked) else make_aval(a.shape, a.dtype) for a in args])
    items = tuple(sorted(params.items()))
    program = _alone(primitive, avals, items, static_key(items))
    device = device_of(program, args)
    assert device is not None
    return tuple(run_on(device, program, args))


@lru_cache(maxsize=1024)
def _alone(
    primitive: Primitive, avals: tuple[Aval, ...], params: tuple[tuple[str, Any], ...], key: Hashable
) -> Program:
    """A Program of one equation; `key` tells apart parameters that are equal but not the same, as 1 and 1.0."""
    inputs = tuple([Var(a) for a in avals])
    given = dict(params)
    outputs = tuple([Var(a) for a in primitive.abstract(*avals, **given)])
    return Program(inputs, (Equation(primitive, inputs, given, outputs, None),), outputs, primitive.name)
