"""Values that are not there: the error is ours, at the user's line, whatever C code makes of it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors, lax


def refusal(call: Callable[[], Any], kind: type[errors.FuncgradError], line: str) -> str:
    """The text of the error that `call` raises, at a line with `line` in it."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__
    assert line in caught.value.source.text
    return str(caught.value)


def filled(x: Any) -> Any:
    buffer = np.zeros(3)
    for i in range(3):
        buffer[i] = x * i
    return buffer.sum()


@pytest.mark.parametrize("transform", [fg.grad, fg.jit, lambda f: fg.jit(fg.grad(f)), lambda f: fg.grad(fg.jit(f))])
def test_an_assignment_to_an_element_of_a_plain_array(transform: Any) -> None:
    text = refusal(lambda: transform(filled)(1.0), errors.TracerArrayConversionError, "buffer[i] = x * i")
    assert ".at[i].set(x)" in text


def test_an_assignment_in_the_body_of_a_loop() -> None:
    def body(i: Any, x: Any) -> Any:
        buffer = np.zeros(3)
        buffer[0] = x
        return buffer.sum()

    f = fg.jit(lambda x: lax.fori_loop(0, 3, body, x))
    refusal(lambda: f(1.0), errors.TracerArrayConversionError, "buffer[0] = x")


def test_a_traced_shape() -> None:
    ones = fg.jit(lambda n: np.ones(n))
    text = refusal(lambda: ones(3), errors.TracerIntegerConversionError, "np.ones(n)")
    assert "static_argnums" in text
    flat = fg.jit(lambda n: np.zeros(3).reshape(n))
    refusal(lambda: flat(3), errors.TracerIntegerConversionError, "reshape(n)")


def test_other_errors_stay_what_they_are() -> None:
    def caught(x: Any) -> Any:
        with contextlib.suppress(ValueError):
            filled(x)
        raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        fg.jit(caught)(1.0)

    def wrapped(x: Any) -> Any:
        try:
            return filled(x)
        except ValueError as error:
            raise KeyError("mine") from error

    with pytest.raises(KeyError, match="mine"):
        fg.grad(wrapped)(1.0)


@pytest.mark.parametrize(
    "read",
    [float, int, complex, bool, np.array, np.mean, lambda x: x.item(), lambda x: x.tolist(), lambda x: np.array([x])],
)
@pytest.mark.parametrize("transform", [fg.grad, fg.jit])
def test_a_tracer_whose_trace_has_ended(read: Any, transform: Any) -> None:
    kept: list[Any] = []

    def keep(x: Any) -> Any:
        kept.append(x * 2)
        return x

    transform(keep)(1.0)
    with pytest.raises(errors.UnexpectedTracerError, match="after the trace of keep has ended") as caught:
        read(kept[0])
    assert caught.value.source is not None
    assert caught.value.source.filename == __file__


def test_hints_in_bodies_do_not_speak_of_static_arguments() -> None:
    branch = lambda i, c: c + 1 if i == 1 else c
    loop = lambda body: lambda: fg.jit(lambda x: lax.fori_loop(0, 3, body, x))(1.0)
    text = refusal(loop(branch), errors.TracerBoolConversionError, "if i == 1")
    assert "hint: use where(condition, a, b), or lax.cond" in text
    table = lambda i, c: c + [1.0, 2.0, 3.0][i]
    text = refusal(loop(table), errors.TracerIntegerConversionError, "[1.0, 2.0, 3.0][i]")
    assert "fnp.asarray(table)[i]" in text
    assert "static" not in text
    part = lambda i, c: c + np.ones(5)[:i].sum()
    text = refusal(loop(part), errors.TracerIntegerConversionError, "np.ones(5)[:i]")
    assert "np.where(np.arange(len(x)) < i, x, 0)" in text
    assert "static" not in text
    text = refusal(lambda: fg.jit(lambda x: x if x > 1 else -x)(1.0), errors.TracerBoolConversionError, "if x > 1")
    assert "static" in text


def test_solvers_of_scipy_name_the_line_and_the_remedy() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    system = lambda x, a: np.stack([x[0] ** 3 + x[1] - a[0], x[1] ** 3 - x[0] + a[1]])
    root = fg.implicit.root(system, lambda a: optimize.fsolve(system, np.ones(2), args=(a,)))
    start = np.array([1.0, 0.3])
    for call in (lambda: fg.jit(root)(start), lambda: fg.vmap(root)(start[None])):
        text = refusal(call, errors.TracerArrayConversionError, "optimize.fsolve(system")
        assert "pure_callback(solver" in text

    def capturing(a: Any) -> Any:
        return fg.implicit.root(lambda x: x**3 - a, lambda: optimize.brentq(lambda x: x**3 - a, 0.0, 10.0))()

    for transform in (fg.grad, fg.jit):
        with pytest.raises(errors.TracerValueError) as caught:
            transform(capturing)(8.0)
        assert "make it an argument of the function that root returns" in str(caught.value)
        assert caught.value.source is not None
        assert caught.value.source.filename == __file__


@pytest.mark.parametrize("way", ["{0}", "{0}/.", "{0}/tests/..", "{1}/link", "../{2}/."])
def test_the_line_is_the_users_however_the_package_is_found(way: str, tmp_path: Path) -> None:
    """By a relative path, over a link, with dots in it."""
    here = Path(fg.__file__).parents[1]
    (tmp_path / "link").symlink_to(here)
    script = tmp_path / "users.py"
    script.write_text(
        f"import sys\nsys.path.insert(0, {way.format(here, tmp_path, here.name)!r})\n"
        "import numpy as np, funcgrad as fg\n"
        "try:\n    fg.grad(lambda x: np.sum(x[:3] + x))(np.ones(5))\n"
        "except fg.errors.ShapeError as error:\n    print(error.source)\n"
    )
    ran = subprocess.run([sys.executable, "-I", str(script)], cwd=here, capture_output=True, text=True)
    assert "users.py:5" in ran.stdout, ran.stdout + ran.stderr
