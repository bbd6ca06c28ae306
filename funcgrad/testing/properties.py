"""gradients: a function becomes a property test of its derivatives, with points drawn by Hypothesis."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from funcgrad.api.tracing import boundary, function_name, positional_names, require_callable
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, CheckError, KinkError
from funcgrad.base.source import Source
from funcgrad.testing.check import MODES, check_grads, checked_count, checked_modes, checked_order
from funcgrad.testing.flat import evaluated, is_float
from funcgrad.testing.strategies import Points, elements_between, hypothesis

Test = Callable[..., None]
SELF = "self"


@boundary
def gradients(
    *args: Any,
    order: int = 2,
    modes: Sequence[str] = MODES,
    low: float = -4.0,
    high: float = 4.0,
    avoid: Points = (),
    distance: float = 1 / 16,
    seek: Points = (),
    rtol: float | None = None,
    atol: float | None = None,
    examples: int | None = None,
) -> Any:
    """Make a function a test of its derivatives, at points that Hypothesis draws.

    Parameters
    ----------
    *args
        What each argument is like: a strategy, or a pytree of arrays, numbers, `ShapeDtypeStruct` and strategies.
        ``@gradients`` alone, without parentheses, follows type hints: ``x: float``, or
        ``x: Annotated[np.ndarray, arrays(3)]``; arguments with a default keep it.
    order, modes, rtol, atol
        As for `check_grads`.
    low, high, avoid, distance, seek
        As for `arrays`, of the arguments that are no strategies; what strategies draw is theirs to say.
    examples
        How many points. Default: as the Hypothesis profile says, 100 if there is none.

    Returns
    -------
    callable
        A function without arguments, a Hypothesis test: pytest collects it by any name. Of a method of a test class, a
        method. Its attribute ``function`` is the function as it was.

    Raises
    ------
    MissingPackageError
        Hypothesis is not installed.
    ArgumentError
        There is nothing to draw, or `low` and the like are given although all arguments are strategies.

    Notes
    -----
    Points on a kink, and those where the function is not finite, are skipped. A failure is shrunk to a simple point;
    the last line of the message is a call of `check_grads` that reproduces it.

    Examples
    --------
    >>> import numpy as np
    >>> from funcgrad.testing import arrays, gradients
    >>> @gradients(arrays(3), arrays(low=0.5), examples=10)
    ... def test_energy(x, width):
    ...     return np.sum(np.exp(-((x / width) ** 2)))
    >>> test_energy()
    """
    elements = elements_between("gradients", low, high, avoid, distance, seek)
    order, modes = checked_order(order, "gradients"), checked_modes(modes, "gradients")
    examples = None if examples is None else checked_count(examples, "gradients: examples")
    options = {"order": order, "modes": modes, "rtol": rtol, "atol": atol}

    def decorate(f: Callable[..., Any], examples_of: Sequence[Any]) -> Test:
        elements.require_use(list(examples_of), "gradients")
        drawn = [elements.like(a) for a in examples_of]
        return property_test(f, drawn, options, examples)

    hypothesis()
    if len(args) == 1 and callable(args[0]):
        return decorate(args[0], _hinted(args[0]))
    if not args:
        return lambda f: decorate(f, _hinted(f))
    return lambda f: decorate(f, args)


def property_test(f: Callable[..., Any], drawn: Sequence[Any], options: dict[str, Any], examples: int | None) -> Test:
    """A Hypothesis test of the derivatives of `f`, at arguments drawn from these strategies."""
    require_callable(f, "gradients")
    h = hypothesis()
    if not drawn:
        raise ArgumentError(f"gradients: {function_name(f)} has no arguments to draw", hint="@gradients(arrays(3))")
    method = is_method(f)
    given = positional_names(f, method + len(drawn))[method:]
    names = [n if n.isidentifier() else f"x{i}" for i, n in enumerate(given)]

    def test(*instance: Any, **values: Any) -> None:
        __tracebackhide__ = True
        checked = MethodType(f, *instance) if method else f
        check(checked, tuple([values[n] for n in names]), options, h.reject)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(n, kind) for n in names]
    if method:
        parameters.insert(0, inspect.Parameter(SELF, inspect.Parameter.POSITIONAL_OR_KEYWORD))
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    test.__name__ = test.__qualname__ = function_name(f)
    test.__module__, test.__doc__, test.__wrapped__ = f.__module__, f.__doc__, f  # type: ignore[attr-defined]
    phases = [p for p in h.settings().phases if p is not h.Phase.explain]  # explains lines of funcgrad
    count = h.settings().max_examples if examples is None else examples
    settings = h.settings(deadline=None, phases=phases, max_examples=count)
    drawing = h.given(**dict(zip(names, drawn, strict=True)))(settings(test))

    @functools.wraps(drawing)
    def out(*instance: Any) -> None:
        __tracebackhide__ = True
        try:
            drawing(*instance)
        except (h.errors.FailedHealthCheck, h.errors.Unsatisfiable) as error:
            error.add_note(
                f"gradients: {function_name(f)} is on a kink, or not finite, at most of the points drawn; "
                "low=, high= and avoid= say where to draw, as in gradients(arrays(3, low=0.1))"
            )
            raise

    out.function, out.__test__ = f, True  # type: ignore[attr-defined]
    return out


def is_method(f: Any) -> bool:
    """Whether a function is one of a class body, to be called with an instance first."""
    if not isinstance(f, FunctionType) or positional_names(f, 1) != [SELF]:
        return False
    outer = f.__qualname__.rpartition(".")[0]
    return bool(outer) and not outer.endswith("<locals>")


def check(f: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], skip: Callable[[], Any]) -> None:
    """Check the derivatives at one point; what goes wrong says how to go there again."""
    with np.errstate(all="ignore"):
        try:
            if finite(evaluated(f, (args, {}))):
                check_grads(f, args, **options)
                return
        except KinkError:
            pass
        except CheckError as error:
            if error.source is not None and _is_running(error.source.code):
                error.source = _definition(f)
            error.hint = "; ".join([reproduced(f, args, options), *([error.hint] if error.hint else [])])
            raise error.with_traceback(None) from None
        except Exception as error:
            error.add_note(f"at {reproduced(f, args, options)}")
            raise
    skip()


def _is_running(code: CodeType) -> bool:
    """Whether some frame below is of this code: of a caller of the test, then, and not inside of what it checks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _definition(f: Callable[..., Any]) -> Source | None:
    written = inspect.unwrap(f)
    return Source(written.__code__, 0) if hasattr(written, "__code__") else None


