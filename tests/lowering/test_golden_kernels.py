"""Which operations share a kernel: printed kernels of functions and gradients against the files in golden.

A difference is either a fault or an improvement; after reading it, ``FUNCGRAD_UPDATE_GOLDEN=1 pytest
tests/lowering/test_golden_kernels.py`` writes the files anew. Line numbers are replaced by the text of the line.
"""

from __future__ import annotations

import difflib
import linecache
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering.readable import format_kernels

GOLDEN = Path(__file__).resolve().parent / "golden"
UPDATE = os.environ.get("FUNCGRAD_UPDATE_GOLDEN", "0") not in ("", "0")


def chain(x: Any, w: Any, b: Any) -> Any:
    gate = np.tanh(x * w + b)
    return np.sum(gate * np.exp(-x * x) + np.log1p(x * x))


def logistic(w: Any, bias: Any, features: Any, labels: Any) -> Any:
    score = features @ w + bias
    return np.mean(np.logaddexp(0.0, score) - labels * score)


def mlp(params: Any, x: Any, y: Any) -> Any:
    (a, p), (b, q) = params
    h = np.tanh(x @ a + p)
    return np.mean((h @ b + q - y) ** 2)


def momentum_step(params: Any, velocity: Any, x: Any, y: Any) -> Any:
    slopes = fg.grad(mlp)(params, x, y)
    velocity = fg.tree.map(lambda v, g: 0.9 * v + g, velocity, slopes)
    return fg.tree.map(lambda p, v: p - 0.01 * v, params, velocity), velocity


def softmax(x: Any) -> Any:
    e = np.exp(x - np.max(x, axis=1, keepdims=True))
    return e / np.sum(e, axis=1, keepdims=True)


def cross_entropy(x: Any, target: Any) -> Any:
    return -np.sum(target * np.log(softmax(x)))


def standardized(x: Any) -> Any:
    return (x - np.mean(x, axis=0)) / np.std(x, axis=0)


def energy(x: Any) -> Any:
    return np.sum((x * x - 1.0) ** 2 + np.cos(x))


def guarded(x: Any) -> Any:
    return np.sum(np.where(x > 0, np.sqrt(x) * x, 0.0))


def moved(x: Any) -> Any:
    return x.T[::-1, ::2] * 2.0 + x.reshape(3, 4)[:, ::2]


def pendulum(state: Any, length: Any) -> Any:
    angle, speed = state
    for _ in range(2):
        speed = speed - 0.01 / length * np.sin(angle)
        angle = angle + 0.01 * speed
    return angle


def distances(points: Any) -> Any:
    steps = points[:, None, :] - points[None, :, :]
    return np.sqrt(np.sum(steps * steps, axis=-1))


def statistics(x: Any) -> Any:
    return np.min(x), np.max(x), np.mean(x), np.any(np.isnan(x)), np.sum(x, axis=0)


V, M, B = np.ones(5), np.ones((8, 3)), np.ones((4, 3))
NET = [(np.ones((3, 6)), np.ones(6)), (np.ones((6, 2)), np.ones(2))]

CASES: dict[str, tuple[Any, tuple[Any, ...], int]] = {  # with the number of kernels
    "chain_grad": (fg.value_and_grad(chain, argnums=(0, 1, 2)), (V, np.float64(1), np.float64(1)), 1),
    "logistic_grad": (fg.value_and_grad(logistic, argnums=(0, 1)), (V[:3], np.float64(1), M, np.ones(8)), 4),
    "mlp_grad": (fg.grad(mlp), (NET, M, np.ones((8, 2))), 8),
    "momentum_step": (momentum_step, (NET, NET, M, np.ones((8, 2))), 12),
    "softmax": (softmax, (M,), 3),
    "cross_entropy_grad": (fg.grad(cross_entropy), (M, M), 6),
    "standardized": (standardized, (M,), 5),
    "energy_hvp": (lambda x, v: fg.hvp(energy, (x,), (v,)), (V, V), 1),
    "guarded_grad": (fg.grad(guarded), (V,), 1),
    "moved": (moved, (B,), 1),
    "pendulum_grad": (fg.grad(pendulum, argnums=1), ((0.5, 0.0), np.float64(1)), 1),
    "pendulum_rows": (fg.vmap(fg.grad(pendulum, argnums=1), in_axes=((0, 0), None)), ((V, V), np.float64(1)), 2),
    "distances": (distances, (M,), 2),
    "statistics": (statistics, (M,), 3),
}


def text_of(f: Any, args: tuple[Any, ...]) -> str:
    """The printed kernels, with the user's line in place of its number."""
    text = format_kernels(fg.make_program(f)(*args))

    def line(match: re.Match[str]) -> str:
        return "# " + linecache.getline(__file__, int(match[1])).strip()

    return re.sub(r"# test_golden_kernels\.py:(\d+)", line, text) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    f, args, _ = CASES[name]
    found = text_of(f, args)
    assert found.isascii()
    path = GOLDEN / f"{name}.txt"
    if UPDATE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, "utf-8")
    expected = path.read_text("utf-8")
    difference = difflib.unified_diff(expected.splitlines(), found.splitlines(), "golden", "found", lineterm="")
    assert found == expected, "\n".join(difference)


@pytest.mark.parametrize("name", CASES)
def test_the_number_of_kernels_does_not_rise(name: str) -> None:
    f, args, most = CASES[name]
    count = text_of(f, args).count("kernel ")
    assert count <= most, f"{name} takes {count} kernels now, it took {most}: what used to share a pass no longer does"
    assert count == most, f"{name} takes {count} kernels now, it took {most}: write down the smaller number"


def test_no_file_is_left_over() -> None:
    assert {p.stem for p in GOLDEN.glob("*.txt")} == set(CASES)
