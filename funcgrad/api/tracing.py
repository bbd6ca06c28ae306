"""From a user's function to a Program: arguments to leaves, leaves to tracers, results to outputs."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from funcgrad.base import tree
from funcgrad.base.dtypes import scalar_dtype, short
from funcgrad.base.errors import ArgumentError, CustomRuleError, FuncgradError, NestingError, UsageError, doing, printed
from funcgrad.base.shelter import sheltered
from funcgrad.base.source import Source, hide_internal_frames, is_internal
from funcgrad.control.roll import roll
from funcgrad.core.array import Array, publish
from funcgrad.core.canonical import canonical
from funcgrad.core.check import checked
from funcgrad.core.device_array import placed
from funcgrad.core.ir import Aval, Program, Var, make_aval
from funcgrad.core.nans import nans_searched, search
from funcgrad.core.trace import Trace, Tracer, current, swallowed
from funcgrad.numpy.operands import array, operand, strong

_SCALARS = (float, int, complex)


@dataclasses.dataclass(frozen=True, slots=True)
class Traced:
    """A traced function.

    Attributes
    ----------
    program : Program
        Inputs: the constants, then the traced leaves. Outputs: the leaves of the result.
    constants : list
        What the function captured: arrays (copies), and tracers of outer traces.
    values : dict
        Values that were needed while tracing.
    out_tree : Treedef
        Structure of the result.
    placed : dict
        The constants on each device on which it ran.
    """

    program: Program
    constants: list[Any]
    values: Mapping[Var, Any]
    out_tree: tree.Treedef
    placed: dict[Any, list[Any]] = dataclasses.field(default_factory=dict)

    @property
    def captured_tracer(self) -> bool:
        """Whether it depends on a trace around it."""
        return any([type(c) is Tracer for c in self.constants])

    def constants_on(self, device: Any) -> list[Any]:
        """The constants on a device, where they stay for the next call."""
        if device not in self.placed:
            self.placed[device] = [placed(c, device) if isinstance(c, np.ndarray) else c for c in self.constants]
        return self.placed[device]


def function_name(f: Any) -> str:
    """A name for printing."""
    while isinstance(f, functools.partial):
        f = f.func
    name = getattr(f, "__name__", None) or type(f).__name__
    return "f" if name == "<lambda>" else str(name)


def require_callable(f: Any, transform: str, hint: str = "") -> None:
    """Raise `UsageError` unless `f` can be called."""
    if not callable(f):
        raise UsageError(
            f"{transform} takes a function, got {type(f).__name__}",
            hint=hint or f"{transform}(f)(x), not {transform}(f(x))",
        )


def role_of(f: Any, role: str) -> str:
    """How errors name a function that was passed to another one: its role, and its name if it has one."""
    name = function_name(f)
    return role if name == "f" else f"{role} {name}"


def called_as(what: str, f: Any, *args: Any, **kwargs: Any) -> Any:
    """What a rule of the user's returns; one that does not take these arguments is named by its role, `what`."""
    return called_with(CustomRuleError, what, f, args, kwargs)


def called_with(
    kind: type[FuncgradError], what: str, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any] = MappingProxyType({})
) -> Any:
    """What a function of the user's returns; if it does not take these arguments, an error that says what it is."""
    try:
        return f(*args, **kwargs)
    except TypeError as error:
        problem = _unfitting(f, args, kwargs)
        if problem is None:
            raise
        given = ", ".join([f"{len(args)} by position", *[f"{k}=" for k in kwargs]])
        raise kind(
            f"{what} does not take the arguments it is called with ({given}): {problem}", source=written_at(f)
        ) from error


