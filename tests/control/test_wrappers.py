"""Wrappers that change nothing, around each other: values and derivatives are those of the plain function."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg

W = np.array([[0.3, -0.7], [1.1, 0.4]])
X = np.array([0.5, -1.5])


def plain(w: Any, x: Any) -> Any:
    h = np.tanh(w @ x)
    return np.where(x > 0, h * np.exp(x), h**2)


def with_forward_rule(f: Any) -> Any:
    g = fg.custom_jvp(lambda w, x: f(w, x))
    g.defjvp(lambda primals, tangents: fg.jvp(f, primals, tangents))
    return g


def with_own_value(f: Any) -> Any:
    g = fg.custom_jvp(lambda w, x: f(w, x))
    g.defjvp(lambda primals, tangents: (g(*primals), fg.jvp(f, primals, tangents)[1]))
    return g


def with_backward_rule(f: Any) -> Any:
    g = fg.custom_vjp(lambda w, x: f(w, x))
    g.defvjp(lambda w, x: (f(w, x), (w, x)), lambda r, ct: fg.vjp(f, *r)[1](ct))
    return g


def with_pullback(f: Any) -> Any:
    g = fg.custom_vjp(lambda w, x: f(w, x))
    g.defvjp(lambda w, x: fg.vjp(f, w, x), lambda back, ct: back(ct))
    return g


def with_gradient(f: Any) -> Any:
    return fg.custom_gradient(lambda w, x: fg.vjp(f, w, x))


def as_a_root(f: Any) -> Any:
    return fg.implicit.root(lambda y, w, x: y - f(w, x), lambda w, x: fg.stop_gradient(plain(w, x)))


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "jit": fg.jit,
    "checkpoint": fg.checkpoint,
    "dots": lambda f: fg.checkpoint(f, policy=fg.checkpoint_policies.dots_saveable),
    "jvp": with_forward_rule,
    "own value": with_own_value,
    "vjp": with_backward_rule,
    "pullback": with_pullback,
    "gradient": with_gradient,
    "root": as_a_root,
}
BACKWARD = {"vjp", "pullback", "gradient"}


def scalar(f: Any) -> Callable[[Any], Any]:
    return lambda w: np.sum(f(w, X) * np.array([1.0, 2.0]))


TRANSFORMS: dict[str, tuple[bool, Callable[[Any], Callable[[Any], Any]]]] = {
    "grad": (False, fg.grad),
    "grad grad": (False, lambda f: fg.grad(lambda w: np.sum(fg.grad(f)(w) ** 2))),
    "hvp": (False, lambda f: lambda w: fg.hvp(f, (w,), (W,))),
    "vmap grad": (False, lambda f: lambda w: fg.vmap(fg.grad(f))(np.stack([w, 2 * w]))),
    "grad vmap": (False, lambda f: fg.grad(lambda w: fg.vmap(f)(np.stack([w, 2 * w])).sum())),
    "jvp": (True, lambda f: lambda w: fg.jvp(f, (w,), (W,))[1]),
    "jacfwd jacfwd": (True, lambda f: fg.jacfwd(fg.jacfwd(f))),
}


def check(wrapped: Any, name: str, compiled: bool) -> None:
    jit: Any = fg.jit if compiled else lambda f: f
    transform = TRANSFORMS[name][1]
    found = jit(transform(scalar(wrapped)))(W)
    np.testing.assert_allclose(found, transform(scalar(plain))(W), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("wrapper", "name"), [(w, n) for w in WRAPPERS for n in TRANSFORMS if not (TRANSFORMS[n][0] and w in BACKWARD)]
)
def test_one_wrapper(wrapper: str, name: str, compiled: bool) -> None:
    check(WRAPPERS[wrapper](plain), name, compiled)


PAIRS = [
    (outer, inner)
    for outer, inner in itertools.product(WRAPPERS, WRAPPERS)
    if not (inner in BACKWARD and outer in ("jvp", "own value", "root"))  # whose rules take forward mode
]


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_two_wrappers(outer: str, inner: str) -> None:
    wrapped = WRAPPERS[outer](WRAPPERS[inner](plain))
    np.testing.assert_allclose(wrapped(W, X), plain(W, X), rtol=1e-14)
    check(wrapped, "grad grad", compiled=False)
    check(wrapped, "grad vmap", compiled=True)
