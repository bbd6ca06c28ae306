"""Ops of your own: a NumPy function with its rules, which `jit`, `grad` and `vmap` then treat as one operation.

@extend.op
def gammaln(x):                                      # the value: plain NumPy, SciPy, anything
    return scipy.special.gammaln(x)

gammaln.def_shape(lambda x: x)                       # types in, types out
gammaln.def_jvp(lambda x_dot, y, x: x_dot * psi(x))  # the derivative, in traceable code
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from inspect import Signature
from typing import Any

from funcgrad.api.callbacks import declared_type
from funcgrad.api.from_numba import compiled_by_numba
from funcgrad.api.rules import fitting, require_moving, signature_of
from funcgrad.api.tracing import boundary, called_as, function_name, leaf, require_callable, results, written_at
from funcgrad.base import tree
from funcgrad.base.dtypes import is_inexact
from funcgrad.base.errors import ArgumentError, CustomRuleError, ParameterError, printed
from funcgrad.control.assemble import apply, assemble
from funcgrad.control.callback import called, checked_copy
from funcgrad.control.custom_vjp import custom_linear_p
from funcgrad.control.rows import lanes
from funcgrad.core.ir import Aval, Equation, Var, make_aval, tangent_aval
from funcgrad.core.primitive import Compiled, Linear, Primitive, Traits
from funcgrad.core.trace import Trace, Tracer, bind, current, eagerly
from funcgrad.numpy.operands import array
from funcgrad.ops.op import accumulate, aval_of, zeros_of

Rule = Callable[..., Any]


class Op:
    """An operation of the user's: what `op` returns. Call it on arrays, and say with ``def_...`` how it behaves.

    Arguments by position are arrays and numbers; keywords are parameters, Python values that are hashable. Every rule
    gets the keywords as well.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        require_callable(function, "extend.op")
        functools.update_wrapper(self, function, updated=())
        self.name = function_name(function)
        self._function = function
        self._signature = signature_of(function)
        self.rules: dict[str, tuple[Rule, ...]] = {}  # what was given to each def_...
        self._shape: Rule | None = None
        self._primitive = p = Primitive(
            f"extend.{self.name}", Traits(kind="foreign", may_raise=True), function.__doc__ or "", listed=False
        )
        p.abstract, p.evaluate, p.batch = self._abstract, self._evaluate, self._by_rows
        self._entries: dict[Any, Any] = {}
        if compiled_by_numba(function):
            p.compiled = self._compiled
        p.decline("jvp", f"it has no derivative: define {self.name}.def_jvp, def_linear or def_vjp")
        p.decline("transpose", f"it is not linear: {self.name}.def_linear or def_transpose says that it is")

    def __repr__(self) -> str:
        return f"<extend.op {self.name}>"

    @boundary
    def __call__(self, *args: Any, **params: Any) -> Any:
        self._require_fitting(args, params)
        values = [array(leaf(x, f"{self.name}: argument {i}")) for i, x in enumerate(args)]
        for key, value in params.items():
            try:
                hash(value)
            except TypeError:
                raise ParameterError(
                    f"{self.name}: parameter {key!r} is not hashable: {type(value).__name__}",
                    hint="arrays are arguments by position",
                ) from None
        several = self._types(tuple([aval_of(v) for v in values]), params)[1]
        if current() is None:
            with eagerly():
                out = bind(self._primitive, *values, **params)
        else:
            out = bind(self._primitive, *values, **params)
        found = results(out, [v for v in values if type(v) is not Tracer])
        return tuple(found) if several else found[0]

    # -- the rules

    def def_shape(self, rule: Rule) -> Rule:
        """Define the type of the result; needed by every op. Works as a decorator, as all of these.

        Parameters
        ----------
        rule
            ``rule(*types, **params)``: a `ShapeDtypeStruct` per argument in, one out, or a tuple if there are several
            results.
        """
        self._shape = self._rule("def_shape", rule)
        self._define("abstract", self._abstract)
        return rule

    def def_jvp(self, *rules: Rule | None) -> None:
        """Define the derivative for forward and reverse mode, one rule per argument; the terms are added up.

        Parameters
        ----------
        rules
            ``rule(tangent, result, *args, **params) -> tangent of the result``, linear in the tangent; None for an
            argument on which the result does not depend differentiably. Several results are tuples, with None for the
            tangent of an integer.
        """
        self._given("def_jvp", rules)
        self._primitive.moved_by = tuple([i for i, rule in enumerate(rules) if rule is not None])

        def jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
            self._count("def_jvp", rules, primals)
            outs = primal()
            totals: list[Any] = [None] * len(outs)
            several = self._types([aval_of(x) for x in primals], params)[1]
            for i, (rule, dot) in enumerate(zip(rules, tangents, strict=True)):
                if rule is not None and dot is not None:
                    before = len(_recorded())
                    what = f"{self.name}: the jvp rule of argument {i}"
                    found = self._traced(
                        what, rule, primals, (dot, tuple(outs) if several else outs[0], *primals), params
                    )
                    terms = self._tangents(found, outs, several, what)
                    _require_moved(terms, [dot], before, f"{what} returns a tangent")
                    totals = [
                        a if b is None else b if a is None else accumulate(a, b)
                        for a, b in zip(totals, terms, strict=True)
                    ]
            return outs, totals

        self._define("jvp", jvp)

    def def_linear(self, *rules: Rule | None) -> None:
        """Say that the op is linear, jointly, in the arguments that have a rule: its tangent is the op itself.

        Parameters
        ----------
        rules
            As in `def_transpose`.
        """
        self.def_transpose(*rules)
        linear = [i for i, rule in enumerate(rules) if rule is not None]
        self._primitive.moved_by = tuple(linear)

        def jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
            self._count("def_linear", rules, primals)
            outs = primal()
            if all([tangents[i] is None for i in linear]):
                return outs, (None,) * len(outs)
            moved = list(primals)
            for i in linear:
                moved[i] = zeros_of(primals[i]) if tangents[i] is None else tangents[i]
            return outs, bind(self._primitive, *moved, **params)

        self._define("jvp", jvp)

    def def_transpose(self, *rules: Rule | None) -> None:
        """Say how reverse mode goes through the op where it is linear, one rule per argument.

        Parameters
        ----------
        rules
            ``rule(cotangent, *args, **params) -> cotangent of the argument``; arguments in which the op is linear are
            None there. None for an argument in which it is not linear.
        """
        self._given("def_transpose", rules)

        def transpose(cts: Any, *args: Any, **params: Any) -> list[Any]:
            self._count("def_transpose", rules, args)
            avals = [a.aval if isinstance(a, Linear) else aval_of(a) for a in args]
            types, several = self._types(avals, params)
            whole = [zeros_of(t) if ct is None else ct for ct, t in zip(cts, types, strict=True)]
            given = [None if isinstance(a, Linear) else a for a in args]
            out: list[Any] = [None] * len(args)
            for i, (rule, a) in enumerate(zip(rules, args, strict=True)):
                if isinstance(a, Linear):
                    if rule is None:
                        raise CustomRuleError(f"{self.name}: there is no transpose rule for argument {i}")
                    out[i] = self._transposed(i, rule, whole, given, several, a.aval, params)
            return out

        self._define("transpose", transpose)

    def _transposed(
        self, i: int, rule: Rule, cts: list[Any], args: list[Any], several: bool, aval: Aval, params: dict[str, Any]
    ) -> Any:
        """The cotangent of argument `i`, by its rule; `args` are None where the op is linear."""
        what = f"{self.name}: the transpose rule of argument {i}"
        n, known = len(cts), [k for k, x in enumerate(args) if x is not None]
        operands = [*cts, *[args[k] for k in known]]

        def function(*xs: Any) -> list[Any]:
            given = list(args)
            for k, x in zip(known, xs[n:], strict=True):
                given[k] = x
            found = self._traced(what, rule, args, (xs[:n] if several else xs[0], *given), params)
            ct = self._fit(found, aval, f"{self.name}: the cotangent of argument {i}", "the argument")
            _require_moved([ct], xs[:n], 0, f"{what} returns a cotangent", "cotangents")
            return [ct]

        return apply(assemble(self.name, [aval_of(x) for x in operands], function), *operands)[0]

    def def_vjp(self, rule: Rule) -> Rule:
        """Define the derivative for reverse mode only.

        Parameters
        ----------
        rule
            ``rule(cotangent, result, *args, **params)``: a tuple with the cotangent of each argument, None for zero;
            for a single argument it may be the cotangent itself.
        """
        self._rule("def_vjp", rule)
        self._primitive.moved_by = None

        def jvp(primal: Any, primals: Any, tangents: Any, **params: Any) -> Any:
            outs = primal()
            several = self._types([aval_of(x) for x in primals], params)[1]
            moving = [i for i, t in enumerate(tangents) if t is not None]
            inexact = [is_inexact(aval_of(y).dtype) for y in outs]
            if not any(inexact):
                return outs, (None,) * len(outs)
            avals = [aval_of(x) for x in (*primals, *outs)]

            def backward(*operands: Any) -> list[Any]:
                xs, rest = operands[: len(primals)], operands[len(primals) :]
                ys, cotangents = rest[: len(outs)], iter(rest[len(outs) :])
                cts = [next(cotangents) if flag else None for flag in inexact]
                pair = (tuple(cts), tuple(ys)) if several else (cts[0], ys[0])
                found = self._traced(f"{self.name}: the vjp rule", rule, xs, (*pair, *xs), params)
                return self._cotangents(found, xs, moving)

            dots = [tangent_aval(aval_of(y)) for y, flag in zip(outs, inexact, strict=True) if flag]
            program = assemble(self.name, [*avals, *dots], backward)
            found = iter(
                bind(
                    custom_linear_p,
                    *primals,
                    *outs,
                    *[tangents[i] for i in moving],
                    backward=program,
                    name=self.name,
                    made="def_vjp",
                )
            )
            return outs, [next(found) if flag else None for flag in inexact]

        self._define("jvp", jvp)
        return rule

    def def_batch(self, rule: Rule) -> Rule:
        """Define what `vmap` does. Without this rule the op is called for every row.

        Parameters
        ----------
        rule
            ``rule(size, args, axes, **params) -> (result, axis)``: `axes` has for each argument the axis that its rows
            are along, or None if they share it; and so for the result. Several results are tuples, of axes too.
        """
        self._rule("def_batch", rule)

        def batch(size: int, args: Any, dims: Any, **params: Any) -> Any:
            rows = [_without(aval_of(x), d) for x, d in zip(args, dims, strict=True)]
            types, several = self._types(rows, params)
            found = self._traced(f"{self.name}: the batch rule", rule, args, (size, tuple(args), tuple(dims)), params)
            what = f"{self.name}: the result of the batch rule"
            if not isinstance(found, tuple | list) or len(found) != 2:
                raise CustomRuleError(f"{what} is a pair (result, axis), got {type(found).__name__}")
            outs, axes = [self._several(part, len(types), several, what) for part in found]
            values = []
            for x, axis, t in zip(outs, axes, types, strict=True):
                if axis is not None and not (type(axis) is int and 0 <= axis <= len(t.shape)):
                    raise CustomRuleError(f"{what} has its rows along an axis of it, or None; got {printed(axis, 40)}")
                shape = t.shape if axis is None else (*t.shape[:axis], size, *t.shape[axis:])
                values.append(self._fit(x, make_aval(shape, t.dtype), what, "the rows"))
            return tuple(values), tuple(axes)

        self._define("batch", batch)
        return rule

    # -- how they are used

    def _define(self, slot: str, rule: Rule) -> None:
        """Fill a slot; Programs that were derived by the rule before are not those of the op any more."""
        setattr(self._primitive, slot, rule)
        self._primitive.key = object()

    def _rule(self, slot: str, rule: Any) -> Rule:
        require_callable(rule, f"{self.name}.{slot}")
        self.rules[slot] = (rule,)
        return rule  # type: ignore[no-any-return]

    def _given(self, slot: str, rules: Sequence[Any]) -> None:
        if not rules:
            raise ArgumentError(f"{self.name}.{slot} takes one rule per argument, got none")
        for rule in rules:
            if rule is not None:
                self._rule(slot, rule)
        self.rules[slot] = tuple([r for r in rules if r is not None])

    def _count(self, slot: str, rules: Sequence[Any], args: Sequence[Any]) -> None:
        if len(rules) != len(args):
            raise CustomRuleError(
                f"{self.name}: {slot} has {len(rules)} rules, one per argument, "
                f"and was called with {len(args)} arguments"
            )

    def _types(self, avals: Sequence[Aval], params: dict[str, Any]) -> tuple[tuple[Aval, ...], bool]:
        """The types of the results, and whether the op returns a tuple."""
        if self._shape is None:
            raise CustomRuleError(f"{self.name}: it has no shape rule: define {self.name}.def_shape")
        types = [make_aval(a.shape, a.dtype) for a in avals]
        given = {**self._defaults(self._shape, len(types)), **params}
        found = called_as(f"{self.name}: the shape rule", self._shape, *types, **given)
        several = isinstance(found, tuple | list)
        given = list(found) if several else [found]
        return tuple([declared_type(f"{self.name}.def_shape", x, f"result {i}") for i, x in enumerate(given)]), several

    def _several(self, found: Any, count: int, several: bool, what: str) -> list[Any]:
        """What a function or rule returned, one per result of the op."""
        if not several:
            return [found]
        if not isinstance(found, tuple | list) or len(found) != count:
            raise CustomRuleError(f"{what} is a tuple of {count}, got {type(found).__name__} {printed(found, 40)}")
        return list(found)

    def _abstract(self, *avals: Aval, **params: Any) -> tuple[Aval, ...]:
        return self._types(avals, params)[0]

    def _evaluate(self, *values: Any, **params: Any) -> tuple[Any, ...]:
        types, several = self._types([aval_of(v) for v in values], params)
        found = called(lambda arrays: self._function(*self._arguments(arrays), **params), values)
        outs = self._several(found, len(types), several, f"{self.name}: the result")
        who = f"extend.{self.name}"
        return tuple([checked_copy(who, x, t, f"result {i}") for i, (x, t) in enumerate(zip(outs, types, strict=True))])

    def _arguments(self, arrays: list[Any]) -> list[Any]:
        """What the function is given: Numba tells an array without axes from a number."""
        return arrays if self._primitive.compiled is None else [x if x.ndim else x[()] for x in arrays]

    def _compiled(self, e: Equation) -> Compiled:
        several = self._types([a.aval for a in e.inputs], e.params)[1]
        arguments = tree.structure((0,) * len(e.inputs))
        result = tree.structure((0,) * len(e.outputs) if several else 0)
        return Compiled(self._function, self._entries, f"extend.{self.name}", arguments, result, e.params)

    def _by_rows(self, size: int, args: Any, dims: Any, **params: Any) -> Any:
        return lanes(size, self._primitive, args, dims, params)

    def _require_fitting(self, args: tuple[Any, ...], params: dict[str, Any]) -> None:
        """Raise unless the function takes these arguments."""
        if self._signature is not None:
            try:
                self._signature.bind(*args, **params)
            except TypeError as error:
                plain = [p.replace(annotation=p.empty) for p in self._signature.parameters.values()]
                raise ArgumentError(f"{self.name}: {error}", hint=f"{self.name}{Signature(plain)}") from None

    def _defaults(self, rule: Rule, count: int) -> dict[str, Any]:
        """Defaults of the function that a rule asks for by name, where it was called with `count` arguments."""
        if self._signature is None:
            return {}
        asked = signature_of(rule)
        every = list(self._signature.parameters.values())
        left = [p for i, p in enumerate(every) if p.kind is p.KEYWORD_ONLY or i >= count]
        return {
            p.name: p.default
            for p in left
            if p.default is not p.empty and asked is not None and p.name in asked.parameters
        }

    def _traced(self, what: str, rule: Rule, xs: Sequence[Any], given: Sequence[Any], params: dict[str, Any]) -> Any:
        """What a rule returns, where the op was called with `xs`; it may use what it is `given`, and numbers."""
        trace = current()
        before = len(trace.captured) if type(trace) is Trace else 0
        found = called_as(what, rule, *given, **{**self._defaults(rule, len(xs)), **params})
        if found is None:
            hint = "end it with return; if the derivative is zero, return np.zeros_like(x)"
            raise CustomRuleError(f"{what} returns None", hint=hint, source=written_at(rule))
        if type(trace) is Trace and len(trace.captured) > before:
            raise CustomRuleError(
                f"{what} uses an array that is none of its arguments",
                hint=f"make it an argument of {self.name}, with the rule None",
            )
        return found

    def _fit(self, x: Any, aval: Aval, what: str, of: str) -> Any:
        """What a rule returned, as an operand of that type."""
        out = fitting(x, aval, what, of)
        if type(out) is not Tracer and aval.shape and type(current()) is Trace:
            raise CustomRuleError(f"{what} does not depend on the arguments", hint="zeros_like(x) does")
        return out

    def _tangents(self, found: Any, outs: Sequence[Any], several: bool, what: str) -> list[Any]:
        given = self._several(found, len(outs), several, what)
        avals = [aval_of(y) for y in outs]
        return [
            None if x is None or not is_inexact(a.dtype) else self._fit(x, tangent_aval(a), what, "the result")
            for x, a in zip(given, avals, strict=True)
        ]

    def _cotangents(self, found: Any, args: Sequence[Any], moving: Sequence[int]) -> list[Any]:
        given = list(found) if isinstance(found, tuple | list) else [found]
        if len(given) != len(args):
            raise CustomRuleError(
                f"{self.name}: the vjp rule returns one cotangent per argument: expected {len(args)}, got {len(given)}"
            )
        out = []
        for i in moving:
            a = tangent_aval(aval_of(args[i]))
            what = f"{self.name}: the cotangent of argument {i}"
            out.append(zeros_of(args[i]) if given[i] is None else self._fit(given[i], a, what, "the argument"))
        return out


