"""custom_jvp: a function with a forward rule of its own, which serves forward and reverse mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.api.rules import (
    Application,
    Result,
    WithRules,
    apply,
    fitting,
    like,
    no_tangent,
    require_moving,
    returned_by,
    symbolic_zero,
)
from funcgrad.api.tracing import Traced, called_as, function_name, named, require_callable, trace
from funcgrad.base import tree
from funcgrad.base.dtypes import is_inexact
from funcgrad.base.errors import CustomRuleError
from funcgrad.control.custom_jvp import custom_jvp_p
from funcgrad.core.ir import tangent_aval
from funcgrad.core.trace import Tracer
from funcgrad.ops.op import aval_of, zeros_of


class custom_jvp(WithRules):  # noqa: N801 (reads as a function)
    """A function whose derivative you define; forward and reverse mode both follow from the rule.

    Use it where the derivative of the code is not the one that you want: for numerical stability, for what is not
    differentiable, for a solver.

    Parameters
    ----------
    f
        Takes and returns pytrees of arrays. Keywords are resolved to positions.
    nondiff_argnums
        Positions of arguments that are not arrays (functions, strings, flags). The rule gets them first.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> @fg.custom_jvp
    ... def log1pexp(x):
    ...     return np.log(1 + np.exp(x))
    >>> @log1pexp.defjvp
    ... def log1pexp_jvp(primals, tangents):
    ...     (x,), (x_dot,) = primals, tangents
    ...     return log1pexp(x), x_dot * (1 - 1 / (1 + np.exp(x)))
    >>> float(fg.grad(log1pexp)(1000.0))
    1.0
    """

    transform = "custom_jvp"

    def __init__(self, f: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> None:
        super().__init__(f, nondiff_argnums)
        self._rule: Callable[..., Any] | None = None
        self._written: tuple[Callable[..., Any], ...] = ()  # the functions of the user's that the rule consists of
        self._symbolic = False

    def defjvp(self, rule: Callable[..., Any], symbolic_zeros: bool = False) -> Callable[..., Any]:
        """Define the derivative; also works as a decorator.

        Parameters
        ----------
        rule
            ``rule(*nondiff, primals, tangents) -> (output, tangent)``: tuples with one entry per argument in, the
            result of the function and its tangent out, which has the same tree, shapes and dtypes. It must be linear
            in the tangents. Higher derivatives differentiate the rule. Tangents of integers are arrays of `float0`.
        symbolic_zeros
            Give the rule a `SymbolicZero` for a tangent that is known to be zero when the function is applied.
        """
        require_callable(rule, "defjvp")
        self._rule, self._written, self._symbolic = rule, (rule,), symbolic_zeros
        return rule

    def defjvps(self, *rules: Callable[..., Any] | None) -> None:
        """Define the derivative by one function per argument; the terms are added up.

        Parameters
        ----------
        rules
            ``rule(tangent, output, *primals) -> tangent of the output``; None for an argument whose derivative is 0.
        """
        if self.nondiff_argnums:
            raise CustomRuleError(
                f"custom_jvp: defjvps cannot be used with nondiff_argnums={self.nondiff_argnums} of {self.name}",
                hint="use defjvp",
            )

        def rule(primals: Any, tangents: Any) -> Any:
            if len(rules) != len(primals):
                raise CustomRuleError(
                    f"defjvps of {self.name} takes one rule per argument: got {len(rules)} for {len(primals)} arguments"
                )
            out = self(*primals)
            terms = [r(t, out, *primals) for r, t in zip(rules, tangents, strict=True) if r is not None]
            if not terms:
                return out, tree.unflatten(tree.structure(out), [zeros_of(x) for x in tree.flatten(out)[0]])
            first, treedef = tree.flatten(terms[0])
            total = first
            for term in terms[1:]:
                leaves = like(term, treedef, [aval_of(x) for x in first], "a term of defjvps", "the first")
                total = [x + y for x, y in zip(total, leaves, strict=True)]
            return out, tree.unflatten(treedef, total)

        rule.__name__ = f"{self.name}_jvps"
        self._rule, self._symbolic = rule, False
        self._written = tuple([r for r in rules if r is not None])

    def _require_rules(self) -> None:
        if self._rule is None:
            raise CustomRuleError(
                f"custom_jvp: {self.name} has no derivative rule",
                hint=f"@{self.name}.defjvp above def rule(primals, tangents): return out, out_dot",
            )

    def _apply(self, a: Application, values: list[Any], traced: Traced, result: Result) -> Any:
        rule, symbolic = self._rule, self._symbolic
        name, who = function_name(rule), named(rule, f"the rule of {a.name}")
        zero = a.zeros if symbolic else [not m for m in a.moving]

        def function(leaves: list[Any]) -> Any:
            primals, dots = leaves[: len(a.avals)], iter(leaves[len(a.avals) :])
            tangents = []
            for aval, moves, none in zip(a.avals, a.moving, zero, strict=True):
                dot = next(dots) if moves else no_tangent(aval, symbolic)
                tangents.append(symbolic_zero(aval) if none and moves else dot)
            static = [a.static[i] for i in sorted(a.static)]
            given = (tree.unflatten(a.treedef, primals), tree.unflatten(a.treedef, tangents))
            returned = called_as(f"custom_jvp: the rule of {a.name}", rule, *static, *given)
            with returned_by(rule):
                return _outputs(returned, who, result)

        def make(expected: Sequence[Any], values: Sequence[Any] | None) -> list[Traced]:
            dots = [(None, tangent_aval(aval)) for aval, moves in zip(a.avals, a.moving, strict=True) if moves]
            names = [f"{n}_dot" for n, moves in zip(a.names, a.moving, strict=True) if moves]
            found = trace(
                function,
                [*a.inputs(values), *dots],
                [*a.names, *names],
                name=name,
                purpose="custom_jvp",
                shows=values is not None,
                expected=expected,
                hidden="the tangents of a rule",
            )
            with returned_by(rule):
                _require_moving(found, len(dots), len(result.avals), who)
            return [found]

        return apply(custom_jvp_p, self, a, values, traced, make, self._written)


def _outputs(returned: Any, name: str, result: Result) -> list[Any]:
    """Outputs and tangents of a rule, as leaves."""
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise CustomRuleError(
            f"{name} must return a pair, the output and its tangent; it returned "
            f"{f'{len(returned)} values' if isinstance(returned, tuple | list) else type(returned).__name__}",
            hint="return out, out_dot",
        )
    avals = result.avals
    out = like(returned[0], result.treedef, avals, f"the output of {name}", "the result of the function")
    leaves, found = tree.flatten(returned[1])
    if found != result.treedef:
        what = f"the tangent of {name}"
        raise CustomRuleError(
            f"{what} must have the tree of the output; {tree.describe_mismatch(what, result.treedef, found)}",
            hint="np.zeros_like(out), not None, where it is zero",
        )
    paths = tree.leaf_paths(result.treedef, f"the tangent of {name}")
    dots = [
        fitting(x, aval, path, "the output")
        for x, aval, path in zip(leaves, avals, paths, strict=True)
        if is_inexact(aval.dtype)
    ]
    return [*out, *dots]


def _require_moving(rule: Traced, dots: int, outputs: int, name: str) -> None:
    """Raise if a tangent that a rule returns has nothing to do with those it got."""
    p = rule.program
    known = [(v, x) for v, x in zip(p.inputs, rule.constants, strict=False) if type(x) is not Tracer]
    zero = [v for v, x in known if not np.any(np.asarray(x))]
    require_moving(
        p.equations, p.inputs[len(p.inputs) - dots :], zero, p.outputs[outputs:], f"{name} returns a tangent"
    )
