"""The type checker finds every way in which a Program can be malformed, and `fixpoint` ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors
from funcgrad.core.check import check
from funcgrad.core.ir import Equation, Literal, Program, Var, make_aval
from funcgrad.core.links import fixpoint
from funcgrad.core.primitive import Links, registry

F = make_aval((3,), np.dtype(float))
S = make_aval((), np.dtype(float))
sin, add = registry["sin"], registry["add"]


def broken() -> dict[str, tuple[Program, str]]:
    x, y, z = Var(F), Var(F), Var(F)
    wrong = Var(S)
    one = Literal(np.float32(1), F)
    return {
        "use before definition": (Program((x,), (Equation(sin, (y,), {}, (z,), None),), (z,)), "before it is defined"),
        "unknown output": (Program((x,), (), (y,)), "before it is defined"),
        "defined twice": (
            Program((x,), (Equation(sin, (x,), {}, (y,), None), Equation(sin, (x,), {}, (y,), None)), (y,)),
            "defined twice",
        ),
        "input twice": (Program((x, x), (), (x,)), "defined twice"),
        "wrong type": (
            Program((x,), (Equation(sin, (x,), {}, (wrong,), None),), (wrong,)),
            r"results are f64\[\], but",
        ),
        "wrong number of results": (Program((x,), (Equation(sin, (x,), {}, (y, z), None),), (y,)), "results are"),
        "literal of another dtype": (Program((x,), (Equation(add, (x, one), {}, (y,), None),), (y,)), "literal"),
        "unhashable parameter": (Program((x,), (Equation(sin, (x,), {"p": []}, (y,), None),), (y,)), "not hashable"),
    }


@pytest.mark.parametrize("name", broken())
def test_a_broken_program_is_refused(name: str) -> None:
    program, text = broken()[name]
    with pytest.raises(errors.ProgramError, match=text):
        check(program)


def test_a_broken_body_is_refused() -> None:
    body = broken()["wrong type"][0]
    y = Var(S)
    program = Program(body.inputs, (Equation(registry["call"], body.inputs, {"program": body}, (y,), None),), (y,))
    with pytest.raises(errors.ProgramError, match="results are"):
        check(program)


def test_the_message_names_the_equation_and_the_line() -> None:
    program = fg.make_program(lambda x: np.sin(x) * 2)(np.ones(3))
    e = program.equations[1]
    bad = Program(program.inputs, (program.equations[0], e.replace(outputs=(Var(S),))), program.outputs)
    with pytest.raises(errors.ProgramError, match=r"in equation mul \(line test_check.py:\d+\)"):
        check(bad)


def test_a_wrong_rule_is_found_after_the_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(primal: Any, primals: Any, tangents: Any) -> Any:
        outs = primal()
        return outs, (fg.numpy.sum(tangents[0]),)  # a tangent of another shape

    monkeypatch.setattr(sin, "jvp", wrong)
    with pytest.raises((errors.ProgramError, errors.ShapeError)):
        fg.jvp(lambda x: np.cos(np.sin(x)) * 2.5, (np.ones(3),), (np.ones(3),))


def test_fingerprints() -> None:
    def make(c: Any) -> Any:
        return fg.make_program(lambda x: np.sin(x) * c + x.sum())(np.ones(3)).fingerprint

    assert make(2.0) == make(2.0)
    assert make(2.0) != make(3.0)
    assert make(0.0) != make(-0.0)
    assert make(np.nan) == make(np.nan)
    other = fg.make_program(lambda y: np.sin(y) * 2.0 + y.sum())
    assert other(np.ones(3)).fingerprint == make(2.0)
    assert other(np.ones(4)).fingerprint != make(2.0)
    assert other(np.ones(3, "f4")).fingerprint != make(2.0)
    tags = [
        fg.make_program(lambda x, m=m: fg.numpy.take(x, np.array([0]), mode=m))(np.ones(3)) for m in ("clip", "wrap")
    ]
    assert tags[0].fingerprint != tags[1].fingerprint


def test_fixpoint_grows_along_the_carries() -> None:
    body = fg.make_program(lambda a, b, c: (a, b, c))(1.0, 1.0, 1.0)
    # output i comes back as input i + 1
    links = Links((body,), lambda bodies, inputs, results: {}, ((0, 1), (1, 2)))
    rounds = []

    def step(program: fg.Program, flags: tuple[bool, ...]) -> tuple[str, tuple[bool, ...]]:
        assert program is body
        rounds.append(flags)
        return "result", flags

    result, flags, out = fixpoint(links, (True, False, False), step)
    assert result == ("result",) and flags == out == (True, True, True) and len(rounds) == 3
    assert fixpoint(links, (False, False, True), step)[1] == (False, False, True)
