"""`Array`: what funcgrad returns. A numpy.ndarray with `.at[...]`, fresh and writeable."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

from funcgrad.base.errors import ParameterError, printed
from funcgrad.base.shelter import lock

_traced_types: list[type] = []  # filled by core.trace: instances count as Arrays
_immutable: list[type] = []  # filled by core.device_array: instances are results as they are
_at: list[Callable[[Any], Any]] = []  # filled by funcgrad.numpy


native_switch = bytearray(1)
"""1 while native entries have to leave their calls to Python: they look here."""
_holders = [0]
_lock = lock()


class Config(SimpleNamespace):
    """Settings of the whole process.

    Attributes
    ----------
    results : {"array", "numpy"}
        ``"array"``: results are `funcgrad.Array`. ``"numpy"``: plain ndarrays, and NumPy scalars for shape ``()``.
    debug_nans : bool
        Whether a result that contains NaN raises `NanError`; see the context manager of the same name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _SETTINGS:
            raise ParameterError(f"config has no setting {name!r}", hint=f"settings are {', '.join(_SETTINGS)}")
        if not any([value is v or value == v for v in _SETTINGS[name]]):
            allowed = " or ".join([repr(v) for v in _SETTINGS[name]])
            raise ParameterError(f"config.{name} is {allowed}, got {printed(value)}")
        super().__setattr__(name, value)
        hold_native(0)


_SETTINGS: dict[str, tuple[Any, ...]] = {"results": ("array", "numpy"), "debug_nans": (False, True)}


def hold_native(step: int) -> None:
    """One more (1) or less (-1) that needs calls of jitted functions to go through Python; 0: look at the settings."""
    with _lock:
        _holders[0] += step
        settings = vars(config) if "config" in globals() else {}
        native_switch[0] = bool(_holders[0] or settings.get("results") == "numpy" or settings.get("debug_nans"))


config = Config(results="array", debug_nans=False)


class _ArrayType(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return type.__instancecheck__(cls, instance) or type(instance) in _traced_types


class Array(np.ndarray, metaclass=_ArrayType):
    """A numpy.ndarray with functional updates, ``x.at[i].set(v)``.

    All of ndarray's methods work and do what they do there; ``x.block_until_ready()`` is x. Scalars
    (shape ``()``) also round and hash.
    It pickles as a plain ndarray. While tracing, ``isinstance(x, funcgrad.Array)`` is true for tracers too.
    """

    __slots__ = ()

    @property
    def at(self) -> Any:
        """Functional updates: ``x.at[i].set(v)`` returns a changed copy. See `funcgrad.numpy`."""
        return _at[0](self)

    def block_until_ready(self) -> Array:
        """The array, which is computed already; one on a GPU waits here, so that code for both places can call it."""
        return self

    def __round__(self, ndigits: int | None = None) -> Any:
        return round(self.item(), ndigits) if ndigits is not None else round(self.item())

    def __hash__(self) -> int:  # type: ignore[override]
        if self.shape != ():
            raise TypeError("unhashable type: 'Array' with axes")
        return hash(self.item())

    def __reduce__(self) -> Any:
        return self.view(np.ndarray).__reduce__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.view(np.ndarray).__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return np.array_repr(self.view(np.ndarray)).replace("array", "Array", 1)


def publish(values: Iterable[Any], borrowed: Iterable[Any] = ()) -> list[Any]:
    """Computed values as results that the caller may own: fresh, writeable, C-contiguous, no memory shared.

    Parameters
    ----------
    values
        Arrays or NumPy scalars, as evaluation gives them.
    borrowed
        Objects that live on (arguments, constants, residuals): a value that is one of them, or whose memory one of
        them is a view of, is copied.
    """
    seen: set[int] = set()
    for x in borrowed:
        while x is not None:
            seen.add(id(x))
            x = getattr(x, "base", None)
    plain = config.results == "numpy"
    out: list[Any] = []
    for value in values:
        if type(value) in _immutable:
            out.append(value)
            continue
        if not isinstance(value, np.ndarray):
            if plain:
                out.append(value)
            else:
                scalar = np.ndarray.__new__(Array, (), value.dtype)
                scalar[()] = value
                out.append(scalar)
            continue
        fresh = value.base is None and id(value) not in seen and value.flags.c_contiguous and value.flags.writeable
        if fresh:
            seen.add(id(value))
        else:
            value = np.array(value, order="C", copy=True, subok=False)
        if plain:
            out.append(value if value.ndim else value[()])
        else:
            out.append(value.view(Array))
    return out