def finite(value: Any) -> bool:
    """Whether no element is infinite or NaN."""
    return all([bool(np.isfinite(x).all()) for x in tree.flatten(value)[0] if is_float(x)])


def reproduced(f: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """The call of `check_grads` as code."""
    given = [f"{k}={v!r}" for k, v in options.items() if v is not None and (k, v) != ("modes", MODES)]
    return f"check_grads({', '.join([_spelled(f), code(args), *given])})"


def _spelled(f: Callable[..., Any]) -> str:
    """The name of a function, or where its property test keeps it."""
    if isinstance(f, MethodType):
        owner = type(f.__self__).__qualname__
        return f"{owner}.{function_name(f)}.function.__get__({owner}())"
    name = function_name(f)
    found = getattr(sys.modules.get(f.__module__), name, None)
    return f"{name}.function" if getattr(found, "function", None) is f else name


class _Code(str):
    """Text that is its own repr."""

    def __repr__(self) -> str:
        return str(self)


def code(value: Any) -> str:
    """A pytree of arrays as a Python expression, exact to the last digit."""
    leaves, treedef = tree.flatten(value)
    return repr(tree.unflatten(treedef, [_Code(_leaf_code(x)) for x in leaves]))


def _leaf_code(x: Any) -> str:
    if not isinstance(x, np.ndarray):
        return f"np.{x!r}" if isinstance(x, np.generic) and not repr(x).startswith("np.") else repr(x)
    dtype = "" if x.dtype in (np.float64, np.complex128) else f", dtype=np.{x.dtype.name}"
    if not x.size:
        return f"np.zeros({x.shape}{dtype})"
    return f"np.array({x.tolist()}{dtype})"


def _hinted(f: Callable[..., Any]) -> list[Any]:
    """What the type hints of a function say that its arguments are like."""
    plain = inspect.unwrap(f)
    hints = get_type_hints(plain, include_extras=True)
    parameters = list(inspect.signature(plain).parameters.values())[is_method(f) :]
    return [_example(function_name(f), p.name, hints.get(p.name)) for p in parameters if p.default is p.empty]


def _example(name: str, parameter: str, hint: Any) -> Any:
    if hint in (float, complex):
        return hint()
    if get_origin(hint) is Annotated:
        return get_args(hint)[1]
    raise ArgumentError(
        f"gradients: no type hint says what to draw for {parameter} of {name}",
        hint=f"@gradients(arrays(3)), one for each argument, or {parameter}: Annotated[np.ndarray, arrays(3)]",
    )


__all__ = ["code", "gradients"]
