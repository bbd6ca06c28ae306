"""Forward mode: jvp and linearize. The tangents are evaluated with the values, or later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.api.linearization import (
    LinearMap,
    LinearRule,
    arguments,
    keep,
    linearization,
    matching,
    register_linear_map,
    traced_for,
    zeros_for,
)
from funcgrad.api.tracing import boundary, function_name, require_callable, results
from funcgrad.base import tree
from funcgrad.base.dtypes import float0, is_inexact
from funcgrad.base.errors import ArgumentError, doing
from funcgrad.core.device_array import device_of
from funcgrad.core.evaluate import evaluate
from funcgrad.core.ir import Aval
from funcgrad.core.trace import Tracer
from funcgrad.ops import arithmetic
from funcgrad.transforms.jvp import jvp as jvp_program
from funcgrad.transforms.mask import mask
from funcgrad.transforms.prune import prune


def _tuple_of(given: Any, what: str, transform: str) -> tuple[Any, ...]:
    if not isinstance(given, tuple | list):
        raise ArgumentError(
            f"{transform}: {what} is a tuple with one entry per argument, got {type(given).__name__}",
            hint=f"{transform}(f, (x,), (x_dot,))",
        )
    return tuple(given)


def jvp(f: Callable[..., Any], primals: Any, tangents: Any, has_aux: bool = False) -> Any:
    """The value of `f` and its derivative along `tangents`: ``(f(x), Jacobian · x_dot)``.

    Parameters
    ----------
    primals, tangents
        Tuples with one entry per argument; a tangent has the tree, shapes and dtypes of its primal. Tangents of
        integer leaves are ignored (dtype `float0`).
    has_aux
        `f` returns ``(output, aux)``; the result is then ``(output, tangent, aux)``.

    Examples
    --------
    >>> import funcgrad as fg
    >>> y, y_dot = fg.jvp(lambda x: x**3, (2.0,), (1.0,))
    >>> float(y), float(y_dot)
    (8.0, 12.0)
    """
    require_callable(f, "jvp")
    return _jvp(f, _tuple_of(primals, "primals", "jvp"), _tuple_of(tangents, "tangents", "jvp"), has_aux)


@boundary
def _jvp(f: Any, primals: tuple[Any, ...], tangents: tuple[Any, ...], has_aux: bool) -> Any:
    name = function_name(f)
    a = arguments(f, primals, {}, tuple(range(len(primals))), "jvp")
    avals = [aval for _, aval in a.leaves]
    dots = matching(tangents, a.treedef, avals, "tangents", "the primals")
    traced, outputs, aux_tree = traced_for(a, "jvp", has_aux)
    program = traced.program
    with doing(f"differentiating {name}"):
        moving = [is_inexact(v.dtype) for v in avals]
        derived, flags = jvp_program(program, (*[False] * len(traced.constants), *moving))
        linear = (False,) * len(program.inputs) + (True,) * (len(derived.inputs) - len(program.inputs))
        derived, _ = mask(derived, linear, (False,) * len(derived.inputs))
        derived = derived.remember("pruned", lambda: prune(derived))
        given = [d for d, m in zip(dots, moving, strict=True) if m]
        point = [*traced.constants, *a.values, *given]
        values = evaluate(derived, point, traced.values)
    return _forward_results(traced, values, flags, outputs, aux_tree, point, device_of(derived, point))


def _forward_results(
    traced: Any, values: Any, flags: Any, outputs: int, aux_tree: Any, borrowed: Any, device: str | None
) -> Any:
    count = len(traced.program.outputs)
    found = iter(values[count:])
    dots = [next(found) if flag else None for flag in flags][:outputs]
    published = results([*values[:count], *[d for d in dots if d is not None]], borrowed)
    output = tree.unflatten(traced.out_tree, published[:outputs])
    given = iter(published[count:])
    tangent = tree.unflatten(traced.out_tree, _with_zeros(dots, given, traced.program.out_avals, device))
    if aux_tree is not None:
        return output, tangent, tree.unflatten(aux_tree, published[outputs:count])
    return output, tangent


def _with_zeros(dots: Sequence[Any], given: Any, avals: Sequence[Aval], device: str | None) -> list[Any]:
    out = []
    for d, aval in zip(dots, avals, strict=False):
        zero = zeros_for(aval, device) if d is None else None
        if zero is not None and isinstance(zero, np.ndarray) and zero.dtype != float0:
            zero = results([zero])[0]
        out.append(next(given) if zero is None else zero)
    return out


def linearize(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `f`, and its derivative there as a function of tangents.

    Unlike `jvp` the value is computed once, and the returned function may be called for many tangents.

    Returns
    -------
    output
        ``f(*primals)``.
    lin
        Takes one tangent per primal; returns the tangent of the output.

    Examples
    --------
    >>> import funcgrad as fg
    >>> y, lin = fg.linearize(lambda x: x**3, 2.0)
    >>> float(lin(1.0)), float(lin(0.5))
    (12.0, 6.0)
    """
    require_callable(f, "linearize")
    return _linearize(f, primals, has_aux)


