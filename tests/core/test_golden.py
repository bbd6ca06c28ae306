"""How Programs look, and what the transforms make of functions: printed Programs against the files in tests/golden.

A difference is either a fault or an improvement; after reading it, ``FUNCGRAD_UPDATE_GOLDEN=1 pytest
tests/core/test_golden.py`` writes the files anew. Line numbers are replaced by the text of the line.
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
import funcgrad.numpy as fnp

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
UPDATE = os.environ.get("FUNCGRAD_UPDATE_GOLDEN", "0") not in ("", "0")

PARAMS = {"b": np.zeros(3), "w": np.ones((4, 3))}
X, Y = np.ones((8, 4)), np.ones((8, 3))
WEIGHTS = np.array([0.5, 2.0, 0.25])


def mlp_loss(params: Any, x: Any, y: Any) -> Any:
    h = np.tanh(x @ params["w"] + params["b"])
    return np.mean((h - y) ** 2)


def mlp_loss_of_row(params: Any, x: Any, y: Any) -> Any:
    h = np.tanh(x @ params["w"] + params["b"])
    return np.sum((h - y) ** 2)


def mlp_tangent(params: Any, x: Any, y: Any, params_dot: Any) -> Any:
    return fg.jvp(lambda p: mlp_loss(p, x, y), (params,), (params_dot,))


def rosenbrock(x: Any) -> Any:
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


def guarded(x: Any) -> Any:
    root = np.where(x > 0, np.sqrt(x) * x, 0.0)
    return np.sum(root)


@fg.jit
def damped(t: Any, rate: Any) -> Any:
    return np.exp(-rate * t) * np.cos(t)


def nested(t: Any) -> Any:
    first = damped(t, 0.5)
    second = damped(t * 2, 0.25)
    return np.sum(first * second)


def lookup(table: Any, i: Any) -> Any:
    rows = table[i]
    return np.sum(rows**2)


def updated(x: Any, i: Any) -> Any:
    y = fnp.asarray(x).at[i].add(x[0])
    return np.sum(y * y)


def reductions(x: Any) -> Any:
    a = np.max(x, axis=0)
    b = np.prod(x, axis=1)
    return np.sum(np.var(x, axis=0)) + np.sum(a) * np.mean(b)


def polynomial(x: Any, order: int) -> Any:
    y = x
    for _ in range(order - 1):
        y = y * x + 1
    return y


def static_order(x: Any) -> Any:
    return fg.jit(polynomial, static_argnums=1)(x, 3)


def mixed_types(x: Any, n: Any, flag: Any) -> Any:
    y = x * 2 + n
    return np.where(flag, y, 1), np.floor(x).astype(int), n // 2


def captured(x: Any) -> Any:
    return np.dot(WEIGHTS, np.log1p(x * x))


def oscillator(x: Any) -> Any:
    return x * np.sin(x)


def cumulative(x: Any) -> Any:
    return np.sum(np.cumsum(x) * np.cumprod(x))


V, M, I = np.ones(3), np.ones((2, 3)), np.array([0, 2, 0])

CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mlp": (mlp_loss, (PARAMS, X, Y)),
    "mlp_grad": (fg.grad(mlp_loss), (PARAMS, X, Y)),
    "mlp_jvp": (mlp_tangent, (PARAMS, X, Y, PARAMS)),
    "mlp_grad_of_rows": (fg.vmap(fg.grad(mlp_loss_of_row), in_axes=(None, 0, 0)), (PARAMS, X, Y)),
    "rosenbrock_hessian": (fg.hessian(rosenbrock), (V,)),
    "guarded": (guarded, (V,)),
    "guarded_grad": (fg.grad(guarded), (V,)),
    "nested": (nested, (V,)),
    "nested_grad": (fg.grad(nested), (V,)),
    "nested_grad_of_rows": (fg.vmap(fg.grad(nested)), (M,)),
    "gather_grad": (fg.grad(lookup), (np.ones((4, 2)), I)),
    "scatter_grad": (fg.grad(updated), (V, I)),
    "reductions": (reductions, (M,)),
    "reductions_grad": (fg.grad(reductions), (M,)),
    "static_arguments": (static_order, (V,)),
    "static_arguments_grad": (fg.grad(static_order), (2.0,)),
    "mixed_types": (mixed_types, (np.float32(1.5), 3, np.array(True))),
    "captured_grad": (fg.grad(captured), (V,)),
    "third_order": (fg.grad(fg.grad(fg.grad(oscillator))), (2.0,)),
    "cumulative_grad": (fg.grad(cumulative), (V,)),
}


def text_of(f: Any, args: tuple[Any, ...]) -> str:
    """The printed Program, with the user's line in place of its number."""
    text = str(fg.make_program(f)(*args))

    def line(match: re.Match[str]) -> str:
        return "# " + linecache.getline(__file__, int(match[1])).strip()

    return re.sub(r"# test_golden\.py:(\d+)", line, text) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_program(name: str) -> None:
    found = text_of(*CASES[name])
    assert found.isascii()
    path = GOLDEN / f"{name}.txt"
    if UPDATE:
        path.write_text(found, "utf-8")
    expected = path.read_text("utf-8")
    difference = difflib.unified_diff(expected.splitlines(), found.splitlines(), "golden", "found", lineterm="")
    assert found == expected, "\n".join(difference)


def test_no_file_is_left_over() -> None:
    assert {p.stem for p in GOLDEN.glob("*.txt")} == set(CASES)


@pytest.mark.parametrize("name", ["mlp_grad", "nested_grad", "rosenbrock_hessian"])
def test_a_program_prints_the_same_every_time(name: str) -> None:
    f, args = CASES[name]
    assert text_of(f, args) == text_of(f, args)


def test_show_prints_what_it_returns(capsys: pytest.CaptureFixture[str]) -> None:
    text = fg.show(nested, V)
    assert capsys.readouterr().out == text + "\n"
    assert text == str(fg.make_program(nested)(V))


def test_every_line_of_a_comment_is_in_this_file() -> None:
    text = str(fg.make_program(fg.grad(mlp_loss))(PARAMS, X, Y))
    assert re.findall(r"# (.*):\d+$", text, re.MULTILINE)
    assert set(re.findall(r"# (.*):\d+$", text, re.MULTILINE)) == {"test_golden.py"}


def test_a_program_held_twice_is_printed_once() -> None:
    text = str(fg.make_program(nested)(V))
    assert text.count("program damped(") == 1 and text.count("call[program=damped]") == 2
    backward = str(fg.make_program(fg.grad(nested))(V))
    heads = re.findall(r"^program (\w+)\(", backward, re.MULTILINE)
    assert len(heads) == len(set(heads))
    assert set(re.findall(r"program=(\w+)", backward)) == set(heads[1:])
