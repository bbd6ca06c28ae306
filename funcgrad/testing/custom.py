"""check_custom_rule: a function with rules of its own, against the function without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from funcgrad.api import custom_gradient
from funcgrad.api.rules import WithRules
from funcgrad.api.tracing import boundary, function_name, positional_names
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, CheckError, FuncgradError, KinkError, doing
from funcgrad.base.source import Source
from funcgrad.extend import Op
from funcgrad.testing.check import MODES, Checker, checked_order, checked_rng, kink_error, require_floats
from funcgrad.testing.compare import number, worst
from funcgrad.testing.compiled import check_jit
from funcgrad.testing.differences import ravel
from funcgrad.testing.flat import Flat, argument_tuple, element, flat_function, is_float, paths, random_like
from funcgrad.testing.probe import forward, subject
from funcgrad.testing.rows import check_vmap

WHO = "check_custom_rule"
ROWS = 3


@boundary
def check_custom_rule(
    f: Callable[..., Any], args: Sequence[Any], order: int = 2, *, seed: int = 0, rtol: float | None = None
) -> None:
    """Raise unless the rules of `f` give the derivative that the function has without them.

    Parameters
    ----------
    f
        What `custom_jvp`, `custom_vjp`, `custom_gradient` or `extend.op` made. Of the last, arguments for which
        ``def_linear`` or ``def_jvp`` got None are constants.
    args
        The point: a tuple of arguments by position.
    order
        As for `check_grads`.
    seed
        Of the random directions.
    rtol
        What is allowed, relative to each element, as for `check_grads`.

    Raises
    ------
    CheckError, GradientError, KinkError
        The value that comes with the derivative is another one; the derivative is not that of the undecorated
        function, or not what differences say (in all modes, up to `order`); or it changes under `jit` or `vmap`. The
        message names the rules and their lines. At a kink, and where differences do not converge, no rule is blamed.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> from funcgrad.testing import check_custom_rule
    >>> @fg.custom_vjp
    ... def square(x):
    ...     return x**2
    >>> square.defvjp(lambda x: (x**2, x), lambda x, ct: (2 * x * ct,))
    >>> check_custom_rule(square, (3.0,))
    """
    if not isinstance(f, WithRules | Op):
        raise ArgumentError(
            f"{WHO} takes what custom_jvp, custom_vjp, custom_gradient or extend.op made, got {type(f).__name__}",
            hint="check_grads(f, args) checks any function",
        )
    order, rng = checked_order(order, WHO), checked_rng(seed, WHO)
    checker = Checker(MODES, checked_rng(seed, WHO), 2, False, rtol, None, "raise")
    try:
        with np.errstate(all="ignore"):
            flat = moving(f, argument_tuple(args, WHO))
            require_floats(flat, flat.outputs, WHO)
            _check_value(flat, rng)
            _check_undecorated(f, flat, args, rng, rtol)
            with doing(f"checking the derivatives of {flat.name}"):
                checker.check(flat, order)
            _check_transformed(flat, rng)
    except KinkError as error:
        error.hint = None if error.hint is None else error.hint.removesuffix(', or kinks="skip"')
        raise
    except CheckError as error:
        raise _named(error, f) from None


def moving(f: Any, args: tuple[Any, ...]) -> Flat:
    """The function at a point, without the arguments that are constants."""
    moved = f._primitive.moved_by if isinstance(f, Op) else None
    places = [i for i in range(len(args)) if moved is None or i in moved]
    if len(places) == len(args):
        return flat_function(f, args, None, WHO)

    def call(*given: Any) -> Any:
        new = list(args)
        for i, x in zip(places, given, strict=True):
            new[i] = x
        return f(*new)

    roots = positional_names(f, len(args))
    named = [(n, x) for i in places for n, x in zip(paths(args[i], roots[i]), tree.flatten(args[i])[0], strict=True)]
    flat = flat_function(call, [args[i] for i in places], None, WHO)
    return replace(flat, names=[n for n, x in named if is_float(x)], name=f.name)


def _named(error: CheckError, f: Any) -> CheckError:
    """The error, with the names of the rules; it points at the last of them, if at nothing yet."""
    written = rules(f)
    if error.culprit is None or not error.culprit.startswith(f"{kind(f)} of {f.name}"):
        named = ", ".join([f"{name} ({source})" for name, source in written])
        inner = f"; {error.culprit}" if error.culprit else ""
        error.culprit = f"{kind(f)} of {f.name}, rule{'s'[: len(written) > 1]} {named}{inner}"
    error.source = written[-1][1] if written else error.source
    return error


def kind(f: Any) -> str:
    """What made a function with rules."""
    return f.transform if isinstance(f, WithRules) else "extend.op"


def rules(f: Any) -> list[tuple[str, Source]]:
    """The user's functions that the rules consist of, and where each stands."""
    if isinstance(f, Op):
        found = [(slot, r) for slot, given in f.rules.items() for r in given if slot != "def_shape"]
    else:
        given = [*(getattr(f, "_written", None) or ()), *(getattr(f, "_rules", None) or ())] or [f.__wrapped__]
        found = [(function_name(r), r) for r in given]
    return [(name, Source(r.__code__, 0)) for name, r in found if hasattr(r, "__code__")]