class Pushforward(LinearMap):
    """The second result of `linearize`: takes one tangent per primal, returns the tangent of the output.

    A pytree, whose leaves are the residuals: it may be an argument or a result of jit and vmap.
    """

    __slots__ = ()

    @boundary
    def __call__(self, *tangents: Any) -> Any:
        r = self.rule
        dots = matching(tangents, r.in_tree, r.in_avals, "tangents", "the primals")
        given = [d for d, v in zip(dots, r.in_avals, strict=True) if is_inexact(v.dtype)]
        device = self.device or device_of(r.program, given)
        found = iter(evaluate(r.program, [*self.residuals, *given], device=device))
        values = [next(found) if m else None for m in r.moves]
        published = iter(results([v for v in values if v is not None], [*self.residuals, *given]))
        return tree.unflatten(r.out_tree, _with_zeros(values, published, r.out_avals, device))

    def __repr__(self) -> str:
        return f"<derivative of {self.rule.name}>"


register_linear_map(Pushforward)


@boundary
def _linearize(f: Any, primals: tuple[Any, ...], has_aux: bool) -> Any:
    a = arguments(f, primals, {}, tuple(range(len(primals))), "linearize")
    traced, outputs, aux_tree = traced_for(a, "linearize", has_aux)
    name = function_name(f)
    with doing(f"differentiating {name}"):
        lin = linearization(a, traced, outputs)
        residuals = keep(lin.residuals, a.values)
        program = lin.forward()
    rule = LinearRule(
        program,
        (),
        lin.moves[:outputs],
        traced.out_tree,
        traced.program.out_avals[:outputs],
        a.treedef,
        a.avals,
        name,
        lin.device,
    )
    linear = Pushforward(residuals, rule)
    published = results(lin.outputs, [*residuals, *a.values, *traced.constants])
    output = tree.unflatten(traced.out_tree, published[:outputs])
    if has_aux:
        assert aux_tree is not None
        return output, linear, tree.unflatten(aux_tree, published[outputs:])
    return output, linear


def stop_gradient(x: Any) -> Any:
    """`x` itself, with derivative zero to every order. Works on pytrees.

    Outside bodies of jit, the result also gives away its value: ``stop_gradient(x).value`` is a plain array, and
    ``float(stop_gradient(x))`` works.

    Examples
    --------
    >>> import funcgrad as fg
    >>> float(fg.grad(lambda x: x * fg.stop_gradient(x))(3.0))
    3.0
    """
    leaves, treedef = tree.flatten(x)
    return tree.unflatten(treedef, [_stop(v) for v in leaves])


def _stop(x: Any) -> Any:
    if type(x) is not Tracer:
        return x
    out = arithmetic.stop_gradient(x)
    out.stopped = True
    return out
