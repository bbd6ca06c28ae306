"""Implicit differentiation: derivatives of solutions, from the equation that they solve and not from the solver.

f(x, a) = 0  defines x(a);   f_x dx + f_a da = 0,  so  dx = -f_x⁻¹ f_a da
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad import tree
from funcgrad.api import custom_jvp, grad, jacfwd, jvp, stop_gradient
from funcgrad.api.rules import Application, Result, WithRules, like, resolved
from funcgrad.api.tracing import (
    Traced,
    boundary,
    function_name,
    leaf,
    require_callable,
    results,
    trace,
    value_and_aval,
)
from funcgrad.base.errors import CustomRuleError, FuncgradError, LinearityError, TracerValueError
from funcgrad.base.tree import describe_mismatch, leaf_paths
from funcgrad.control.linear_solve import linear_solve_p, transposed
from funcgrad.control.rules import union, with_operands
from funcgrad.core.evaluate import evaluate
from funcgrad.core.ir import Program, tangent_aval
from funcgrad.core.trace import Trace, Tracer, bind, current, swallowed, visible_value
from funcgrad.numpy.operands import array
from funcgrad.ops.linalg import solve as solve_system

TangentSolve = Callable[[Callable[[Any], Any], Any], Any]
"""``tangent_solve(g, y) -> v`` with g(v) = y, for a linear function g from trees like x to trees like x."""


def root(
    f: Callable[..., Any], solver: Callable[..., Any], tangent_solve: TangentSolve | None = None
) -> Callable[..., Any]:
    """The solution x of ``f(x, *args) = 0`` as a differentiable function of `args`, whatever `solver` does.

    Parameters
    ----------
    f
        ``f(x, *args)`` has as many numbers as x. It may capture traced values; they are differentiated as well.
    solver
        ``solver(*args) -> x``. It is run as it is, and never differentiated. Outside of `jit` and `vmap` it gets plain
        arrays, so that it may be one of SciPy's; inside of them, such a solver is called by `pure_callback`.
    tangent_solve
        ``tangent_solve(g, y) -> v`` with g(v) = y, for the linear function g: the derivative of f in x. It must be
        linear in y. Default: the matrix of g, and `numpy.linalg.solve`.

    Returns
    -------
    function
        ``(*args) -> x``, with derivatives of every order in both modes, under every transform.

    Notes
    -----
    The derivatives are exact at an exact solution: an error e of x is an error of the order of e of the derivative.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> def bisection(a):
    ...     low, high = 0.0, 10.0
    ...     for _ in range(60):
    ...         middle = (low + high) / 2
    ...         low, high = np.where(middle**2 < a, middle, low), np.where(middle**2 < a, high, middle)
    ...     return low
    >>> square_root = fg.implicit.root(lambda x, a: x**2 - a, bisection)
    >>> print(fg.grad(square_root)(4.0).round(12), fg.grad(fg.grad(square_root))(4.0).round(12))
    0.25 -0.03125
    """
    require_callable(f, "root")
    return functools.update_wrapper(_Root(f, solver, tangent_solve), solver)


def argmin(
    f: Callable[..., Any], solver: Callable[..., Any], tangent_solve: TangentSolve | None = None
) -> Callable[..., Any]:
    """The minimum x of ``f(x, *args)`` as a differentiable function of `args`: `root` of the gradient of f.

    Parameters
    ----------
    f
        ``f(x, *args)`` is a real scalar, and its Hessian in x is regular at the minimum.
    solver, tangent_solve
        As in `root`.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> ridge = lambda w, x, y, c: np.sum((x @ w - y) ** 2) + c * np.sum(w**2)
    >>> solver = lambda x, y, c: np.linalg.solve(x.T @ x + c * np.eye(2), x.T @ y)
    >>> x, y = np.array([[1.0, 2.0], [0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 2.0, 3.0])
    >>> fg.jacobian(fg.implicit.argmin(ridge, solver), 2)(x, y, 0.5).round(4).tolist()
    [-0.7679, 0.2419]
    """
    require_callable(f, "argmin")
    return root(grad(f), solver, tangent_solve)


@boundary
def custom_root(
    f: Callable[[Any], Any], initial_guess: Any, solve: Callable[..., Any], tangent_solve: TangentSolve
) -> Any:
    """A solution of ``f(x) = 0``, differentiable in what `f` captures.

    Parameters
    ----------
    f
        Takes and returns trees like `initial_guess`.
    initial_guess
        Where the solver starts; the solution does not depend on it.
    solve
        ``solve(f, initial_guess) -> x``.
    tangent_solve
        ``tangent_solve(g, y) -> v`` with g(v) = y for a linear function g, for example ``lambda g, y: y / g(1.0)`` if x
        is a scalar.

    Examples
    --------
    >>> import funcgrad as fg
    >>> def newton(f, x):
    ...     for _ in range(20):
    ...         x = x - f(x) / fg.grad(f)(x)
    ...     return x
    >>> cube_root = lambda a: fg.custom_root(lambda x: x**3 - a, 1.0, newton, lambda g, y: y / g(1.0))
    >>> print(cube_root(8.0).round(12), fg.grad(cube_root)(8.0).round(12))
    2.0 0.083333333333
    """
    require_callable(f, "custom_root")
    return root(lambda x, guess: f(x), lambda guess: solve(f, guess), tangent_solve)(initial_guess)


@boundary
def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: Any,
    solve: Callable[..., Any],
    transpose_solve: Callable[..., Any] | None = None,
    symmetric: bool = False,
) -> Any:
    """The solution x of ``matvec(x) = b``, differentiable in `b` and in what `matvec` captures.

    Parameters
    ----------
    matvec
        A linear function of trees like `b`.
    b
        A pytree of float arrays.
    solve
        ``solve(matvec, b) -> x``, a tree like `b`. It is never differentiated. Under transforms it sees no values:
        Python loops in it have a fixed number of steps.
    transpose_solve
        ``transpose_solve(vecmat, ct) -> y`` with vecmat(y) = ct, for the transposed system; needed in reverse mode.
    symmetric
        The system is its own transpose: `solve` serves both.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> def conjugate_gradients(matvec, b):
    ...     x, r, p = 0 * b, b, b
    ...     for _ in range(2):
    ...         q = matvec(p)
    ...         step = (r @ r) / (p @ q)
    ...         x, last, r = x + step * p, r @ r, r - step * q
    ...         p = r + (r @ r) / last * p
    ...     return x
    >>> a, b = np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> f = lambda a: fg.custom_linear_solve(lambda x: a @ x, b, conjugate_gradients, symmetric=True)[0]
    >>> fg.grad(f)(a).round(4).tolist()
    [[-0.12, -0.36], [0.04, 0.12]]
    """
    for f in (matvec, solve, *([] if transpose_solve is None else [transpose_solve])):
        require_callable(f, "custom_linear_solve", "a matrix is passed as lambda v: A @ v")
    if type(current()) is not Trace:
        return _like(b, solve(lambda v: _like(b, matvec(v), "the result of matvec"), b), "the result of solve")
    leaves, treedef = tree.leaves(b), tree.structure(b)
    paths = zip(leaves, leaf_paths(treedef, "b"), strict=True)
    pairs = [value_and_aval(array(leaf(x, path), path)) for x, path in paths]
    avals = [aval for _, aval in pairs]

    def traced(f: Callable[[Any], Any], name: str) -> Traced:
        def function(leaves: list[Any]) -> Any:
            out = like(f(tree.unflatten(treedef, leaves)), treedef, avals, f"the result of {name}", "b")
            return tree.unflatten(treedef, out)

        paths = leaf_paths(treedef, "x")
        purpose = "custom_linear_solve"
        return trace(function, [(None, v) for v in avals], paths, name=name, purpose=purpose, shows=False)

    def closed(program: Program, captured: list[Any]) -> Callable[[Any], Any]:
        return lambda x: tree.unflatten(
            treedef, evaluate(program, [*captured, *[array(leaf) for leaf in tree.leaves(x)]])
        )

    system = traced(matvec, "matvec")
    direct = traced(lambda y: solve(closed(system.program, system.constants), y), "solve")
    back = None
    if symmetric:
        back = direct
    elif transpose_solve is not None:
        try:
            other = transposed(system.program, len(system.constants))
        except LinearityError as error:
            message = error.message.replace("a derivative rule is not linear in its tangents", "matvec is not linear")
            message = message.replace("depends on them", "depends on x")
            raise LinearityError(f"custom_linear_solve: {message}", source=error.source) from None
        vecmat = closed(other, system.constants)
        back = traced(lambda y: transpose_solve(vecmat, y), "transpose_solve")
    parts = [t for t in (system, direct, back) if t is not None]
    operands: list[Any] = []
    for t in parts:
        operands = union(operands, t.constants)
    programs = [with_operands(t.program, t.constants, operands) for t in parts]
    values = [v for v, _ in pairs]
    out = bind(
        linear_solve_p,
        *operands,
        *values,
        matvec=programs[0],
        solve=programs[1],
        transpose_solve=programs[2] if back is not None else None,
        captured=len(operands),
    )
    return tree.unflatten(treedef, results(out, [*operands, *values]))


def _like(b: Any, found: Any, what: str) -> Any:
    """What a function of the user's returned, if it has the tree and the shapes of b."""
    expected, got = tree.structure(b), tree.structure(found)
    if expected != got:
        raise CustomRuleError(f"{what} must have the tree of b; {describe_mismatch(what, expected, got)}")
    for path, x, y in zip(leaf_paths(expected, what), tree.leaves(b), tree.leaves(found), strict=True):
        if np.shape(x) != np.shape(y):
            raise CustomRuleError(f"{path} must have the shape of b: expected {np.shape(x)}, got {np.shape(y)}")
    return found


_OPAQUE = "a solver that needs values is called by pure_callback(solver, ShapeDtypeStruct(shape, dtype), *args)"

_CAPTURED = "the solver captures a traced value: make it an argument of the function that root returns"


def _plain(x: Tracer) -> Any:
    """The value of a traced array, which a solver may have, since it is not differentiated; itself if it has none."""
    value = visible_value(x)
    return x if value is None else np.asarray(value).item() if x.aval.weak else np.array(value)


class _Root(WithRules):
    """What `root` returns."""

    transform = "root"

    def __init__(self, f: Callable[..., Any], solver: Callable[..., Any], tangent_solve: TangentSolve | None) -> None:
        super().__init__(solver)
        self.f = f
        self.tangent_solve = tangent_solve
        self._square = False  # whether a call saw that there are as many equations as unknowns

    @boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        args = resolved(self.__wrapped__, self.signature, args, kwargs)
        out = super().__call__(*args)
        if not self._square and type(current()) is not Trace:
            sizes = [sum([np.size(x) for x in tree.leaves(t)]) for t in (self.f(out, *args), out)]
            _require_square(function_name(self.f), *sizes)
            self._square = True
        return out

    def _value(self, *args: Any) -> Any:
        """What the solver returns: of plain arrays and numbers, where the values are known."""
        leaves, treedef = tree.flatten(args)
        found = [_plain(x) if type(x) is Tracer else x for x in leaves]
        known = not any([type(x) is Tracer for x in found])
        try:
            return self.__wrapped__(*(tree.unflatten(treedef, found) if known else args))
        except Exception as error:
            refusal = error if isinstance(error, TracerValueError) else swallowed(error)
            if refusal is not None:
                refusal.hint = _CAPTURED if known else _OPAQUE
                raise refusal from None
            if not known and not isinstance(error, FuncgradError):
                error.add_note(f"root: {self.name} was given traced arrays, whose values are not known here: {_OPAQUE}")
            raise

    def _apply(self, a: Application, values: list[Any], traced: Traced, result: Result) -> Any:
        """Bind the solver with a rule in which what `f` captures is an argument."""
        xs, count = result.treedef, result.treedef.num_leaves
        args = a.treedef

        def residual(leaves: list[Any]) -> Any:
            return self.f(tree.unflatten(xs, leaves[:count]), *tree.unflatten(args, leaves[count:]))

        inputs = [*[(None, v) for v in result.avals], *a.inputs(values)]
        names = [*leaf_paths(xs, "x"), *a.names]
        name, hidden = function_name(self.f), "the solutions of root"
        f = trace(residual, inputs, names, name=name, purpose="root", shows=True, hidden=hidden)
        _require_square(name, *[sum([v.size for v in t.program.out_avals]) for t in (f, traced)])

        def closed(x: Any, captured: Any, given: Any) -> Any:
            leaves = [*captured, *tree.leaves(x), *tree.leaves(given)]
            return tree.unflatten(f.out_tree, evaluate(f.program, leaves))

        @custom_jvp
        def solution(captured: Any, given: Any) -> Any:
            return stop_gradient(self._value(*given))

        @solution.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            x = solution(*primals)
            moved = jvp(lambda *p: closed(x, *p), primals, tangents)[1]
            g = lambda v: jvp(lambda x: closed(x, *primals), (x,), (v,))[1]
            if self.tangent_solve is not None:
                v = self.tangent_solve(g, tree.map(lambda y: -y, moved))
                leaves = like(v, xs, [tangent_aval(t) for t in result.avals], "the result of tangent_solve", "x")
                return x, tree.unflatten(xs, leaves)
            flat, unravel = tree.ravel_pytree(x)
            matrix = jacfwd(lambda v: tree.ravel_pytree(g(unravel(v)))[0])(0.0 * flat)
            right = tree.ravel_pytree(moved)[0]
            of = f"root: the derivative of {name} in x, at the solution,"
            return x, unravel(solve_system(array(matrix), array(-right[:, None]), of)[:, 0])

        pairs = zip(values, a.avals, strict=True)
        given = [v.item() if t.weak and type(v) is not Tracer else v for v, t in pairs]
        return solution(list(f.constants), tree.unflatten(args, given))


def _require_square(name: str, equations: int, unknowns: int) -> None:
    if equations != unknowns:
        raise CustomRuleError(
            f"root: {name} gives {equations} equations for {unknowns} unknowns",
            hint="f(x, *args) returns as many numbers as there are in x",
        )
