"""Switches for debugging, for the length of a ``with`` block; `disable_jit` is one, `debug_nans` another.

Native entries of jitted functions know nothing of them; while one is on, they leave all calls to Python.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from funcgrad.core.array import hold_native


class Mode:
    """A context manager that switches something on or off; may be entered again."""

    _variable: ContextVar[bool | None]
    __slots__ = ("_on", "_tokens")

    def __init__(self, on: bool = True) -> None:
        self._on = bool(on)
        self._tokens: list[Token[Any]] = []

    def __enter__(self) -> None:
        self._tokens.append(self._variable.set(self._on))
        hold_native(self._on)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        hold_native(-self._on)
        self._variable.reset(self._tokens.pop())


class disable_jit(Mode):  # noqa: N801 (reads as a statement)
    """``with disable_jit():`` jit and the loops and branches of `funcgrad.lax` run the Python code, on values.

    So `print`, a debugger and ``if`` work in it. ``disable_jit(False)`` inside turns it off again.

    Examples
    --------
    >>> import funcgrad as fg
    >>> f = fg.jit(lambda x: x if x > 0 else -x)
    >>> with fg.disable_jit():
    ...     float(f(-2.0))
    2.0
    """

    _variable = ContextVar("funcgrad_disable_jit", default=None)
    __slots__ = ()


def jit_disabled() -> bool:
    """Whether jit and loops run as Python."""
    return bool(disable_jit._variable.get())
