"""The user's line: where in their code an operation was asked for.

Every equation keeps a `Source`, so that an error found long after tracing can still point at the line that
caused it. Taking one costs a few frame look-ups; the line number and text are read only when printed.

    >>> from funcgrad.base import source
    >>> isinstance(source.user_source(), source.Source)
    True
"""

from __future__ import annotations

import linecache
import os
import sys
from types import CodeType, FrameType, TracebackType
from typing import TypeVar

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # as the import system spells it: links are not followed
_USERLIKE = (_PACKAGE + "demo" + os.sep,)  # parts of the package that are written as a user would
_LIBRARIES = (
    f"site-packages{os.sep}numpy{os.sep}",
    f"site-packages{os.sep}optree{os.sep}",
    f"site-packages{os.sep}scipy{os.sep}",
)  # they call back into us
_internal: dict[str, bool] = {}


def is_internal(filename: str) -> bool:
    """True for files of funcgrad and of the libraries that call back into it."""
    known = _internal.get(filename)
    if known is None:
        known = filename.startswith(_PACKAGE) and not filename.startswith(_USERLIKE)
        known = known or any(part in filename for part in _LIBRARIES)
        _internal[filename] = known
    return known


class Source:
    """A place in the user's code."""

    __slots__ = ("code", "offset")

    def __init__(self, code: CodeType, offset: int) -> None:
        self.code = code
        self.offset = offset

    @property
    def filename(self) -> str:
        """Full path of the file."""
        return self.code.co_filename

    @property
    def line(self) -> int:
        """Line number, from 1."""
        for start, end, line in self.code.co_lines():
            if start <= self.offset < end and line is not None:
                return line
        return self.code.co_firstlineno

    @property
    def text(self) -> str:
        """The line itself, stripped; empty when the file cannot be read."""
        return linecache.getline(self.filename, self.line).strip()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Source) and self.code is other.code and self.offset == other.offset

    def __hash__(self) -> int:
        return hash((self.code, self.offset))

    def __str__(self) -> str:
        name = "cell" if "ipykernel" in self.filename else os.path.basename(self.filename)
        return f"{name}:{self.line}"


def user_source() -> Source | None:
    """The innermost frame, above the caller's, that is not funcgrad's."""
    frame: FrameType | None = sys._getframe(2)
    known = _internal
    while frame is not None:
        code = frame.f_code
        internal = known.get(code.co_filename)
        if internal is None:
            internal = is_internal(code.co_filename)
        if not internal:
            return Source(code, frame.f_lasti)
        frame = frame.f_back
    return None


def user_place(error: BaseException) -> Source | None:
    """Where the innermost frame that is not funcgrad's was when `error` came out of it."""
    found = None
    tb = error.__traceback__
    while tb is not None:
        if not is_internal(tb.tb_frame.f_code.co_filename):
            found = Source(tb.tb_frame.f_code, tb.tb_lasti)
        tb = tb.tb_next
    return found


E_ = TypeVar("E_", bound=BaseException)


def hide_internal_frames(error: E_) -> E_:
    """Drop funcgrad's own frames from the traceback of `error`, unless FUNCGRAD_TRACEBACK=full."""
    if os.environ.get("FUNCGRAD_TRACEBACK") == "full":
        return error
    kept: list[TracebackType] = []
    tb = error.__traceback__
    while tb is not None:
        if not is_internal(tb.tb_frame.f_code.co_filename):
            kept.append(tb)
        tb = tb.tb_next
    chain: TracebackType | None = None
    for tb in reversed(kept):
        chain = TracebackType(chain, tb.tb_frame, tb.tb_lasti, tb.tb_lineno)
    return error.with_traceback(chain)
