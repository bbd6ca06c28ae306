"""checkpoint: less memory in reverse mode, for more computation; and the policies that say what is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from funcgrad.api.tracing import (
    boundary,
    function_name,
    leaf,
    leaf_names,
    require_callable,
    results,
    trace,
    value_and_aval,
)
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, printed
from funcgrad.control import checkpoint as control
from funcgrad.control.checkpoint import Policy, checkpointed
from funcgrad.core.primitive import Primitive
from funcgrad.core.trace import Trace, Tracer, current


def checkpoint(
    f: Callable[..., Any], policy: Policy | None = None, static_argnums: int | Sequence[int] = ()
) -> Callable[..., Any]:
    """A function equal to `f` that keeps little for its backward pass, which computes it again.

    Reverse mode keeps intermediate values of `f`. Here it keeps the arguments, and what the policy says; the backward
    pass calls `f` once more. The values of all derivatives are the same.

    Parameters
    ----------
    f
        Takes and returns pytrees of arrays.
    policy
        One of `checkpoint_policies`: which intermediate values are kept. Default: none.
    static_argnums
        Positions of arguments that are not arrays.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> def layer(w, x):
    ...     return np.tanh(np.sin(x @ w))
    >>> x, w = np.ones((100, 10)), np.ones((10, 10))
    >>> kept = lambda f: sum(r.nbytes for r in fg.tree.leaves(fg.vjp(lambda w: f(w, x), w)[1]))
    >>> kept(layer), kept(fg.checkpoint(layer))
    (24000, 8800)
    """
    require_callable(f, "checkpoint")
    if policy is not None and not callable(policy):
        raise ArgumentError(
            f"checkpoint: policy is a function, got {printed(policy)}", hint="fg.checkpoint_policies.dots_saveable"
        )
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)

    @boundary
    @functools.wraps(f)
    def checkpointed_function(*args: Any, **kwargs: Any) -> Any:
        if type(current()) is not Trace:
            return f(*args, **kwargs)
        fixed = {i % len(args): args[i % len(args)] for i in numbers if -len(args) <= i < len(args)}
        return _apply(f, fixed, policy, args, kwargs)

    return checkpointed_function


def _apply(f: Any, fixed: dict[int, Any], policy: Policy | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    positions = [i for i in range(len(args)) if i not in fixed]
    leaves, treedef = tree.flatten((tuple([args[i] for i in positions]), kwargs))
    names = leaf_names(f, treedef.children()[0], positions)
    names += [n for k in sorted(kwargs) for n in tree.leaf_paths(tree.structure(kwargs[k]), k)]
    pairs = [value_and_aval(leaf(x, n)) for x, n in zip(leaves, names, strict=True)]

    def function(tracers: list[Any]) -> Any:
        given, keywords = tree.unflatten(treedef, tracers)
        rest = iter(given)
        return f(*[fixed[i] if i in fixed else next(rest) for i in range(len(args))], **keywords)

    traced = trace(function, pairs, names, name=function_name(f), purpose="checkpoint", shows=True)
    operands = [*traced.constants, *[value for value, _ in pairs]]
    out = checkpointed(policy)(traced.program, *operands)
    return tree.unflatten(traced.out_tree, results(out, operands))


def checkpoint_name(x: Any, name: str) -> Any:
    """`x` itself, under a name that the policies of `checkpoint` know. Works on pytrees.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> policy = fg.checkpoint_policies.save_only_these_names("hidden")
    >>> f = fg.checkpoint(lambda x: np.sin(fg.checkpoint_name(np.exp(x), "hidden")), policy=policy)
    >>> print(fg.grad(f)(0.0).round(4))
    0.5403
    """
    if not isinstance(name, str):
        raise ArgumentError(f"checkpoint_name: the name is a string, got {printed(name)}")
    leaves, treedef = tree.flatten(x)
    return tree.unflatten(treedef, [control.checkpoint_name(v, name) if type(v) is Tracer else v for v in leaves])


# -- policies


def everything_saveable(primitive: Primitive, *avals: Any, **params: Any) -> bool:
    """Keep everything that the backward pass needs, as without `checkpoint`."""
    return True


def nothing_saveable(primitive: Primitive, *avals: Any, **params: Any) -> bool:
    """Keep the arguments only."""
    return False


def dots_saveable(primitive: Primitive, *avals: Any, **params: Any) -> bool:
    """Keep the results of matrix products, which cost the most."""
    return primitive.traits.kind == "dot"


@dataclass(frozen=True, slots=True)
class _Names:
    """A policy by the names that `checkpoint_name` gives."""

    names: frozenset[str]
    listed: bool
    unnamed: bool

    def __call__(self, primitive: Primitive, *avals: Any, **params: Any) -> bool:
        if primitive is not control.name_p:
            return self.unnamed
        return (params["name"] in self.names) == self.listed


def _names(names: tuple[Any, ...], policy: str) -> frozenset[str]:
    if not all([isinstance(n, str) for n in names]):
        raise ArgumentError(f"{policy} takes names: got {printed(names)}", hint=f"{policy}('a', 'b')")
    return frozenset(names)


def save_only_these_names(*names: str) -> Policy:
    """Keep values with these names, and nothing else."""
    return _Names(_names(names, "save_only_these_names"), True, False)


def save_any_names_but_these(*names: str) -> Policy:
    """Keep values with names, except these; nothing without a name."""
    return _Names(_names(names, "save_any_names_but_these"), False, False)


def save_anything_except_these_names(*names: str) -> Policy:
    """Keep everything but values with these names."""
    return _Names(_names(names, "save_anything_except_these_names"), False, True)


checkpoint_policies = SimpleNamespace(
    everything_saveable=everything_saveable,
    nothing_saveable=nothing_saveable,
    dots_saveable=dots_saveable,
    save_only_these_names=save_only_these_names,
    save_any_names_but_these=save_any_names_but_these,
    save_anything_except_these_names=save_anything_except_these_names,
)
"""What `checkpoint` keeps: `everything_saveable`, `nothing_saveable`, `dots_saveable`, and by name."""
