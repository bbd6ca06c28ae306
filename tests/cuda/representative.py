"""Programs whose kernels stand for all: what each takes of a GPU is kept in golden/resources.txt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad import lax
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1

F = np.float32
V = np.ones(4096, F)
D = np.ones(4096)
M = np.ones((256, 512), F)
SQUARE = np.ones((128, 128), F)
PLACES = np.arange(256)


def gelu(x: Any) -> Any:
    """The activation, by tanh."""
    return F(0.5) * x * (F(1) + np.tanh(F(0.7978846) * (x + F(0.044715) * x * x * x)))


def adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    """A step of Adam."""
    m = F(0.9) * m + F(0.1) * g
    v = F(0.999) * v + F(0.001) * g * g
    return p - F(1e-3) * m / (np.sqrt(v) + F(1e-8)), m, v


def softmax(x: Any) -> Any:
    """Along the last axis."""
    y = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return y / np.sum(y, axis=-1, keepdims=True)


def newton(x: Any) -> Any:
    """The square root, by a loop of unknown length."""
    return lax.while_loop(lambda y: abs(y * y - x) > 1e-12, lambda y: 0.5 * (y + x / y), x)


FUSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "multiply and add": (lambda x, y, z: x * y + z, (V, V, V)),
    "multiply and add, f64": (lambda x, y, z: x * y + z, (D, D, D)),
    "polynomial": (lambda x: ((x * F(0.3) + F(1)) * x - F(2)) * x + F(0.5), (V,)),
    "exp": (np.exp, (V,)),
    "exp, f64": (np.exp, (D,)),
    "log1p": (np.log1p, (V,)),
    "tanh": (np.tanh, (V,)),
    "tanh, gradient": (lambda x, g: fg.vjp(np.tanh, x)[1](g)[0], (V, V)),
    "gelu": (gelu, (V,)),
    "gelu, gradient": (lambda x, g: fg.vjp(gelu, x)[1](g)[0], (V, V)),
    "sigmoid": (lambda x: F(1) / (F(1) + np.exp(-x)), (V,)),
    "adam": (adam, (V, V, V, V)),
    "where": (lambda x, y: np.where(x > y, np.sqrt(np.abs(x)), y * F(2)), (V, V)),
}
"""Typical fused bodies."""

KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **FUSED,
    "sine": (np.sin, (V,)),
    "power, f64": (np.power, (D, D)),
    "sum of all": (np.sum, (M,)),
    "sum of rows": (lambda x: np.sum(x, axis=1), (M,)),
    "sum of columns": (lambda x: np.sum(x, axis=0), (M,)),
    "largest": (lambda x: np.argmax(x, axis=1), (M,)),
    "softmax": (softmax, (M,)),
    "softmax, gradient": (lambda x, g: fg.vjp(softmax, x)[1](g)[0], (M, M)),
    "transpose": (lambda x: x.T + F(1), (M,)),
    "gather": (lambda x, i: x[i] * F(2), (M, PLACES)),
    "scatter": (lambda x, i: x.at[i].add(F(1)), (fg.numpy.asarray(M), PLACES)),
    "sort": (lambda i: bind1(registry["stable_order"], i), (np.arange(1000) % 7,)),
    "solve": (np.linalg.solve, (SQUARE, SQUARE[:, :3])),
    "running sum": (lambda x: np.cumsum(x, axis=1), (M,)),
    "product": (lambda x, y: x @ y, (SQUARE, SQUARE)),
    "product, f64": (lambda x, y: x @ y, (SQUARE.astype(float), SQUARE.astype(float))),
    "product with a vector": (lambda x, y: x @ y, (M, V[:512])),
    "while": (fg.vmap(newton), (D,)),
}