def _unfitting(f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Why `f` cannot be called with these arguments, if that is so."""
    try:
        inspect.signature(f).bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None


def written_at(f: Any) -> Source | None:
    """Where a function of the user's begins."""
    code = getattr(inspect.unwrap(f), "__code__", None)
    return Source(code, 0) if code is not None and not is_internal(code.co_filename) else None


def named(f: Any, role: str) -> str:
    """The name of a function of the user's, or its role if it is a lambda."""
    name = function_name(f)
    return role if name == "f" else name


def positional_names(f: Any, count: int) -> list[str]:
    """The user's names of the first `count` positional parameters."""
    f = inspect.unwrap(f) if hasattr(f, "__wrapped__") else f
    code = getattr(f, "__code__", None)
    if code is None:
        code = getattr(getattr(f, "__func__", None), "__code__", None)
    if code is None:
        return [f"x{i}" for i in range(count)]
    names = list(code.co_varnames[: code.co_argcount])
    if inspect.ismethod(f):
        names = names[1:]
    rest = code.co_varnames[code.co_argcount + code.co_kwonlyargcount] if code.co_flags & inspect.CO_VARARGS else "x"
    return [names[i] if i < len(names) else f"{rest}[{i - len(names)}]" for i in range(count)]


def leaf_names(f: Any, treedef: tree.Treedef, positions: Sequence[int], keywords: Sequence[str] = ()) -> list[str]:
    """A name for every leaf of the arguments at `positions` and under `keywords`: ``params.w``."""
    roots = positional_names(f, max(positions, default=-1) + 1)
    names: list[str] = []
    children = treedef.children()
    for position, child in zip(positions, children, strict=False):
        names += tree.leaf_paths(child, roots[position])
    if keywords:
        for key, child in zip(sorted(keywords), children[-1].children(), strict=True):
            names += tree.leaf_paths(child, key)
    return names


def leaf(x: Any, what: str) -> Any:
    """A leaf of an argument as an operand, or an error that names its path."""
    if type(x) is Tracer:
        return x
    if isinstance(x, list | tuple) or (isinstance(x, np.ndarray | np.generic) and _dtype(x).kind in "OSUVMm"):
        raise ArgumentError(f"{what} is no array of numbers: {type(x).__name__} {printed(x)}")
    if isinstance(x, str | bytes):
        raise ArgumentError(f"{what} is a string: {printed(x)}", hint="mark it static, or close over it")
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        raise ArgumentError(
            f"{what} is a {type(x).__name__}, a dataclass that is not registered as a pytree",
            hint=f"put @funcgrad.tree.register_dataclass above class {type(x).__name__}",
        )
    return operand(x, what)


def value_and_aval(x: Any) -> tuple[Any, Aval]:
    """An operand as the value and type of an input; Python scalars are weak."""
    if type(x) is Tracer:
        return x, x.aval
    if type(x) in _SCALARS:
        dtype = scalar_dtype(type(x))
        try:
            return dtype.type(x), make_aval((), dtype, True)
        except OverflowError:
            raise ArgumentError(f"the Python integer {x} does not fit {short(dtype)}") from None
    return x, make_aval(x.shape, x.dtype)


def output_leaves(result: Any, name: str) -> tuple[list[Any], tree.Treedef]:
    """The leaves of a function's result as operands, or an error that names the path."""
    leaves, treedef = tree.flatten(result)
    out = []
    for i, x in enumerate(leaves):
        if type(x) is Tracer:
            out.append(strong(x))
            continue
        if isinstance(x, str | bytes) or callable(x) or not _arraylike(x):
            path = tree.leaf_paths(treedef, "result")[i]
            raise ArgumentError(
                f"{name} returns a {type(x).__name__} at {path}: {printed(x)}; results are arrays, numbers and None"
            )
        out.append(array(x))
    return out, treedef


def _arraylike(x: Any) -> bool:
    if isinstance(x, np.ndarray | np.generic):
        return _dtype(x).kind in "biufc"
    return isinstance(x, int | float | complex) or hasattr(x, "__array__")


def _dtype(x: Any) -> np.dtype[Any]:
    """The dtype of an array or NumPy scalar, whatever a subclass says it is."""
    return np.ndarray.dtype.__get__(x) if isinstance(x, np.ndarray) else x.dtype


def trace(
    function: Callable[..., Any],
    inputs: Sequence[tuple[Any, Aval]],
    names: Sequence[str],
    *,
    name: str,
    purpose: str,
    shows: bool,
    expected: Sequence[Any] = (),
    hidden: str = "",
) -> Traced:
    """Call `function` with one tracer per input, and record what it does.

    Parameters
    ----------
    inputs
        Value (or None where it is unknown) and type of each leaf.
    purpose
        For error messages: ``"grad"``, ``"jit"`` ...
    shows
        Whether Python control flow may see values.
    expected
        Tracers that the function may capture although their trace has ended.
    hidden
        What the inputs without a value are, for error messages; rows of vmap by default.
    """
    with doing(f"tracing {name} for {purpose}"), Trace(name, shows=shows) as t:
        t.hidden, t.static = hidden or t.hidden, purpose == "jit"
        for x in expected:
            t.expect(x)
        tracers = [t.input(aval, value, n) for (value, aval), n in zip(inputs, names, strict=True)]
        try:
            result = function(tracers)
        except Exception as error:
            refusal = swallowed(error)
            if refusal is None:
                raise
            raise refusal from None
        leaves, out_tree = output_leaves(result, name)
        if not t.shows:
            roll(t, [x.atom for x in leaves if type(x) is Tracer and x.owner is t])
        program = t.program(leaves)
    checked(program)
    if not shows or not t.keeps:  # a body is kept by who asked for it
        return Traced(program, t.constants(), t.values, out_tree)
    program, known = canonical(program, t.values)
    return Traced(program, t.constants(), known, out_tree)


def results(values: Sequence[Any], borrowed: Sequence[Any] = ()) -> list[Any]:
    """What the user gets: tracers as they are, computed values as fresh Arrays."""
    if nans_searched():
        search([v for v in values if type(v) is not Tracer])
    if any([type(v) is Tracer for v in values]):
        arrays = iter(publish([v for v in values if type(v) is not Tracer], borrowed))
        return [v if type(v) is Tracer else next(arrays) for v in values]
    return publish(values, borrowed)


def shown(value: Any) -> Any:
    """A pytree for a function that is called and not traced: its arrays as read-only Arrays."""
    leaves, treedef = tree.flatten(value)
    return tree.unflatten(treedef, [_read_only(x) if isinstance(x, np.ndarray) else x for x in leaves])


def _read_only(x: Any) -> Any:
    view = x.view(Array)
    view.flags.writeable = False
    return view


def boundary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Errors that leave `function` carry no frames of funcgrad, and nothing stays open, whatever comes out of it."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return sheltered(function, *args, **kwargs)
        except FuncgradError as error:
            raise hide_internal_frames(error) from error.__cause__
        except RecursionError as error:
            if current() is not None or "recursion depth exceeded" not in str(error):
                raise
            raise NestingError(
                "the recursion limit of Python was reached: calls, or transforms in each other, are nested too deep",
                hint="sys.setrecursionlimit(10_000), if that is meant",
            ) from None

    return wrapper


def like_function(f: Any, wrapper: Any, transform: str, doc: str) -> Any:
    """Give `wrapper` the name and signature of `f`, and say what it computes."""
    functools.update_wrapper(wrapper, f, assigned=("__module__", "__qualname__"), updated=())
    name = function_name(f)
    wrapper.__name__ = f"{transform}({name})"
    original = getattr(f, "__doc__", None)
    wrapper.__doc__ = doc.format(name=name) + (f"\n\nThe docstring of {name}:\n\n{original}" if original else "")
    return wrapper
