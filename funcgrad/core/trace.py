"""Tracing: the recorder of equations, the stand-in for an array, and `bind`, where a primitive is applied.

A `Trace` is open between ``with`` and its end; the innermost open one is `current()`. An operation joins it when
it has a traced operand, or always while a body (of jit, of a transform) is traced. What belongs to an outer trace
or is a plain array becomes an input of the inner Program, so that no perturbation is ever confused.

Outside bodies of jit a tracer can also say its value, so that Python control flow works under grad. Values are
computed on demand, in order, each at most once; operations that can raise are computed where they stand.

    >>> import numpy as np
    >>> from funcgrad.core.ir import make_aval
    >>> with Trace("f") as t:
    ...     x = t.input(make_aval((3,), np.dtype(float)), np.ones(3))
    >>> t.program([x]).in_avals
    (Aval(shape=(3,), dtype=dtype('float64'), weak=False),)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextvars import ContextVar, Token
from threading import get_ident
from typing import Any, NoReturn

import numpy as np

from funcgrad.base.errors import (
    FuncgradError,
    TracerArrayConversionError,
    TracerBoolConversionError,
    TracerIntegerConversionError,
    TracerValueError,
    UnexpectedTracerError,
    printed,
)
from funcgrad.base.source import Source, user_place, user_source
from funcgrad.core.array import _traced_types
from funcgrad.core.device_array import THERE, DeviceArray, apply_there
from funcgrad.core.ir import Atom, Aval, Equation, Literal, Program, Typed, Var, holds_raising, make_aval
from funcgrad.core.primitive import Primitive
from funcgrad.core.stacked import Stacked

_ARRAY_ADVICE = "np.stack([a, b]) or fnp.array([a, b]), not np.array; "
_FLOAT_ADVICE = "np.sin(x), not math.sin(x); fnp.zeros(n).at[i].set(x), not buffer[i] = x; "


class Tracer(Typed):
    """Stands for an array while a function is traced. Operators and methods are installed by funcgrad.numpy."""

    __slots__ = ("__weakref__", "atom", "aval", "owner", "stopped")

    def __init__(self, trace: Trace, atom: Atom) -> None:
        self.owner = trace
        self.atom = atom
        self.aval: Aval = atom.aval
        self.stopped = False

    @property
    def value(self) -> Any:
        """The plain array behind ``stop_gradient(x)``; only there, because it drops the derivative."""
        if not self.stopped:
            self._refuse("its plain array was asked for")
        return np.array(value_of(self))

    def __bool__(self) -> bool:
        if self.aval.size != 1:
            raise ShapeTruthError(self)
        return bool(
            value_of(self, TracerBoolConversionError, "Python asks for its truth value (if, while, and, or, not)")
        )

    def __index__(self) -> int:
        if self.aval.shape or self.aval.dtype.kind not in "iub":
            raise self.owner.refuse(
                TracerIntegerConversionError(f"only integer scalars can be used as an integer, got {describe(self)}")
            )
        return int(value_of(self, TracerIntegerConversionError, "Python needs it as an integer"))

    def __int__(self) -> int:
        if self.aval.dtype.kind not in "iub":
            self._refuse("int() was called on it", TracerIntegerConversionError)
        return int(value_of(self, TracerIntegerConversionError, "int() was called on it"))

    def __float__(self) -> float:
        if not self.stopped:
            self._refuse(
                "float() was called on it",
                advice="np.sin(x), not math.sin(x), and fnp.zeros(n).at[i].set(x), not buffer[i] = x; ",
            )
        return float(value_of(self))

    def __complex__(self) -> complex:
        if not self.stopped:
            self._refuse("complex() was called on it")
        return complex(value_of(self))

    def item(self, *args: Any) -> Any:
        """The Python scalar; only of integers and bools, and of ``stop_gradient(x)``."""
        if not self._is_plain():
            self._refuse(".item() was called on it")
        return np.asarray(value_of(self)).item(*args)

    def tolist(self) -> Any:
        """Nested lists of Python scalars; only of integers and bools, and of ``stop_gradient(x)``."""
        if not self._is_plain():
            self._refuse(".tolist() was called on it")
        return np.asarray(value_of(self)).tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if not self._is_plain():
            self._refuse("it was turned into a plain NumPy array", advice=_ARRAY_ADVICE)
        return np.array(value_of(self), dtype=dtype)

    def __dlpack__(self, **kwargs: Any) -> NoReturn:
        self._refuse("it was exported through DLPack")

    def __hash__(self) -> int:
        raise TypeError("unhashable type: 'Tracer'")

    def __len__(self) -> int:
        if not self.aval.shape:
            raise TypeError("len() of an array without axes")
        return self.aval.shape[0]

    def __repr__(self) -> str:
        shown = visible_value(self)
        if shown is None:
            return f"Tracer({describe(self)})"
        return f"Tracer({describe(self)}, value={np.array2string(np.asarray(shown), separator=', ')})"

    def __format__(self, spec: str) -> str:
        shown = visible_value(self)
        if shown is None or (not spec and self.aval.shape):
            return repr(self)
        return format(shown, spec)

    def _is_plain(self) -> bool:
        """Whether its value may be given away: it has no derivative to lose."""
        return self.stopped or self.aval.dtype.kind in "iub"

    def _refuse(
        self, what: str, kind: type[TracerValueError] = TracerArrayConversionError, advice: str = ""
    ) -> NoReturn:
        if self.owner.closed:
            require_open(self, None)
        plain = "stop_gradient(x).value is the plain array, without derivative"
        after = "return it from the function, and convert the result"
        message = f"{describe(self)} is traced, and {what}: that would drop its derivative"
        raise self.owner.refuse(kind(message, hint=advice + (plain if self.owner.shows else after)))


_traced_types.append(Tracer)


class ShapeTruthError(FuncgradError, ValueError):
    """The truth value of an array with more than one element."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__(f"the truth value of {describe(tracer)} is ambiguous", hint="use .any() or .all()")


