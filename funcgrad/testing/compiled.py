"""check_jit: a jitted function against the same function as Python runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.api import jit, make_program
from funcgrad.api.inspect import abstract_trace
from funcgrad.api.tracing import boundary, function_name, require_callable
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, CheckError, FuncgradError, doing, printed
from funcgrad.core.evaluate import execute
from funcgrad.core.ir import Equation, Program, subprograms
from funcgrad.core.stacked import Stacked
from funcgrad.core.trace import eagerly
from funcgrad.testing.compare import exactly
from funcgrad.testing.culprits import called
from funcgrad.testing.flat import argument_tuple, element, evaluated, paths, require_inputs, require_no_text
from funcgrad.testing.walking import alone, bodies, steps

ULPS = 512.0


@boundary
def check_jit(
    f: Callable[..., Any], args: Sequence[Any], *, kwargs: dict[str, Any] | None = None, ulps: float | None = None
) -> None:
    """Raise `CheckError` unless ``jit(f)`` gives what `f` gives.

    Parameters
    ----------
    f
        Takes and returns pytrees of arrays; a function that `jit` can trace. For derivatives pass ``grad(f)``.
    args, kwargs
        The point: a tuple of arguments by position, and a dict.
    ulps
        By how many units in the last place, of the largest number of a result, its elements may differ. Default: not at
        all if the function consists of operations whose compiled results are exact, 512 otherwise.

    Raises
    ------
    CheckError
        Says which element of which result differs, with both values, and which operation does if it is alone.

    Examples
    --------
    >>> import numpy as np
    >>> from funcgrad.testing import check_jit
    >>> check_jit(lambda x: np.tanh(x) @ x, (np.array([0.5, 1.0]),))
    """
    require_callable(f, "check_jit")
    args, kwargs = argument_tuple(args, "check_jit"), kwargs or {}
    name = function_name(f)
    require_inputs(f, args, "check_jit")
    require_no_text(f, args, kwargs, "check_jit")
    with doing(f"checking jit of {name}"), np.errstate(all="ignore"):
        allowed = (0.0 if is_exact(make_program(f)(*args, **kwargs)) else ULPS) if ulps is None else _ulps(ulps)
        plain, compiled = evaluated(f, (args, kwargs)), jit(f)(*args, **kwargs)
        expected, found = tree.flatten(plain)[0], tree.flatten(compiled)[0]
        for path, a, b in zip(paths(plain, "result"), found, expected, strict=True):
            said = difference(a, b, path, allowed)
            if said is not None:
                raise _error(f, name, args, kwargs, said, allowed)


def _ulps(ulps: Any) -> float:
    if not isinstance(ulps, float | int | np.floating | np.integer) or not ulps >= 0:
        raise ArgumentError(f"check_jit: ulps is a number, 0 or more, got {printed(ulps)}")
    return float(ulps)


def _error(f: Any, name: str, args: Any, kwargs: Any, said: str, allowed: float) -> CheckError:
    found = compiled_otherwise(f, args, kwargs, allowed)
    rule = f"{allowed:g} units in the last place of the largest are allowed" if allowed else "no difference is allowed"
    message = f"jit of {name}: {said} without jit; {rule}"
    if found is None:
        return CheckError(message)
    e, of_it = found
    return CheckError(message, culprit=f"{called(e)}: {of_it} evaluated", source=e.source)


def difference(found: Any, expected: Any, path: str, ulps: float) -> str | None:
    """``result[0][2] is 1.0, but 2.0``: the element that differs most, if any does by more than it may."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{path} is {found.dtype} {found.shape}, but {expected.dtype} {expected.shape}"
    i = _differs(found, expected, ulps)
    if i is None:
        return None
    return f"{element(path, found.shape, i)} is {exactly(found.flat[i])}, but {exactly(expected.flat[i])}"


def _differs(found: Any, expected: Any, ulps: float) -> int | None:
    """The first element, as a position in the flat array, that differs by more than it may."""
    if not found.size:
        return None
    same = (found == expected) | ((found != found) & (expected != expected))
    if ulps and found.dtype.kind in "fc":
        finite = np.isfinite(expected)
        largest = abs(expected[finite]).max() if finite.any() else 0.0
        with np.errstate(invalid="ignore"):
            same = same | (abs(found - expected) <= ulps * np.finfo(found.dtype).eps * largest)
    wrong = np.flatnonzero(~same)
    return int(wrong[0]) if wrong.size else None


def is_exact(program: Program) -> bool:
    """Whether all operations are of those whose compiled results are equal to the evaluated ones."""

    def exact(e: Equation) -> bool:
        inner = [body for _, body in subprograms(e)]
        return e.primitive.traits.exact or (bool(inner) and all([is_exact(body) for body in inner]))

    return all([exact(e) for e in program.equations])


def compiled_otherwise(f: Any, args: Any, kwargs: Any, ulps: float) -> tuple[Equation, str] | None:
    """The first operation that gives something else when it is compiled alone."""
    traced = abstract_trace(f, args, kwargs, "check_jit")
    leaves = [x if isinstance(x, np.ndarray) else np.asarray(x)[()] for x in tree.flatten((args, kwargs))[0]]
    if len(traced.constants) + len(leaves) != len(traced.program.inputs):
        return None
    return _compiled_otherwise(traced.program, [*traced.constants, *leaves], ulps)


def _compiled_otherwise(program: Program, inputs: Sequence[Any], ulps: float) -> tuple[Equation, str] | None:
    for e, operands, results in steps(program, inputs):
        if e.primitive.effects_of(e.params) or any([isinstance(x, Stacked) for x in (*operands, *results)]):
            continue
        try:
            with eagerly():
                found = execute(alone(e), operands)
        except FuncgradError:
            continue
        for k, (a, b) in enumerate(zip(found, results, strict=True)):
            said = difference(a, b, f"result {k} alone", ulps)
            if said is not None:
                for _, body, given in bodies(e, operands):
                    inner = _compiled_otherwise(body, given, ulps)
                    if inner is not None:
                        return inner
                return e, said
    return None