def _recorded() -> list[Equation]:
    """The equations that were recorded so far."""
    trace = current()
    return trace.equations if type(trace) is Trace else []


def _require_moved(terms: Sequence[Any], dots: Sequence[Any], before: int, what: str, of: str = "tangents") -> None:
    """Raise if a term of a derivative, found by the equations from `before` on, has nothing to do with `dots`."""
    trace = current()
    moving = [x.atom for x in dots if type(x) is Tracer and isinstance(x.atom, Var)]
    if type(trace) is Trace and moving:
        atoms = [trace.atom(x) for x in terms if x is not None]
        require_moving(trace.equations[before:], moving, [], atoms, what, of)


def _without(aval: Aval, axis: int | None) -> Aval:
    """The type of one row."""
    return aval if axis is None else make_aval((*aval.shape[:axis], *aval.shape[axis + 1 :]), aval.dtype)


def op(function: Callable[..., Any]) -> Op:
    """Make an operation of a function on NumPy arrays; a decorator.

    Parameters
    ----------
    function
        Computes the value. It gets copies of its arguments as `numpy.ndarray` and is never traced, so that it may be
        anything: SciPy, a loop, a library in C. It must be pure: it may be called more than once, or not at all.

    Returns
    -------
    Op
        Called as the function. ``def_shape`` is needed, ``def_jvp``, ``def_vjp`` or ``def_linear`` for derivatives;
        ``def_batch`` makes `vmap` fast.

    Raises
    ------
    CallbackError
        When called: the function returned another type than the shape rule says.
    CustomRuleError
        A rule is missing, or returns something else than it has to. The message names the op.

    Examples
    --------
    >>> import math, numpy as np, funcgrad as fg
    >>> @fg.extend.op
    ... def cube(x):
    ...     return x * x * x
    >>> cube.def_shape(lambda x: x) and None
    >>> cube.def_jvp(lambda x_dot, y, x: 3 * x**2 * x_dot)
    >>> float(fg.jit(fg.grad(cube))(2.0))
    12.0
    """
    return Op(function)


__all__ = ["Op", "op"]
