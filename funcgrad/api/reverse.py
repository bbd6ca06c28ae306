"""Reverse mode: grad, value_and_grad, vjp. The linear Program is transposed, then evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.api.linearization import (
    Arguments,
    LinearMap,
    LinearRule,
    all_leaves,
    arguments,
    keep,
    linearization,
    matching,
    positions_of,
    register_linear_map,
    require_inexact,
    traced_for,
)
from funcgrad.api.tracing import Traced, boundary, function_name, like_function, require_callable, results
from funcgrad.base import tree
from funcgrad.base.errors import NonScalarOutputError, doing
from funcgrad.core.device_array import device_of
from funcgrad.core.evaluate import evaluate, execute
from funcgrad.core.ir import Program, tangent_aval
from funcgrad.core.trace import Trace, current
from funcgrad.ops.op import constant


def value_and_grad(
    f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the value of `f` and its gradient.

    Parameters
    ----------
    f
        Returns a real scalar of shape ``()``; with `has_aux`, a pair of that and any pytree.
    argnums
        Which positional arguments to differentiate: one, or a tuple. Their leaves are floats; keyword arguments
        are never differentiated.
    has_aux
        `f` returns ``(value, aux)``; the result is then ``((value, aux), gradient)``.

    Returns
    -------
    function
        ``(*args, **kwargs) -> (value, gradient)``; the gradient has the tree, shapes and dtypes of the argument
        (of a tuple of arguments if `argnums` is a tuple). A leaf that `f` does not use gets zeros.

    Raises
    ------
    NonScalarOutputError
        The value is not a real scalar.
    DtypeError
        A differentiated leaf is an integer or bool.

    Examples
    --------
    >>> import funcgrad as fg
    >>> value, gradient = fg.value_and_grad(lambda x: x * x)(3.0)
    >>> float(value), float(gradient)
    (9.0, 6.0)
    """
    return _value_and_grad(f, argnums, has_aux, "value_and_grad")


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """A function that returns the gradient of `f`.

    As `value_and_grad`, without the value; with `has_aux` it returns ``(gradient, aux)``.

    Examples
    --------
    >>> import funcgrad as fg
    >>> float(fg.grad(fg.grad(lambda x: x**3))(2.0))
    12.0
    """
    both = _value_and_grad(f, argnums, has_aux, "grad")

    @boundary
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, g = both(*args, **kwargs)
        return (g, value[1]) if has_aux else g

    return like_function(f, gradient, "grad", "The gradient of {name}.")  # type: ignore[no-any-return]


def _value_and_grad(f: Any, argnums: Any, has_aux: bool, transform: str) -> Callable[..., Any]:
    require_callable(f, transform)

    @boundary
    def value_and_gradient(*args: Any, **kwargs: Any) -> Any:
        positions = positions_of(f, argnums, len(args), transform)
        a = arguments(f, args, kwargs, positions, transform)
        require_inexact(a, transform)
        traced, outputs, aux_tree = traced_for(a, transform, has_aux)
        _require_scalar(f, traced, outputs, transform)
        with doing(f"differentiating {function_name(f)}"):
            if current() is None and traced.program.open_loops and not traced.program.effects:
                computed, found, flags, borrowed, device = _at_once(a, traced, outputs)
            else:
                computed, found, flags, borrowed, device = _in_two_steps(a, traced, outputs)
        borrowed = [*borrowed, *a.values, *traced.constants]
        gradient = all_leaves(a.treedef, a.avals, found, flags, borrowed, device)
        gradient = gradient if isinstance(argnums, tuple | list) else gradient[0]
        values = results(computed, borrowed)
        value = tree.unflatten(traced.out_tree, values[:outputs])
        if has_aux:
            assert aux_tree is not None
            value = (value, tree.unflatten(aux_tree, values[outputs:]))
        return value, gradient

    return like_function(f, value_and_gradient, transform, "The value of {name} and its gradient.")  # type: ignore[no-any-return]


Pieces = tuple[list[Any], list[Any], tuple[bool, ...], list[Any], str | None]


def _in_two_steps(a: Arguments, traced: Traced, outputs: int) -> Pieces:
    """Values of the outputs, cotangents of the leaves that have one, which do, the residuals, and where that was."""
    lin = linearization(a, traced, outputs)
    if not lin.moves[0]:
        return lin.outputs, [], (False,) * len(a.leaves), lin.residuals, lin.device
    back, flags = lin.backward((True,))
    seed = constant(1, tangent_aval(traced.program.out_avals[0]))
    found = evaluate(back, [*lin.residuals, seed], device=lin.device)
    return lin.outputs, found, flags, lin.residuals, lin.device