class Trace:
    """Records equations.

    Parameters
    ----------
    name
        The name of the Program.
    shows
        Whether its tracers may say their value (Python control flow). A body hides the values of outer traces too.
    """

    def __init__(self, name: str = "f", *, shows: bool = False) -> None:
        parent = current()
        self.name = name
        self.stack: tuple[Trace, ...] = (*parent.stack, self) if type(parent) is Trace else (self,)
        self.shows: bool = shows and (type(parent) is not Trace or parent.shows)
        self.closed = False
        self.thread = get_ident()
        self.equations: list[Equation] = []
        self.inputs: list[Var] = []
        self.input_names: list[str] = []
        self.captured: dict[Any, tuple[Any, Var, Any]] = {}
        self.values: dict[Var, Any] = {}
        self.unknown: set[Var] = set()
        self.waiting: bool = type(parent) is Trace and parent.waiting  # an effect waits for rows: so do all later ones
        self.source: Source | None = None
        self.keeps = True  # whether the finished Program may be kept for other calls (`core.canonical`)
        self.static = False  # whether its arguments can be marked static
        self.refused: TracerValueError | None = None  # what was raised last for want of a value, without its frames
        self.hidden = "the rows of vmap"  # what inputs without a value are, for errors
        self._cursor = 0
        self._token: Token[Any] | None = None

    def __enter__(self) -> Trace:
        self._token = TRACE.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        self.closed = True
        assert self._token is not None
        TRACE.reset(self._token)

    def refuse(self, error: TracerValueError) -> TracerValueError:
        """An error that is about to be raised, kept for `swallowed`."""
        self.refused = type(error)(error.message, hint=error.hint, source=error.source)
        return error

    # -- what goes in

    def input(self, aval: Aval, value: Any = None, name: str = "") -> Tracer:
        """A new input; `value` (an array, or a tracer of an outer trace) makes its value known."""
        return self.adopt(Var(aval), value, name)

    def adopt(self, var: Var, value: Any = None, name: str = "") -> Tracer:
        """An existing Var as an input: a transform keeps the Vars of the Program it rewrites."""
        self.inputs.append(var)
        self.input_names.append(name)
        if self.shows:
            if value is None:
                self.unknown.add(var)
            else:
                self.values[var] = value
                if type(value) is Tracer and not is_known(value):
                    self.unknown.add(var)
        return Tracer(self, var)

    def atom(self, x: Any) -> Atom:
        """The Var or Literal that stands for `x` here; outer tracers and arrays become inputs."""
        if type(x) is Tracer:
            return x.atom if x.owner is self else self._capture_tracer(x)
        if isinstance(x, Stacked):
            return self._capture_stack(x)
        if x.ndim == 0 and type(x) is not DeviceArray:
            return Literal(x[()], make_aval((), x.dtype))
        return self._capture_array(x)

    def expect(self, x: Tracer) -> None:
        """Let `x` be captured, here and inside, although its trace may have ended: the Program takes it as an input."""
        self.captured[x.atom] = (x, Var(x.aval), x)

    def _capture_tracer(self, x: Tracer) -> Atom:
        found = self.captured.get(x.atom)
        if found is None:
            if not any([x.atom in t.captured for t in self.stack]):
                require_open(x, self)
            if isinstance(x.atom, Literal):
                return x.atom
            var = Var(x.aval)
            found = self.captured[x.atom] = (x, var, x)
            self.values[var] = x
            if not is_known(x):
                self.unknown.add(var)
        return found[1]

    def captured_array(self, x: Any) -> Tracer:
        """An array that functions of this trace use, as one of its values."""
        return Tracer(self, self._capture_array(x))

    def capture_scalar(self, x: Any) -> Any:
        """A NumPy scalar as an operand and not a literal; `x` itself if it is none.

        Data taken from an array one by one differ at every call: as operands they leave the Program the same.
        """
        if isinstance(x, np.floating) or (isinstance(x, np.ndarray) and not x.ndim and x.dtype.kind == "f"):
            return self.captured_array(x)
        return x

    def _capture_array(self, x: Any) -> Var:
        # The array is read now: a later change in place by the user must not reach the recorded operation.
        found = self.captured.get(id(x))
        if found is not None and (found[2] is x or _same_bits(found[2], x)):
            return found[1]
        snapshot = x
        if isinstance(x, np.ndarray):
            snapshot = np.array(x, order="K", copy=True, subok=False)
            snapshot.flags.writeable = False
        var = Var(make_aval(x.shape, x.dtype))
        self.captured[id(x) if found is None else (id(x), len(self.captured))] = (x, var, snapshot)
        self.values[var] = snapshot
        return var

    def _capture_stack(self, x: Stacked) -> Var:
        found = self.captured.get(id(x))
        if found is None:
            found = self.captured[id(x)] = (x, Var(x.aval), x)
            self.values[found[1]] = x
        return found[1]

    # -- what is recorded

    def add(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> tuple[Tracer, ...]:
        """Record one application of `primitive`; returns its results."""
        inputs = tuple([a.atom if type(a) is Tracer and a.owner is self else self.atom(a) for a in args])
        outputs = tuple([Var(a) for a in primitive.abstract(*[i.aval for i in inputs], **params)])
        source = self.source if self.source is not None else user_source()
        equation = Equation(primitive, inputs, params, outputs, source)
        if self.shows:
            return tuple([Tracer(self, a) for a in self.emit(equation)])
        self.equations.append(equation)
        return (Tracer(self, outputs[0]),) if len(outputs) == 1 else tuple([Tracer(self, v) for v in outputs])

    def emit(self, equation: Equation) -> tuple[Atom, ...]:
        """Record a finished equation whose inputs are atoms of this trace; what stands for its outputs."""
        if not self.shows:
            self.equations.append(equation)
            return equation.outputs
        if equation.primitive.effects_of(equation.params):
            return self._perform(equation)
        self.equations.append(equation)
        unknown = self.unknown
        if unknown and not unknown.isdisjoint(equation.inputs):
            unknown.update(equation.outputs)
        elif equation.outputs and (equation.primitive.traits.may_raise or holds_raising(equation)):
            self.force(equation.outputs[0])
        return equation.outputs

    def _perform(self, equation: Equation) -> tuple[Atom, ...]:
        """An equation with effects: they happen now, each once, and what is recorded does not bring them about again.

        One that has to wait for the rows of a vmap is recorded, and so are all after it.
        """
        outputs = equation.outputs
        if outputs and outputs[0] in self.values:  # it happened while an inner trace was open
            self.equations.append(equation)
            return outputs
        unfold = equation.primitive.unfold
        if not self.waiting and self.unknown.isdisjoint(equation.inputs):
            if unfold is None:
                for a in equation.inputs:
                    if type(a) is Var:
                        self.force(a)
                self._compute(equation)
                if outputs:
                    self.equations.append(equation)
                return outputs
            results = unfold(*[Tracer(self, a) for a in equation.inputs], **equation.params)
            return tuple([self.atom(x) for x in results])
        self.waiting = True
        self.equations.append(equation)
        self.unknown.update(outputs)
        return outputs

    # -- what comes out

    def program(self, outputs: Iterable[Any]) -> Program:
        """The finished Program: captured values first, then the declared inputs."""
        atoms = tuple([self.atom(o) for o in outputs])
        constants = [var for _, var, _ in self.captured.values()]
        names = [f"c{i}" for i in range(len(constants))]
        return Program((*constants, *self.inputs), tuple(self.equations), atoms, self.name, (*names, *self.input_names))

    def constants(self) -> list[Any]:
        """The captured values (arrays, and tracers of outer traces), in the order of the Program's inputs."""
        return [value for _, _, value in self.captured.values()]

    def force(self, var: Var) -> Any:
        """The value of `var`: evaluates, in order, what has not been evaluated yet."""
        values = self.values
        while var not in values:
            e = self.equations[self._cursor]
            if e.outputs and e.outputs[0] not in values and (not self.unknown or self.unknown.isdisjoint(e.outputs)):
                try:
                    self._compute(e)
                except Exception:  # not what breaks a computation off: that is done again
                    self._cursor += 1
                    raise
            self._cursor += 1
        return self._number(var)

    def _compute(self, e: Equation) -> None:
        args = [self._number(a) for a in e.inputs]
        try:
            with np.errstate(all="ignore"):
                results = _computed(e.primitive, args, e.params)
        except FuncgradError as error:
            raise error.at(e.source) from None
        self.values.update(zip(e.outputs, results, strict=True))

    def _number(self, atom: Atom) -> Any:
        if isinstance(atom, Literal):
            return atom.array
        value = self.values[atom]
        if type(value) is Tracer:
            value = self.values[atom] = value_of(value)
        return value


class _Eager:
    """Stands in `current` while a public function computes on plain arrays: results stay raw until it returns."""

    shows = True


EAGER = _Eager()
TRACE: ContextVar[Trace | _Eager | None] = ContextVar("funcgrad_trace", default=None)
"""The innermost open trace; read it through `current`."""


def current() -> Trace | _Eager | None:
    """The innermost open trace, `EAGER` inside a public function on plain arrays, or None.

    A context that was copied while tracing, and outlives the trace or runs in another thread, has none.
    """
    trace = TRACE.get()
    return None if type(trace) is Trace and (trace.closed or trace.thread != get_ident()) else trace


class eagerly:  # noqa: N801 (reads as a statement)
    """``with eagerly():`` operations on plain arrays compute at once, as raw NumPy values, without warnings."""

    __slots__ = ("_errstate", "_token")

    def __enter__(self) -> None:
        self._token = TRACE.set(EAGER)
        self._errstate = np.errstate(all="ignore")
        self._errstate.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._errstate.__exit__(None, None, None)
        TRACE.reset(self._token)


class outside:  # noqa: N801 (reads as a statement)
    """``with outside():`` no trace is open, as where the user's own code is called back."""

    __slots__ = ("_token",)

    def __enter__(self) -> None:
        self._token = TRACE.set(None)

    def __exit__(self, *exc: object) -> None:
        TRACE.reset(self._token)


def bind(primitive: Primitive, *args: Any, **params: Any) -> tuple[Any, ...]:
    """Apply a primitive: record it in the innermost trace, or compute it.

    Parameters
    ----------
    args
        Tracers, ndarrays of native dtype and NumPy scalars; the front end has converted and broadcast them.
    params
        Static, hashable parameters.
    """
    trace = current()
    if type(trace) is Trace:
        if not trace.shows:
            return trace.add(primitive, args, params)
        for a in args:
            if type(a) is Tracer:
                return trace.add(primitive, args, params)
        if trace.waiting and primitive.effects_of(params):
            return trace.add(primitive, args, params)
        with np.errstate(all="ignore"):
            return _computed(primitive, args, params)
    for a in args:
        if type(a) is Tracer:
            require_open(a, None)
        elif type(a) in THERE:
            return apply_there(primitive, args, params)
    return primitive.evaluate(*args, **params)


def _computed(primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> tuple[Any, ...]:
    """What a primitive makes of values, with NumPy or where they are."""
    if any([type(a) in THERE for a in args]):
        return apply_there(primitive, args, params)
    return primitive.evaluate(*args, **params)


def bind1(primitive: Primitive, *args: Any, **params: Any) -> Any:
    """`bind` of a primitive with one result."""
    return bind(primitive, *args, **params)[0]


# -- values


def is_known(x: Tracer) -> bool:
    """Whether the value of `x` does not depend on the rows of a vmap."""
    return isinstance(x.atom, Literal) or x.atom not in x.owner.unknown


def value_of(
    x: Any, error: type[TracerValueError] = TracerArrayConversionError, why: str = "its value is needed"
) -> Any:
    """The value of a tracer as a plain array or NumPy scalar; raises `error` where there is none."""
    if type(x) is not Tracer:
        return x
    require_open(x, current())
    constant = _constant(x)
    if constant is not None:
        return constant
    innermost = current()
    shows = x.owner.shows and (innermost is None or innermost.shows)
    if not shows or not is_known(x):
        rows = shows and not is_known(x)
        refusal = error(
            f"{describe(x)} has no value while {x.owner.name if not rows else x.owner.hidden} "
            f"{'is' if not rows else 'are'} traced, and {why}",
            hint=_value_hint(error, rows, x.aval.dtype.kind in "iu", x.owner.static),
        )
        raise x.owner.refuse(refusal)
    if isinstance(x.atom, Literal):
        return x.atom.array
    return x.owner.force(x.atom)


def _value_hint(error: type[TracerValueError], rows: bool, integer: bool, static: bool) -> str:
    index = "to index a list or a plain array with it: fnp.asarray(table)[i]"
    if error is TracerArrayConversionError and integer:
        return index
    if error is TracerIntegerConversionError:
        if rows or static:
            return ("close over it; " if rows else "mark the argument static: static_argnums=...; ") + index
        return f"{index}; for x[:i]: np.where(np.arange(len(x)) < i, x, 0)"
    if rows:
        return "use where(condition, a, b)"
    return "use where(condition, a, b), or " + ("mark the argument static" if static else "lax.cond")


def swallowed(error: BaseException) -> FuncgradError | None:
    """What was raised for want of a value where `error` comes from, if C code put `error` in its place."""
    trace = current()
    place = user_place(error)
    if type(trace) is not Trace or place is None or isinstance(error, FuncgradError):
        return None
    if isinstance(error, SystemError) and isinstance(error.__cause__, TracerValueError):
        return error.__cause__  # C code went on although there was an error
    for t in reversed(trace.stack):
        if t.refused is not None and t.refused.source == place:
            return t.refused.with_traceback(error.__traceback__)
    return None


def _constant(x: Tracer) -> Any:
    """The array that stands behind `x` in a body, which shows no values, if the body captured it; else None."""
    value = None if x.owner.shows or isinstance(x.atom, Literal) else x.owner.values.get(x.atom)
    return None if type(value) is Tracer else value


def visible_value(x: Tracer) -> Any:
    """The value for printing, or None."""
    constant = None if x.owner.closed else _constant(x)
    if constant is not None:
        return constant
    innermost = current()
    if x.owner.closed or not x.owner.shows or not is_known(x) or (innermost is not None and not innermost.shows):
        return None
    return value_of(x)


def _same_bits(a: Any, b: Any) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.flags.c_contiguous and b.flags.c_contiguous:
        return bool(np.array_equal(a.view(np.uint8) if a.ndim else a, b.view(np.uint8) if b.ndim else b))
    return bool(a.tobytes() == b.tobytes())


# -- describing and refusing


def name_of(x: Tracer) -> str:
    """The user's name of an input, or ''."""
    if isinstance(x.atom, Var) and x.atom in x.owner.inputs:
        return x.owner.input_names[x.owner.inputs.index(x.atom)]
    return ""


def describe(x: Any) -> str:
    """An operand as errors name it: ``x: f64[3,4]``."""
    if type(x) is Tracer:
        name = name_of(x)
        return f"{name}: {x.aval}" if name else str(x.aval)
    if isinstance(x, np.ndarray | np.generic | DeviceArray):
        return str(make_aval(x.shape, x.dtype))
    return f"{type(x).__name__} {printed(x)}"


def made_at(x: Tracer) -> Source | None:
    """The user's line that made `x`."""
    for e in x.owner.equations:
        if x.atom in e.outputs:
            return e.source
    return None


def require_open(x: Tracer, trace: Any) -> None:
    """Raise unless `x` may be used in `trace`: it belongs to it or to an open trace around it."""
    owner = x.owner
    stack = trace.stack if type(trace) is Trace else ()
    if owner.thread != get_ident():
        problem = "is used in another thread than the one that traces it"
    elif owner.closed:
        problem = f"is used after the trace of {owner.name} has ended"
    elif owner not in stack:
        problem = f"is used outside the trace of {owner.name}"
    else:
        return
    where = made_at(x)
    made = f"made at {where}: {where.text}" if where else f"an argument of {owner.name}"
    raise UnexpectedTracerError(
        f"a traced value escaped: {describe(x)} ({made}) {problem}",
        hint="return it from the function instead of storing it outside",
    )
