"""Programs whose compiled code is watched: every kind of kernel, odd sizes, gradients, loops, memory used again.

A program is a function and its arguments; names are for messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad import lax
from tests.lowering.random_programs import NATIVE, SHAPES, draw_array, random_function

X = np.linspace(-2.0, 3.0, 37)
M = np.arange(35.0).reshape(5, 7) / 9
R = np.linspace(0.0, 1.0, 200).reshape(5, 40)
I = np.array([3, 1, 3])
FAR = np.array([-100, 2, 1000])


def wave(x: Any) -> Any:
    """A loop in registers."""
    return lax.scan(lambda c, t: (c * 0.5 + np.sin(t), c), x[0], x)


def rows(x: Any) -> Any:
    """The body of this loop is kernels."""
    return lax.scan(lambda c, t: (np.tanh(c + np.flip(c) * t), np.cumsum(c * t)), x[0], x)


def steps(x: Any) -> Any:
    """The reverse mode of this loop keeps values in a buffer that grows."""
    return lax.while_loop(lambda c: c[0] < 50, lambda c: (c[0] * 1.1 + 1, c[1] * np.sin(c[0])), (x, x))[1]


def choice(x: Any, i: Any) -> Any:
    """A branch."""
    return lax.switch(i, [np.sin, np.cos, lambda x: x[::-1]], x)


def network(w: Any, v: Any) -> Any:
    """Products for BLAS, whose results take each other's place."""
    return np.sum(np.tanh(np.tanh(w @ v) @ w))


def called(x: Any) -> Any:
    """A call of Python."""
    return fg.pure_callback(np.sort, fg.ShapeDtypeStruct(x.shape, x.dtype), x * 2.0) + x


def sums(x: Any) -> Any:
    """Reductions over some axes and all."""
    return np.sum(x), np.max(x, axis=1), np.sum(x, axis=0), np.argmax(x), np.prod(x, axis=0)


def walks(x: Any) -> Any:
    """Recurrences along both axes."""
    return np.cumsum(x, axis=0), np.cumprod(x, axis=1), np.flip(np.cumsum(np.flip(x, 1), axis=1), 1)


def scattered(x: Any, i: Any) -> Any:
    """Updates at computed places."""
    return x.at[i].add(1.0).at[i, 2].set(0.0), x.at[i].max(2.0, mode="drop")


def mean_of(f: Callable[..., Any]) -> Callable[..., Any]:
    """A number."""
    return lambda *args: np.sum(f(*args))


SAMPLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elementwise": (lambda x: np.exp(x) * np.sin(x), (X,)),
    "narrow": (lambda x: np.sqrt(x * x + 1) > 2, (X.astype(np.float32),)),
    "bytes": (lambda x: x + x[::-1], (np.arange(131, dtype=np.int8),)),
    "one element": (lambda x: x * 2.0 + 1.0, (1.5,)),
    "sums": (sums, (M,)),
    "long sums": (sums, (np.arange(4099.0).reshape(1, 4099),)),
    "narrow sums": (sums, (np.arange(3 * 517, dtype=np.float32).reshape(3, 517),)),
    "views": (lambda x: x[::-1, 1::2] + x[:, :3] * 2.0, (M,)),
    "pads": (lambda x: np.pad(np.concatenate([x, x[:, :2]], axis=1), ((1, 2), (0, 3))), (M,)),
    "transposed": (lambda x: x.T * 2.0 + x[0][:, None], (M,)),
    "walk": (walks, (M,)),
    "long walk": (np.cumsum, (np.arange(1001.0),)),
    "gather": (lambda x, i: x[i] * x[i][:, ::-1], (M, I)),
    "gather from outside": (lambda x, i: np.take(x, i, axis=0, mode="clip"), (M, FAR)),
    "gradient of a gather": (fg.grad(lambda x, i: np.sum(np.sin(x[i]))), (M, I)),
    "scatter": (scattered, (M, I)),
    "scatter to outside": (lambda x, i: x.at[i].add(x[:3], mode="drop"), (M, FAR)),
    "window": (lambda x, i: (x[i], x.at[i].set(x[0]), x[:, i] + 1.0), (M, 4)),
    "product": (lambda x: x @ x.T @ x, (M,)),
    "products": (lambda x, y: x @ y, (np.ones((3, 9, 17)), np.ones((3, 17, 11)))),
    "large product": (fg.grad(network, argnums=(0, 1)), (np.ones((40, 50)) / 9, np.ones((50, 40)) / 7)),
    "narrow product": (lambda x: x @ x.T, (np.ones((67, 71), np.float32),)),
    "matrix and vector": (lambda a, x: (a @ x, x @ a.T), (np.ones((300, 270)), np.arange(270.0))),
    "product of integers": (lambda x: x @ x, (np.arange(81).reshape(9, 9),)),
    "large angle": (np.sin, (np.array([1e300, -2e22, 3.0]),)),
    "chain": (fg.value_and_grad(lambda x: np.sum(np.tanh(np.exp(-x * x)) / (1 + x[::-1] ** 2))), (X,)),
    "loop": (lambda x, n: lax.fori_loop(0, n, lambda k, c: c.at[k % 3].add(1.0), x), (X[:3], 11)),
    "loop over an array": (lambda x: lax.fori_loop(0, 9, lambda k, c: c.at[k].add(c[36 - k]), x), (X,)),
    "scan": (fg.grad(lambda x: np.sum(wave(x)[1])), (X,)),
    "rows of scans": (fg.vmap(lambda x: wave(x)[1]), (M,)),
    "scan of kernels": (fg.grad(lambda x: np.sum(rows(x)[1])), (R,)),
    "while": (fg.vmap(fg.grad(steps)), (X[:5],)),
    "while, second order": (fg.grad(fg.grad(steps)), (1.5,)),
    "branch": (fg.grad(mean_of(choice)), (X, 2)),
    "rows of branches": (fg.vmap(choice), (M, np.array([0, 2, 1, 1, 0]))),
    "banded": (fg.jacfwd(lambda x: x * x * x), (X,)),
    "hessian": (fg.hessian(lambda x: np.sum(x[1:] * x[:-1] ** 2)), (X,)),
    "foreign": (called, (X,)),
    "foreign in a loop": (lambda x: lax.fori_loop(0, 3, lambda i, y: called(y), x), (X[:5],)),
    "empty": (lambda x: (np.sum(x), x + 1.0, np.concatenate([x, x])), (np.ones((0, 3)),)),
}


def random_sample(count: int) -> Iterator[tuple[str, tuple[Callable[..., Any], tuple[Any, ...]]]]:
    """Random programs over the operations that have machine code."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        shape = SHAPES[seed % len(SHAPES)]
        args = tuple([draw_array(rng, shape, d) for d in rng.choice(["float64", "float32", "int64", "bool"], 3)])
        yield f"random {seed}", (random_function(NATIVE, seed, 40, 12), args)
