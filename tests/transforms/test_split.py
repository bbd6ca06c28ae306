"""Partial evaluation: what is kept for the linear part, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.core.evaluate import run
from funcgrad.core.ir import Program
from funcgrad.transforms.jvp import jvp
from funcgrad.transforms.prune import prune
from funcgrad.transforms.split import Split, split


def linearized(f: Any, *args: Any) -> tuple[Program, Split]:
    program = fg.make_program(f)(*args)
    derived, _ = jvp(program, (True,) * len(program.inputs))
    n = len(program.inputs)
    return program, split(derived, (False,) * n + (True,) * (len(derived.inputs) - n))


def names(program: Program) -> list[str]:
    return [e.primitive.name for e in program.equations]


def test_the_known_half_has_no_tangents_and_the_unknown_half_is_linear() -> None:
    x = np.linspace(0.1, 1, 4)
    _, halves = linearized(lambda x: np.sin(x) * np.exp(x), x)
    assert names(halves.known) == ["sin", "cos", "exp", "mul"]
    assert set(names(halves.unknown)) <= {"mul", "add"}
    value, *residuals = run(halves.known, [x])
    residuals = [x for _ in halves.forwarded] + residuals
    for scale in (1.0, -3.0):
        (dot,) = run(halves.unknown, [*residuals, np.full(4, scale)])
        np.testing.assert_allclose(dot, scale * np.exp(x) * (np.sin(x) + np.cos(x)))
    np.testing.assert_allclose(value, np.sin(x) * np.exp(x))


def test_an_input_is_handed_on_and_not_copied() -> None:
    _, halves = linearized(lambda x: x * x, np.ones(3))
    assert halves.forwarded == (0,) and halves.computed == 0


def test_a_residual_is_kept_once() -> None:
    _, halves = linearized(lambda x: np.tanh(x) * np.tanh(x).sum() * x + x * 3, np.ones(3))
    assert len(set(halves.known.outputs)) == len(halves.known.outputs)
    assert len(set(halves.unknown.inputs)) == len(halves.unknown.inputs)


def test_nothing_is_kept_for_results_that_do_not_move() -> None:
    _, halves = linearized(lambda x: (x + 1, np.floor(np.sin(x))), np.ones(3))
    assert halves.computed == 0 and halves.out_unknown == (False, False, True)


def test_a_call_splits_into_two_calls_without_waste() -> None:
    inner = fg.jit(lambda x, y: (np.sin(x) * y, np.cos(y)))
    program, halves = linearized(lambda x, y: inner(x, y)[0] * 2, np.ones(3), np.ones(3))
    assert names(program) == ["call", "mul"]
    assert names(halves.known) == ["call", "mul"] and "call" in names(halves.unknown)
    body = halves.known.equations[0].params["program"]
    assert names(body).count("sin") == 1 and names(body).count("cos") == 1  # cos(y) itself is not computed


def test_prune_drops_results_and_operands_of_a_call() -> None:
    inner = fg.jit(lambda x, y: (np.sin(x), np.cos(y)))
    program = prune(fg.make_program(lambda x, y: inner(x, y)[0])(1.0, 2.0))
    (call,) = [e for e in program.equations if e.primitive.name == "call"]
    assert len(call.inputs) == 1 and len(call.outputs) == 1
    assert names(call.params["program"]) == ["sin"] or "cos" not in names(call.params["program"])


def test_derived_programs_are_remembered() -> None:
    program = fg.make_program(lambda x: np.sin(x))(1.0)
    assert jvp(program, (True,)) is jvp(program, (True,))