def _at_once(a: Arguments, traced: Traced, outputs: int) -> Pieces:
    """The same as one Program, run at once: what a loop keeps for its reverse mode never leaves machine code."""
    n = len(traced.constants)

    def make() -> tuple[Program, int, tuple[bool, ...]]:
        with Trace(traced.program.name) as t:
            point = [t.input(v.aval) for v in traced.program.inputs]
            leaves = [(x, aval) for x, (_, aval) in zip(point[n:], a.leaves, strict=True)]
            inside = dataclasses.replace(traced, constants=point[:n], values={})
            computed, found, flags, *_ = _in_two_steps(dataclasses.replace(a, leaves=leaves), inside, outputs)
            return t.program([*computed, *found]), len(computed), flags

    program, split, flags = traced.program.remember(("value and gradient", outputs), make)
    point = [*traced.constants, *a.values]
    values = execute(program, point)
    return values[:split], values[split:], flags, [], device_of(program, point)


def _require_scalar(f: Any, traced: Traced, outputs: int, transform: str) -> None:
    name = function_name(f)
    if outputs != 1 or not traced.out_tree.is_leaf():
        raise NonScalarOutputError(
            f"{transform} takes a function with one scalar result, but {name} returns a "
            f"{getattr(traced.out_tree.type, '__name__', 'None')} with {outputs} leaves",
            hint="for several results use jacrev, vjp, or has_aux=True",
        )
    aval = traced.program.out_avals[0]
    if aval.shape:
        raise NonScalarOutputError(
            f"{transform} takes a function with a scalar result, but {name} returns {aval}",
            hint="sum the result, or use jacrev, vjp, or vmap(grad(f))",
        )
    if aval.dtype.kind != "f":
        raise NonScalarOutputError(f"{transform} takes a function with a real float result, but {name} returns {aval}")


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """The value of `f`, and the function that carries cotangents back: ``ct -> ct · Jacobian``.

    Parameters
    ----------
    primals
        Arguments of `f`, all positional.
    has_aux
        `f` returns ``(output, aux)``; the result is then ``(output, back, aux)``.

    Returns
    -------
    output
        ``f(*primals)``.
    back
        Takes a cotangent with the tree, shapes and dtypes of the output; returns a tuple with one cotangent for
        each primal. Integer leaves have cotangents of dtype `float0`. It may be called many times, and does not
        change if the arguments or the output are changed in place.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> y, back = fg.vjp(lambda x: x * x, np.array([1.0, 2.0]))
    >>> back(np.array([1.0, 10.0]))[0].tolist()
    [2.0, 40.0]
    """
    require_callable(f, "vjp")
    return _vjp(f, primals, has_aux)


class Pullback(LinearMap):
    """The second result of `vjp`: takes a cotangent of the output, returns a tuple of cotangents of the primals.

    A pytree, whose leaves are the residuals: it may be an argument or a result of jit and vmap.
    """

    __slots__ = ()

    @boundary
    def __call__(self, cotangent: Any) -> Any:
        r = self.rule
        cts = matching(cotangent, r.out_tree, r.out_avals, "cotangent", f"the output of {r.name}")
        used = [c for c, m in zip(cts, r.moves, strict=True) if m]
        device = self.device or device_of(r.program, used)
        found = evaluate(r.program, [*self.residuals, *used], device=device)
        return all_leaves(r.in_tree, r.in_avals, found, r.flags, [*self.residuals, *cts], device)

    def __repr__(self) -> str:
        return f"<pullback of {self.rule.name}>"


register_linear_map(Pullback)


@boundary
def _vjp(f: Any, primals: tuple[Any, ...], has_aux: bool) -> Any:
    a = arguments(f, primals, {}, tuple(range(len(primals))), "vjp")
    traced, outputs, aux_tree = traced_for(a, "vjp", has_aux)
    name = function_name(f)
    with doing(f"differentiating {name}"):
        lin = linearization(a, traced, outputs)
        lin.residuals = keep(lin.residuals, a.values)
        moves = lin.moves[:outputs]
        back_program, flags = lin.backward((True,) * sum(moves))
    rule = LinearRule(
        back_program,
        flags,
        moves,
        traced.out_tree,
        traced.program.out_avals[:outputs],
        a.treedef,
        a.avals,
        name,
        lin.device,
    )
    back = Pullback(lin.residuals, rule)
    values = results(lin.outputs, [*lin.residuals, *a.values, *traced.constants])
    output = tree.unflatten(traced.out_tree, values[:outputs])
    if has_aux:
        assert aux_tree is not None
        return output, back, tree.unflatten(aux_tree, values[outputs:])
    return output, back
