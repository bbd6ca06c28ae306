"""checkpoint: equal values, and what is kept for the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.control.checkpoint import checkpoint_p
from funcgrad.core.ir import Equation, Program, Var, subprograms
from funcgrad.lowering.simplify import simplify
from funcgrad.transforms.jvp import jvp
from funcgrad.transforms.split import split

P = fg.checkpoint_policies
W = np.linspace(-1.0, 1.0, 16).reshape(4, 4)
X = np.linspace(0.1, 2.0, 12).reshape(3, 4)


def layer(w: Any, x: Any) -> Any:
    h = fg.checkpoint_name(np.sin(x @ w), "hidden")
    return np.tanh(h * np.exp(h)) @ w


def kept(f: Any, *args: Any) -> int:
    """Bytes of the residuals that the known half hands to the linear half."""
    program = fg.make_program(f)(*args)
    constants = len(program.inputs) - len(fg.tree.leaves(args))
    moving = tuple([i >= constants for i in range(len(program.inputs))])
    derived, _ = jvp(program, moving)
    n = len(program.inputs)
    halves = split(derived, (False,) * n + (True,) * (len(derived.inputs) - n))
    residuals = halves.unknown.inputs[: len(halves.unknown.inputs) - sum(moving)]
    return sum([v.aval.size * v.aval.dtype.itemsize for v in residuals])


def names(program: Program) -> list[str]:
    """The names of all operations, those in bodies too."""
    out = []
    for e in program.equations:
        out.append(e.primitive.name)
        for _, body in subprograms(e):
            out += names(body)
    return out


POLICIES: dict[str, Any] = {
    "default": None,
    "everything": P.everything_saveable,
    "nothing": P.nothing_saveable,
    "dots": P.dots_saveable,
    "only hidden": P.save_only_these_names("hidden"),
    "only other": P.save_only_these_names("other"),
    "any but hidden": P.save_any_names_but_these("hidden"),
    "any but other": P.save_any_names_but_these("other"),
    "all but hidden": P.save_anything_except_these_names("hidden"),
    "own": lambda primitive, *avals, **params: primitive.name == "exp",
}
OF_W, OF_X, HIDDEN = 16 * 8, 12 * 8, 12 * 8
# Always w and x. dots: x @ w. By name: the value `hidden`, or all other values that the backward pass needs.
KEPT = {
    "default": 0, "nothing": 0, "only hidden": HIDDEN, "only other": 0, "any but hidden": 0, "any but other": HIDDEN,
    "dots": HIDDEN, "own": HIDDEN,
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name: str) -> None:
    f = fg.checkpoint(layer, policy=POLICIES[name])
    assert kept(f, W, X) == OF_W + OF_X + KEPT[name]
    assert kept(lambda w: f(w, X), W) == OF_W + OF_X + KEPT[name]


def test_policies_of_one_program_stay_apart() -> None:
    program, _ = jvp(fg.make_program(layer)(W, X), (True, True))
    saved = []
    for name in ("default", "dots", "everything"):
        results = tuple([Var(a) for a in program.out_avals])
        params = {"program": program, "policy": POLICIES[name]}
        e = Equation(checkpoint_p, program.inputs, params, results, None)
        known, _ = checkpoint_p.split(e, (False, False, True, True))
        saved.append(sum([len(e.outputs) for e in known]))
    assert saved[0] < saved[1] < saved[2]


def test_what_has_a_name_is_not_computed_again_without_it() -> None:
    def f(x: Any) -> Any:
        h = np.sin(x)
        return np.sum(h * fg.checkpoint_name(h, "hidden"))

    gradient = fg.grad(fg.checkpoint(f, policy=P.save_only_these_names("hidden")))
    assert names(fg.make_program(gradient)(X)).count("sin") == 1
    np.testing.assert_allclose(gradient(X), np.sin(2 * X), rtol=1e-14)


def test_what_the_backward_pass_does_not_need_is_not_kept() -> None:
    assert kept(fg.checkpoint(lambda w, x: np.sin(w).sum() + 3 * x), W, X) == OF_W


def test_everything_is_kept_as_without_checkpoint() -> None:
    assert kept(fg.checkpoint(layer, policy=P.everything_saveable), W, X) == kept(layer, W, X)
    assert kept(layer, W, X) > OF_W + OF_X + 3 * HIDDEN
    all_but = kept(fg.checkpoint(layer, policy=P.save_anything_except_these_names("hidden")), W, X)
    assert OF_W + OF_X < all_but <= kept(layer, W, X)


@pytest.mark.parametrize("name", POLICIES)
def test_a_pullback_holds_what_is_kept(name: str) -> None:
    f = fg.checkpoint(layer, policy=POLICIES[name])
    value, back = fg.vjp(f, W, X)
    np.testing.assert_array_equal(value, layer(W, X))
    held = sum([r.nbytes for r in fg.tree.leaves(back)])
    assert held == kept(f, W, X)
    for bar, expected in zip(back(np.ones((3, 4))), fg.vjp(layer, W, X)[1](np.ones((3, 4))), strict=True):
        np.testing.assert_array_equal(bar, expected)


def loss(f: Any) -> Callable[[Any], Any]:
    return lambda w: np.sum(f(w, X) ** 2)


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "value": lambda f: f,
    "grad": fg.grad,
    "grad of jit": lambda f: fg.grad(fg.jit(f)),
    "jvp": lambda f: lambda w: fg.jvp(f, (w,), (W,))[1],
    "linearize": lambda f: lambda w: fg.linearize(f, w)[1](W),
    "hvp": lambda f: lambda w: fg.hvp(f, (w,), (W,)),
    "grad grad": lambda f: fg.grad(lambda w: np.sum(fg.grad(f)(w) * W)),
    "grad jvp": lambda f: fg.grad(lambda w: fg.jvp(f, (w,), (W,))[1]),
    "third": lambda f: fg.grad(lambda w: fg.grad(lambda v: np.sum(fg.grad(f)(v) * W))(w)[0, 1]),
    "vmap grad": lambda f: lambda w: fg.vmap(fg.grad(f))(np.stack([w, 2 * w])),
    "grad vmap": lambda f: lambda w: fg.grad(lambda v: fg.vmap(f)(v).sum())(np.stack([w, 2 * w])),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("policy", ["default", "dots", "only hidden", "everything"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_values_are_equal(name: str, policy: str, compiled: bool) -> None:
    transform, jit = TRANSFORMS[name], fg.jit if compiled else lambda f: f
    found = jit(transform(loss(fg.checkpoint(layer, policy=POLICIES[policy]))))(W)
    expected = transform(loss(layer))(W)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_nesting() -> None:
    inner = fg.checkpoint(lambda x: np.sin(np.exp(x)))
    for f in (
        fg.checkpoint(lambda x: inner(inner(x)) * x),
        fg.checkpoint(fg.jit(lambda x: inner(fg.checkpoint(inner)(x)) * x)),
        fg.jit(fg.checkpoint(fg.jit(fg.checkpoint(lambda x: inner(inner(x)) * x)))),
        fg.vmap(fg.checkpoint(lambda x: inner(inner(x)) * x)),
    ):
        x = np.array([0.1, 0.5])
        plain = lambda x: np.sin(np.exp(np.sin(np.exp(x)))) * x
        np.testing.assert_allclose(fg.grad(lambda x, f=f: f(x).sum())(x), fg.vmap(fg.grad(plain))(x), rtol=1e-14)
        second = fg.grad(lambda x, f=f: fg.grad(lambda y: f(y).sum())(x).sum())
        np.testing.assert_allclose(second(x), fg.vmap(fg.grad(fg.grad(plain)))(x), rtol=1e-13)
        np.testing.assert_allclose(fg.jit(second)(x), fg.vmap(fg.grad(fg.grad(plain)))(x), rtol=1e-13)
        assert kept(f, x) == 16


def test_policies_look_into_calls() -> None:
    f = lambda w, x: np.sin(fg.jit(lambda a, b: np.cos(a @ b) @ b)(x, w))
    assert kept(fg.checkpoint(f, policy=P.dots_saveable), W, X) == OF_W + OF_X + 2 * HIDDEN
    gradient = fg.grad(lambda w: fg.checkpoint(f, policy=P.dots_saveable)(w, X).sum())
    np.testing.assert_array_equal(gradient(W), fg.grad(lambda w: f(w, X).sum())(W))
    back = fg.make_program(gradient)(W).equations[-1].params["program"]
    forward = [e for e in back.equations if e.primitive.name == "dot" and e.params["contract"] == ((1,), (0,))]
    assert not forward


def test_a_chain_of_checkpoints_keeps_one_array_each() -> None:
    block = fg.checkpoint(lambda x: np.sin(np.exp(np.cos(x))))

    def chain(x: Any) -> Any:
        for _ in range(5):
            x = block(x)
        return x

    assert kept(chain, X) == 5 * X.nbytes


def test_the_recomputation_is_not_merged_with_the_forward_pass() -> None:
    f = lambda x: fg.checkpoint(lambda y: np.sin(np.exp(y)))(x).sum()
    program = fg.make_program(fg.value_and_grad(f))(X)
    assert names(program).count("barrier") == 1
    flat = names(simplify(program))
    assert flat.count("exp") == 2 and "barrier" not in flat and "checkpoint" not in flat
    plain = names(simplify(fg.make_program(fg.value_and_grad(lambda x: np.sin(np.exp(x)).sum()))(X)))
    assert plain.count("exp") == 1
    value, gradient = fg.jit(fg.value_and_grad(f))(X)
    np.testing.assert_allclose(value, np.sin(np.exp(X)).sum(), rtol=1e-14)
    np.testing.assert_allclose(gradient, np.cos(np.exp(X)) * np.exp(X), rtol=1e-13)


def test_what_the_backward_pass_does_not_need_is_not_computed_again() -> None:
    f = fg.checkpoint(lambda x: (np.exp(np.sin(x)) * 2).sum())
    program = fg.make_program(fg.grad(f))(X)
    back = program.equations[-1].params["program"]
    assert sorted(names(back)) == ["broadcast", "cos", "exp", "mul", "mul", "mul", "sin"]
    linear = fg.checkpoint(lambda x: 3.0 * x)
    assert kept(linear, X) == 0


def test_structural_zeros_pass_through() -> None:
    f = lambda x: np.where(x > 0, fg.checkpoint(np.sqrt)(x), 0.0)
    assert fg.grad(f)(0.0) == 0.0 and fg.grad(fg.checkpoint(f))(0.0) == 0.0
    assert fg.jvp(fg.checkpoint(f), (0.0,), (1.0,))[1] == 0.0


def test_custom_rules_inside() -> None:
    f = fg.custom_jvp(lambda x: x * x)
    f.defjvps(lambda t, out, x: 5 * x * t)
    g = fg.custom_vjp(lambda x: x * x)
    g.defvjp(lambda x: (g(x), np.exp(x)), lambda r, ct: (ct * r,))
    assert fg.grad(fg.checkpoint(lambda x: f(x) * 2))(3.0) == 30.0
    assert fg.grad(fg.grad(fg.checkpoint(f)))(3.0) == 5.0
    for wrap in (lambda h: h, fg.jit):
        np.testing.assert_allclose(wrap(fg.grad(fg.checkpoint(lambda x: g(np.sin(x)))))(1.0),
                                   np.exp(np.sin(1.0)) * np.cos(1.0), rtol=1e-14)  # fmt: skip
    assert kept(fg.checkpoint(lambda x: g(np.sin(x))), X) == X.nbytes


def test_arguments() -> None:
    @fg.checkpoint
    def f(p: Any, *, scale: Any) -> Any:
        """Doc."""
        return {"y": p["a"] * scale, "n": p["n"] + 1}

    assert f.__name__ == "f" and f.__doc__ == "Doc."
    out = fg.grad(lambda a, s: f({"a": a, "n": 3}, scale=s)["y"], (0, 1))(2.0, 5.0)
    assert out == (5.0, 2.0)
    power = fg.checkpoint(lambda x, n: x**n if n > 1 else x, static_argnums=1)
    assert fg.grad(lambda x: power(x, 3))(2.0) == 12.0 and fg.grad(lambda x: power(x, 1))(2.0) == 1.0
    assert fg.remat is fg.checkpoint
    closed = lambda x: fg.checkpoint(lambda: np.sin(x))()
    assert fg.grad(closed)(0.0) == 1.0 and fg.grad(fg.grad(closed))(np.pi / 2) == -1.0
    flow = fg.checkpoint(lambda x: x * x if x > 1 else x)
    assert fg.grad(flow)(3.0) == 6.0 and fg.grad(flow)(0.5) == 1.0


def test_names() -> None:
    assert fg.checkpoint_name({"a": 1.0}, "n") == {"a": 1.0}
    f = lambda x: fg.checkpoint_name(x * x, "n")
    assert fg.grad(f)(3.0) == 6.0 and fg.jit(fg.grad(fg.grad(f)))(3.0) == 2.0
    assert fg.vmap(f)(np.arange(3.0)).tolist() == [0.0, 1.0, 4.0]
    assert "checkpoint_name[name=n]" in str(fg.make_program(f)(1.0))


BAD: list[tuple[str, Callable[[], Any], type[Exception], str]] = [
    ("no function", lambda: fg.checkpoint(3), fg.errors.UsageError, "checkpoint takes a function"),
    ("policy", lambda: fg.checkpoint(np.sin, policy="dots"), fg.errors.ArgumentError, "policy is a function"),
    ("name", lambda: fg.checkpoint_name(1.0, 3), fg.errors.ArgumentError, "the name is a string"),
    ("names", lambda: P.save_only_these_names(["a"]), fg.errors.ArgumentError, "takes names"),
    ("jit", lambda: fg.jit(fg.checkpoint(lambda x: x if x > 0 else -x))(1.0),
     fg.errors.TracerBoolConversionError, "Python asks for its truth value"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_errors(call: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("policy", [None, fg.checkpoint_policies.dots_saveable])
def test_effects_happen_once(wrap: Any, policy: Any) -> None:
    """Also where the result of one is needed again: 0.5, then 1.5 and so on, of which no two are the same."""
    calls: list[float] = []

    def draw() -> float:
        calls.append(len(calls) + 0.5)
        return calls[-1]

    def block(x: Any) -> Any:
        return np.sin(x * fg.io_callback(draw, fg.ShapeDtypeStruct((), float)))

    f = fg.checkpoint(lambda x: block(x) * block(x), policy=policy)
    x, a, b = 0.3, 0.5, 1.5
    found = wrap(fg.value_and_grad(f))(x)
    want = np.sin(a * x) * np.sin(b * x), a * np.cos(a * x) * np.sin(b * x) + b * np.cos(b * x) * np.sin(a * x)
    np.testing.assert_allclose(found, want, rtol=1e-14)
    assert calls == [0.5, 1.5]


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("levels", [1, 2])
def test_effects_of_a_scan_with_checkpoint_happen_once(wrap: Any, levels: int) -> None:
    calls: list[float] = []

    def step(c: Any, _: Any) -> Any:
        fg.debug.callback(lambda x: calls.append(float(x)), c)
        return np.cos(c), None

    wrap(fg.grad(lambda a: fg.lax.scan(step, a, length=9, checkpoint=levels)[0]))(0.7)
    c, want = 0.7, []
    for _ in range(9):
        want.append(c)
        c = float(np.cos(c))
    np.testing.assert_allclose(calls, want, rtol=1e-15)
