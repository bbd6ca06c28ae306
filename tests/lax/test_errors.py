"""What is said where a loop or a branch does not fit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.errors import (
    ArgumentError,
    BranchTypeError,
    CarryTypeError,
    OutOfBoundsError,
    ShapeError,
    TracerIntegerConversionError,
    TreeError,
    UsageError,
)

X = np.ones(3)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: lax.scan(lambda c, x: (c[:2], None), X, X),
            CarryTypeError,
            r"carry goes in as f64\[3\] and comes back as f64\[2\]",
        ),
        (
            lambda: lax.scan(lambda c, x: ({"a": c["a"], "b": c["b"].astype("f4")}, None), {"a": X, "b": X}, X),
            CarryTypeError,
            r"carry.b goes in as f64\[3\] and comes back as f32\[3\]",
        ),
        (lambda: lax.scan(lambda c, x: ((c, c), None), 0.0, X), TreeError, "the carry that the body returns"),
        (lambda: lax.scan(lambda c, x: c, 0.0, X), ArgumentError, r"not a pair \(carry, y\)"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0, (X, np.ones(4))), ShapeError, "numbers of rows differ: 3 in"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0, X, length=4), ShapeError, "4 in length, 3 in xs"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0), ArgumentError, "neither xs nor length"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0, 1.0), ShapeError, "has no rows"),
        (lambda: lax.scan(lambda c, x: (c, x), 0.0, None, -1), ArgumentError, "length is a number of trips"),
        (lambda: lax.while_loop(lambda x: x, lambda x: x, 1.0), CarryTypeError, r"returns f64\[\], not bool\[\]"),
        (lambda: lax.while_loop(lambda x: x > 0, lambda x: x, X), CarryTypeError, r"returns bool\[3\], not bool\[\]"),
        (lambda: lax.fori_loop(0.5, 2, lambda i, x: x, 1.0), ArgumentError, "lower is an integer, got 0.5"),
        (lambda: lax.fori_loop(0, 2, lambda i, x: x[1:], X), CarryTypeError, "comes back as"),
        (lambda: lax.cond(X > 0, lambda: 1.0, lambda: 2.0), ArgumentError, "pred is a scalar"),
        (
            lambda: lax.cond(True, lambda x: x, lambda x: x[:2], X),
            BranchTypeError,
            r"f64\[2\] in false_fun and f64\[3\] in true_fun",
        ),
        (lambda: lax.cond(True, lambda x: (x, x), lambda x: x, X), BranchTypeError, "the result"),
        (lambda: lax.switch(0, [], X), ArgumentError, "branches is a list"),
        (lambda: lax.switch(0.5, [np.sin], X), ArgumentError, "index is an integer"),
        (lambda: lax.map(np.sin, X, batch_size=0), ArgumentError, "batch_size is a number of rows"),
    ],
)
def test_messages(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda: lax.cond(True, 1.0, 2.0), "cond: true_fun is a function, got float", r"lambda \*args: 1\.0"),
        (lambda: lax.cond(True, lambda: 1.0, 2.0), "cond: false_fun is a function, got float", r"lambda \*args: 2\.0"),
        (lambda: lax.switch(0, [np.sin, X], X), "switch: branch 1 is a function, got ndarray", "switch.index, branch"),
        (lambda: lax.scan(X, 0.0, X), "scan: f is a function, got ndarray", r"scan\(f, init, xs\)"),
        (lambda: lax.map(X, np.sin), "map: f is a function", r"map\(f, xs\)"),
        (lambda: lax.while_loop(1.0, np.sin, np.cos), "while_loop: cond_fun is a function", "while_loop.cond_fun"),
        (lambda: lax.fori_loop(0, 3, 1.0, np.sin), "fori_loop: body_fun is a function", "fori_loop.lower, upper"),
        (lambda: fg.custom_linear_solve(np.eye(2), X, X), "custom_linear_solve takes a function", "lambda v: A @ v"),
    ],
)
def test_a_value_in_place_of_a_function(call: Any, message: str, hint: str) -> None:
    for run in (call, lambda: fg.jit(lambda x: call())(1.0)):
        with pytest.raises(UsageError, match=message) as caught:
            run()
        assert re.search(hint, caught.value.hint or "")
        assert caught.value.source is not None and caught.value.source.filename == __file__


def test_a_traced_length_names_the_two_ways() -> None:
    f = fg.jit(lambda n: lax.scan(lambda c, x: (c, None), 0.0, length=n))
    with pytest.raises(TracerIntegerConversionError, match="n: i64") as caught:
        f(3)
    assert "static_argnums" in str(caught.value) and "fori_loop(0, n, body, init)" in str(caught.value)


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit, fg.grad, lambda f: fg.jit(fg.grad(f))])
def test_an_index_outside_ends_the_loop_and_names_the_line(wrap: Any) -> None:
    def f(x: Any) -> Any:
        return lax.fori_loop(0, 5, lambda i, s: s + fg.numpy.asarray(x)[i], 0.0)

    with pytest.raises(OutOfBoundsError, match="index 3 is out of bounds for axis 0 of length 3") as caught:
        wrap(f)(X)
    assert "s + fg.numpy.asarray(x)[i]" in str(caught.value)


def test_a_python_scalar_takes_the_dtype_of_the_body() -> None:
    total, _ = lax.scan(lambda c, x: (c + x, None), 0, X)
    assert total == 3.0 and total.dtype == np.float64
    assert lax.while_loop(lambda x: x < 3, lambda x: x + 0.5, 0).dtype == np.float64
    assert lax.fori_loop(0, 2, lambda i, x: x + np.float32(1), 0).dtype == np.float64  # int64 with float32, as NumPy


def test_no_trips() -> None:
    carry, ys = lax.scan(lambda c, x: (c + x, c * x), 2.0, np.ones((0,)))
    assert carry == 2.0 and ys.shape == (0,)
    assert lax.fori_loop(3, 1, lambda i, x: x * 0.0, 5.0) == 5.0
    assert fg.grad(lambda a: lax.while_loop(lambda x: x < 0, lambda x: x * x, a))(2.0) == 1.0
    assert lax.map(lambda x: x, np.ones((0, 2))).shape == (0, 2)
    got = fg.jit(fg.vmap(lambda n, a: lax.fori_loop(0, n, lambda i, x: x * a, 1.0)))(
        np.array([0, 3, 1]), 2 * np.ones(3)
    )
    assert got.tolist() == [1.0, 8.0, 2.0]


def test_results_are_fresh() -> None:
    x = np.ones(3)
    out = lax.fori_loop(0, 0, lambda i, y: y, x)
    out[0] = 7.0
    assert x[0] == 1.0
    carry, ys = fg.jit(lambda x: lax.scan(lambda c, r: (c, c), x, None, length=2))(x)
    carry[:] = 5.0
    assert ys.tolist() == [[1.0] * 3] * 2 and x.tolist() == [1.0] * 3


def test_names_of_jax_say_what_to_write() -> None:
    x, i, n, value = np.arange(1.0, 6.0), 1, 2, 7.0
    names = {"np": np, "fg": fg, "x": fg.numpy.asarray(x), "i": i, "n": n, "value": value, "low": 1.0, "high": 2.0}
    names |= {"condition": x > 1, "a": x, "b": -x}
    expected = {
        "clamp": np.clip(x, 1.0, 2.0),
        "dynamic_slice": x[1:3],
        "dynamic_slice_in_dim": x[1:3],
        "dynamic_index_in_dim": 2.0,
        "dynamic_update_slice": np.array([1.0, 7.0, 7.0, 4.0, 5.0]),
        "dynamic_update_slice_in_dim": np.array([1.0, 7.0, 7.0, 4.0, 5.0]),
        "dynamic_update_index_in_dim": np.array([1.0, 7.0, 3.0, 4.0, 5.0]),
        "iota": np.arange(2),
        "rsqrt": 1 / np.sqrt(x),
        "select": np.where(x > 1, x, -x),
        "stop_gradient": x,
    }
    for name, wanted in expected.items():
        with pytest.raises(AttributeError, match=f"funcgrad.lax has no {name}; write ") as caught:
            getattr(lax, name)
        found = eval(str(caught.value).split("; write ")[1], names)
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(AttributeError, match=r"funcgrad\.lax has no sin; write np\.sin"):
        lax.sin  # noqa: B018
    for name in dir(np):
        if callable(getattr(np, name)) and not name.startswith("_") and name not in (*lax.__all__, *expected):
            with pytest.raises(AttributeError) as caught:
                getattr(lax, name)
            assert (f"write np.{name}" in str(caught.value)) == hasattr(fg.numpy, name), caught.value
    with pytest.raises(AttributeError, match=r"funcgrad\.lax has no sort; write np\.sort"):
        lax.sort  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no unique, nor has funcgrad\.numpy; np\.unique takes plain arrays"):
        lax.unique  # noqa: B018
    with pytest.raises(AttributeError, match=r"'funcgrad\.lax' has no attribute 'nothing_at_all'"):
        lax.nothing_at_all  # noqa: B018
    with pytest.raises(AttributeError, match=r"write debug\.callback"):
        fg.debug.breakpoint  # noqa: B018