def _check_value(flat: Flat, rng: np.random.Generator) -> None:
    """The value that comes with a derivative is the value."""
    s = subject(flat)
    plain = flat.values(flat.x)
    found = [np.asarray(y) for y in flat.value_with_derivative()]
    off = worst(found, ravel(plain), 0.0, s.tolerance)
    if off is not None:
        place = element(flat.outputs[off.output], plain[off.output].shape, off.element)
        raise CheckError(
            f"{flat.name}: under a derivative {place} is {number(off.found)}, but without {number(off.expected)}"
        )


def _check_undecorated(f: Any, flat: Flat, args: Sequence[Any], rng: np.random.Generator, rtol: float | None) -> None:
    """The derivative by the rules against that of the function, where this can be traced."""
    if isinstance(f, custom_gradient | Op):
        return
    s = subject(flat, rtol)
    try:
        bare = flat_function(f.__wrapped__, args, None, WHO)
        w = random_like(flat.values(flat.x), rng)
        expected = bare.reverse(w)
    except FuncgradError:  # the function itself cannot be differentiated: that is what rules are for
        return
    v = random_like(flat.x, rng)
    dots = forward(flat, v)
    pairs = [("the cotangent of ", flat.names, flat.reverse(w), expected)]
    if dots is not None:
        pairs.append(("the tangent of ", flat.outputs, dots, bare.forward(v)))
    for what, names, found, given in pairs:
        off = worst(found, ravel(given), 0.0, s.tolerance)
        if off is not None:
            d = s.differences(v)
            if d.singular.any():
                raise kink_error(flat, v, d)
            place = element(what + names[off.output], np.shape(found[off.output]), off.element)
            raise CheckError(
                f"{flat.name}: by the rule {place} is {number(off.found)}, "
                f"but by the function without it {number(off.expected)}"
            )


def _check_transformed(flat: Flat, rng: np.random.Generator) -> None:
    """The derivatives under jit and vmap are the derivatives."""
    values = flat.values(flat.x)
    for mode in MODES:
        derived = flat.derived(mode, random_like(flat.x if mode == "fwd" else values, rng))
        if mode == "fwd" and forward(flat, random_like(flat.x, rng)) is None:
            continue
        derived.call.__name__ = f"{mode} of {flat.name}"
        check_jit(derived.call, tuple(flat.x))
    rows = [np.stack([_moved(np.asarray(x), i) for i in range(ROWS)]) for x in flat.x]
    check_vmap(flat.call, tuple(rows))
    for k, x in enumerate(flat.x if len(rows) > 1 else ()):  # of one argument each, along the last axis
        given = [np.moveaxis(rows[i], 0, -1) if i == k else y for i, y in enumerate(flat.x)]
        check_vmap(flat.call, tuple(given), tuple([np.ndim(x) if i == k else None for i in range(len(rows))]))


def _moved(x: Any, i: int) -> Any:
    """Another point nearby for each row."""
    return (x + i * (0.01 * x + (0.001 if x.dtype.kind in "fc" else 0))).astype(x.dtype)
