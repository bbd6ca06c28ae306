"""custom_vjp and custom_gradient: functions with a backward rule of their own, for reverse mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.api.rules import (
    Application,
    Make,
    Result,
    WithRules,
    apply,
    cotangent_leaves,
    fitting,
    like,
    no_tangent,
    residual_leaves,
    returned_by,
)
from funcgrad.api.tracing import Traced, called_as, function_name, named, require_callable, trace
from funcgrad.base import tree
from funcgrad.base.dtypes import is_inexact
from funcgrad.base.errors import CustomRuleError
from funcgrad.control.custom_vjp import custom_vjp_p
from funcgrad.core.ir import Program, tangent_aval
from funcgrad.core.trace import Tracer, current
from funcgrad.ops.op import aval_of, zeros_of


@dataclasses.dataclass(frozen=True, slots=True)
class CustomVJPPrimal:
    """An argument of a forward rule defined with ``symbolic_zeros=True``.

    Attributes
    ----------
    value
        The argument.
    perturbed : bool
        False if its derivative is known not to be needed.
    """

    value: Any
    perturbed: bool


class custom_vjp(WithRules):  # noqa: N801 (reads as a function)
    """A function whose backward derivative you define, for reverse mode only.

    Use it where the backward pass is not the transpose of a forward one: clipped or reversed gradients, or a backward
    pass that computes less. In all other cases `custom_jvp` is the better choice.

    Parameters
    ----------
    f
        Takes and returns pytrees of arrays. Keywords are resolved to positions.
    nondiff_argnums
        Positions of arguments that are not arrays (functions, strings, flags). The backward rule gets them first.

    Raises
    ------
    ForwardModeError
        Forward mode (`jvp`, `jacfwd`, `linearize`) through the function. Forward over reverse mode (`hessian`, `hvp`)
        works.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> @fg.custom_vjp
    ... def clip_gradient(x):
    ...     return x
    >>> clip_gradient.defvjp(lambda x: (x, None), lambda _, ct: (np.clip(ct, -1, 1),))
    >>> float(fg.grad(lambda x: 5 * clip_gradient(x))(2.0))
    1.0
    """

    transform = "custom_vjp"
    made = "custom_vjp"  # for errors: how the rule was given

    def __init__(self, f: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        super().__init__(f, nondiff_argnums)
        self._rules: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        self._symbolic = False

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any], symbolic_zeros: bool = False) -> None:
        """Define the derivative.

        Parameters
        ----------
        fwd
            ``fwd(*args) -> (output, residuals)``: the result of the function, and a pytree of arrays for `bwd`.
        bwd
            ``bwd(*nondiff, residuals, cotangent) -> cotangents``: a tuple with one entry for each argument that is
            not in `nondiff_argnums`, with its tree, shapes and dtypes; None stands for zeros, also in place of a
            subtree. It need not be linear in the cotangent. Higher derivatives differentiate both rules.
        symbolic_zeros
            Give `fwd` its arguments as `CustomVJPPrimal`, and `bwd` a `SymbolicZero` for the cotangent of an integer.
        """
        require_callable(fwd, "defvjp")
        require_callable(bwd, "defvjp")
        self._rules, self._symbolic = (fwd, bwd), symbolic_zeros

    def _require_rules(self) -> None:
        if self._rules is None:
            raise CustomRuleError(
                f"custom_vjp: {self.name} has no derivative rule", hint=f"{self.name}.defvjp(forward, backward)"
            )

    def _apply(self, a: Application, values: list[Any], traced: Traced, result: Result) -> Any:
        assert self._rules is not None
        make = _make(a, result, *self._rules, self._symbolic)
        return apply(custom_vjp_p, self, a, values, traced, make, self._rules, made=self.made)


def _make(a: Application, result: Result, fwd: Any, bwd: Any, symbolic: bool) -> Make:
    """How the two rules are traced: the backward rule inside the forward rule, whose residuals it sees."""
    name, who = function_name(fwd), named(fwd, f"the forward rule of {a.name}")

    def make(expected: Sequence[Any], values: Sequence[Any] | None) -> list[Traced]:
        shows = values is not None
        found: list[Traced] = []

        def forward(leaves: list[Any]) -> Any:
            if symbolic:
                leaves = [CustomVJPPrimal(x, not z) for x, z in zip(leaves, a.zeros, strict=True)]
            returned = called_as(f"{a.transform}: the forward rule of {a.name}", fwd, *a.arguments(leaves))
            with returned_by(fwd):
                out, residuals = _pair(returned, who)
                outs = like(out, result.treedef, result.avals, f"the output of {who}", "the result of the function")
                kept, treedef = residual_leaves(residuals, who)
            backward, hoisted = _backward(bwd, a, result, kept, treedef, symbolic, expected, shows)
            found.append(backward)
            return [*outs, *kept, *hoisted]

        first = trace(
            forward, a.inputs(values), a.names, name=name, purpose="custom_vjp", shows=shows, expected=expected
        )
        return [first, *found]

    return make


def _pair(result: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise CustomRuleError(
            f"{name} must return a pair, the output and the residuals; it returned "
            f"{f'{len(result)} values' if isinstance(result, tuple | list) else type(result).__name__}",
            hint="return out, residuals",
        )
    return result[0], result[1]


def _backward(
    bwd: Any,
    a: Application,
    result: Result,
    residuals: list[Any],
    treedef: tree.Treedef,
    symbolic: bool,
    expected: Sequence[Any],
    shows: bool,
) -> tuple[Traced, list[Any]]:
    """The backward rule, and what it takes from the forward rule beside the residuals."""
    name = function_name(bwd)
    outs = result.avals

    def function(leaves: list[Any]) -> Any:
        cts = iter(leaves[len(residuals) :])
        cotangents = [next(cts) if is_inexact(v.dtype) else no_tangent(v, symbolic) for v in outs]
        static = [a.static[i] for i in sorted(a.static)]
        given = (tree.unflatten(treedef, leaves[: len(residuals)]), tree.unflatten(result.treedef, cotangents))
        returned = called_as(f"{a.transform}: the backward rule of {a.name}", bwd, *static, *given)
        with returned_by(bwd):
            return _cotangents(returned, named(bwd, f"the backward rule of {a.name}"), a)

    inner = trace(
        function,
        [*[(r if shows else None, aval_of(r)) for r in residuals]]
        + [(None, tangent_aval(v)) for v in outs if is_inexact(v.dtype)],
        [""] * (len(residuals) + sum([is_inexact(v.dtype) for v in outs])),
        name=name,
        purpose="custom_vjp",
        shows=shows,
        expected=expected,
        hidden="the cotangents of a rule",
    )
    return _hoisted(inner, len(residuals))


def _hoisted(inner: Traced, residuals: int) -> tuple[Traced, list[Any]]:
    """What the backward rule captured from the forward rule becomes residuals, behind the others."""
    forward = current()
    p = inner.program
    captured = len(inner.constants)
    taken = [type(x) is Tracer and x.owner is forward for x in inner.constants]
    if not any(taken):
        return inner, []
    outer = [v for v, t in zip(p.inputs[:captured], taken, strict=True) if not t]
    hoisted = [v for v, t in zip(p.inputs[:captured], taken, strict=True) if t]
    given = p.inputs[captured : captured + residuals]
    rest = p.inputs[captured + residuals :]
    program = Program((*outer, *given, *hoisted, *rest), p.equations, p.outputs, p.name)
    constants = [x for x, t in zip(inner.constants, taken, strict=True) if not t]
    return (
        dataclasses.replace(inner, program=program, constants=constants),
        [x for x, t in zip(inner.constants, taken, strict=True) if t],
    )


def _cotangents(result: Any, name: str, a: Application) -> list[Any]:
    """The cotangents of the float leaves of all arguments."""
    children = a.treedef.children()
    if not isinstance(result, tuple | list):
        raise CustomRuleError(
            f"{name} must return a tuple with one cotangent per argument, it returned {type(result).__name__}",
            hint="return (x_bar,)"
            if len(children) == 1
            else f"return a tuple of {len(children)}; None stands for zeros",
        )
    if len(result) != len(children):
        raise CustomRuleError(
            f"{name} must return one cotangent per argument of {a.name}: expected {len(children)}, got {len(result)}",
            hint="None stands for zeros",
        )
    leaves: list[Any] = []
    positions = [i for i in range(a.count) if i not in a.static]
    for i, given, node in zip(positions, result, children, strict=True):
        leaves += cotangent_leaves(given, node, f"cotangent {i} of {name}")
    out = []
    for x, aval, path in zip(leaves, a.avals, a.names, strict=True):
        if is_inexact(aval.dtype):
            what = f"{name}: the cotangent of {path}"
            out.append(zeros_of(aval) if x is None else fitting(x, tangent_aval(aval), what, path))
    return out


class custom_gradient(WithRules):  # noqa: N801 (reads as a function)
    """A function that returns its value and its backward rule; for reverse mode only, as `custom_vjp`.

    Parameters
    ----------
    f
        ``f(*args) -> (output, back)``, where ``back(cotangent)`` returns the cotangents of the arguments: a tuple,
        or for a single argument also the cotangent itself. `back` may use whatever `f` computed.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> @fg.custom_gradient
    ... def square(x):
    ...     return x**2, lambda ct: 100 * ct * x
    >>> float(square(3.0)), float(fg.grad(square)(3.0))
    (9.0, 300.0)
    """

    transform = "custom_gradient"

    def __init__(self, f: Callable[..., Any]) -> None:
        super().__init__(f)

    def _value(self, *args: Any) -> Any:
        return self._checked(self.__wrapped__(*args))[0]

    def _apply(self, a: Application, values: list[Any], traced: Traced, result: Result) -> Any:
        back: list[Any] = []  # the rule that the forward pass returned last: traced before that pass has ended

        def forward(*args: Any) -> Any:
            out, rule = self._checked(self.__wrapped__(*args))
            back[:] = [rule]
            return out, ()

        def backward(_: Any, ct: Any) -> Any:
            bars = called_as(f"custom_gradient: the backward rule of {a.name}", back.pop(), ct)
            return bars if a.count != 1 or (isinstance(bars, tuple) and len(bars) == 1) else (bars,)

        forward.__name__ = backward.__name__ = self.name
        make = _make(a, result, forward, backward, False)
        return apply(custom_vjp_p, self, a, values, traced, make, (self.__wrapped__,), made=self.transform)

    def _checked(self, result: Any) -> Any:
        if not isinstance(result, tuple | list) or len(result) != 2 or not callable(result[1]):
            raise CustomRuleError(
                f"custom_gradient: {self.name} must return a pair, the output and a function from its cotangent to "
                "those of the arguments",
                hint="return out, lambda ct: (x_bar,)",
            )
        return result
