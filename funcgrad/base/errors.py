"""The exceptions of funcgrad.

Every one inherits `FuncgradError` and the Python class that people already catch. The first line of the
message stands alone; below it come the user's line, what funcgrad was doing, and one hint with working code:

    ShapeError: dot: contracted axes differ: 4 (axis 1 of x: f64[3,4]) and 3 (axis 0 of w: f64[3,4])
      at train.py:7   h = x @ w
      while tracing loss for grad
      hint: x @ w.T has shape (3, 3)

Each class has a page under docs/errors.
"""

from __future__ import annotations

from contextvars import ContextVar

from numpy.exceptions import AxisError as _NumpyAxisError
from numpy.linalg import LinAlgError as _LinAlgError

from funcgrad.base.source import Source, user_source

_doing: ContextVar[str | None] = ContextVar("funcgrad_doing", default=None)


class doing:  # noqa: N801 (reads as a statement)
    """Say in errors raised inside what was going on, for example ``"tracing loss for grad"``."""

    __slots__ = ("_token", "_what")

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        self._token = _doing.set(self._what)

    def __exit__(self, *exc: object) -> None:
        _doing.reset(self._token)


def printed(value: object, length: int = 60) -> str:
    """A wrong value for an error message: one line, not long, whatever its `repr` does."""
    try:
        return " ".join(repr(value)[:length].split())
    except Exception:
        return f"<{type(value).__name__} without a repr>"


class FuncgradError(Exception):
    """Base class of every error that funcgrad raises on purpose.

    Parameters
    ----------
    message
        One line that stands alone: the operation, the operands by name and type, the numbers that clash.
    hint
        One line with code that works.
    source
        The user's line; by default the innermost frame outside funcgrad. ``None`` where there is none.
    """

    message: str
    hint: str | None
    source: Source | None
    doing: str | None
    settled: bool = False

    def __init__(self, message: str, *, hint: str | None = None, source: Source | None = None) -> None:
        self.message = message
        self.hint = hint
        self.source = source if source is not None else user_source()
        self.doing = _doing.get()
        Exception.__init__(self, message)

    def __str__(self) -> str:
        lines = [self.message]
        if self.source is not None:
            lines.append(f"  at {self.source}   {self.source.text}".rstrip())
        if self.doing:
            lines.append(f"  while {self.doing}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def at(self, source: Source | None) -> FuncgradError:
        """The same error, pointing at `source`; one that came out of a callback stays as it is."""
        if source is not None and not self.settled:
            self.source = source
        return self


class ShapeError(FuncgradError, ValueError):
    """Shapes that do not fit together."""


class DtypeError(FuncgradError, TypeError):
    """A dtype that the operation does not take."""


class AxisError(FuncgradError, _NumpyAxisError):
    """An axis out of range, or given twice."""


class ArgumentError(FuncgradError, TypeError):
    """An argument of the wrong kind, number or value."""


class ParameterError(FuncgradError, ValueError):
    """A static parameter whose value is not allowed."""


class ZeroWeightsError(ParameterError, ZeroDivisionError):
    """Weights of an average that sum to zero."""


class TreeError(FuncgradError, ValueError):
    """Tree structures that differ, or an object that is no pytree."""


class CarryTypeError(FuncgradError, TypeError):
    """A value that a loop carries comes back from its body with another type."""


class BranchTypeError(FuncgradError, TypeError):
    """Branches of a conditional return different types."""


class CallbackError(FuncgradError, ValueError):
    """A callback returns something else than what was declared."""


class NanError(FuncgradError, FloatingPointError):
    """A result is NaN while `debug_nans` is on; says which operation made it."""


class NonScalarOutputError(FuncgradError, TypeError):
    """`grad` of a function whose result is not a real scalar of shape ``()``."""


class TracerValueError(FuncgradError, TypeError):
    """The value of a traced array was asked for where it is not available."""


class TracerBoolConversionError(TracerValueError):
    """Python control flow (``if``, ``while``, ``and``) on a value that is not known while tracing."""


class TracerIntegerConversionError(TracerValueError):
    """A traced value used where Python needs an integer."""


class TracerArrayConversionError(TracerValueError):
    """A traced value turned into a plain array or float, which would drop its derivative."""


class ConcretizationTypeError(TracerValueError):
    """A shape, axis or other static parameter that depends on a traced value."""


class NonConcreteBooleanIndexError(TracerValueError, IndexError):
    """A boolean mask used as an index while its value is not known."""


class UnexpectedTracerError(FuncgradError, TypeError):
    """A tracer used outside the trace (or the thread) that made it."""


class AssignmentError(FuncgradError, TypeError):
    """In-place assignment to a traced array."""


class StaticArgumentError(FuncgradError, ValueError):
    """A static argument of `jit` that cannot be hashed."""


class OutOfBoundsError(FuncgradError, IndexError):
    """An index outside its axis."""


class IndexingError(FuncgradError, IndexError):
    """An index expression that is not allowed."""


class IntegerOverflowError(FuncgradError, OverflowError):
    """A Python integer that does not fit the dtype."""


class UnsupportedError(FuncgradError, NotImplementedError):
    """Something that funcgrad does not do, on purpose; the hint says what to use."""


class RuleError(FuncgradError, NotImplementedError):
    """A primitive without the rule (jvp, transpose, batch) that a transform needs; says why."""


class ProgramError(FuncgradError, AssertionError):
    """A Program that is not well formed: a bug in a rule, found by the checker."""


class UsageError(FuncgradError, TypeError):
    """A transform applied to something that is not a function, or called in the wrong way."""


class CustomRuleError(FuncgradError, TypeError, ValueError):
    """A derivative rule of the user's that is missing, or that gives back something else than it has to."""


class ForwardModeError(FuncgradError, TypeError):
    """Forward mode through a function that has a backward rule only (`custom_vjp`)."""


class LinearityError(FuncgradError, TypeError):
    """Reverse mode through a derivative rule that is not linear in its tangents."""


class NestingError(FuncgradError, RecursionError):
    """Functions, or transforms in each other, are nested deeper than Python's recursion limit allows."""


class SingularMatrixError(FuncgradError, _LinAlgError):
    """A linear system whose matrix is singular."""


class CheckError(FuncgradError, AssertionError):
    """A check of `funcgrad.testing` found two results that differ.

    Parameters
    ----------
    culprit
        Which operation looks wrong, and how.
    """

    culprit: str | None

    def __init__(
        self, message: str, *, culprit: str | None = None, hint: str | None = None, source: Source | None = None
    ) -> None:
        super().__init__(message, hint=hint, source=source)
        self.culprit = culprit

    def __str__(self) -> str:
        first, *rest = super().__str__().split("\n")
        return "\n".join([first, *([f"  culprit: {self.culprit}"] if self.culprit else []), *rest])


class GradientError(CheckError):
    """A derivative is not what differences, or another mode, say that it is."""


class KinkError(CheckError):
    """A derivative was checked at a point where the function has a kink, and so no derivative."""


class DeviceError(FuncgradError, RuntimeError):
    """A device that is not there, or not usable; or an array on a device that was given away. Says what is missing."""


class MissingPackageError(FuncgradError, ImportError):
    """An optional package that is not installed; the hint says how to install it."""
