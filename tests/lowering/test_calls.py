"""Calls of compiled functions: arguments of every kind, many threads at once; inputs stay as they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering import executable
from funcgrad.lowering.emit import emit
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import this_target

# -- arguments


def arguments() -> dict[str, tuple[Any, Any, list[np.ndarray]]]:
    """Two float64 arguments of shape (4, 6), and all memory that they lie in."""
    rng = np.random.default_rng(0)
    memory = rng.normal(size=200)
    raw = np.zeros(8 * 24 + 1, np.uint8)
    misaligned = raw[1:].view(np.float64).reshape(4, 6)
    misaligned[...] = rng.normal(size=(4, 6))
    frozen = rng.normal(size=(4, 6))
    frozen.flags.writeable = False
    swapped = rng.normal(size=(4, 6)).astype(">f8")
    plain = rng.normal(size=(4, 6))
    window = np.lib.stride_tricks.sliding_window_view(memory[:9], 6)
    grid = memory[:100].reshape(10, 10)
    return {
        "plain": (plain, plain + 1, [plain]),
        "the same twice": (plain, plain, [plain]),
        "overlapping": (memory[:24].reshape(4, 6), memory[5:29].reshape(4, 6), [memory]),
        "overlapping backwards": (memory[5:29].reshape(4, 6), memory[28:4:-1].reshape(4, 6), [memory]),
        "windows": (window, window[::-1], [memory]),
        "strided": (grid[1:9:2, 2:8], grid[::-1, ::-1][:4, :6], [memory]),
        "transposed": (grid[:6, :4].T, grid[3:9, 5:9].T, [memory]),
        "column order": (np.asfortranarray(plain), plain, [plain]),
        "repeated": (np.broadcast_to(memory[:6], (4, 6)), np.broadcast_to(memory[0], (4, 6)), [memory]),
        "read-only": (frozen, plain, [frozen, plain]),
        "byte-swapped": (swapped, plain, [swapped, plain]),
        "misaligned": (misaligned, plain, [raw, plain]),
        "misaligned and swapped": (misaligned, swapped, [raw, swapped]),
        "lists": (plain.tolist(), plain, [plain]),
        "Array": (fg.numpy.array(plain), fg.numpy.array(plain)[::1], [plain]),
    }


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "elementwise": lambda a, b: (np.sqrt(abs(a)) - b, a < b),
    "sums": lambda a, b: (np.sum(a * b, axis=0), np.max(a, axis=1), np.sum(b)),
    "products": lambda a, b: (a @ b.T, a.T @ b),
    "moved": lambda a, b: (np.concatenate([a[::-1], b.T.reshape(4, 6)]), np.pad(a, 1)),
    "back": lambda a, b: (a, b, a.T),
}


@pytest.mark.parametrize("name", arguments())
@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_of_every_kind(function: str, name: str) -> None:
    f = FUNCTIONS[function]
    a, b, memory = arguments()[name]
    before = [m.tobytes() for m in memory]
    expected = f(np.array(a, np.float64), np.array(b, np.float64))
    jitted = fg.jit(f)
    if isinstance(a, list):
        jitted = fg.jit(lambda a, b: f(np.stack([np.stack(row) for row in a]), b))
    results = [jitted(a, b) for _ in range(3)]
    for result in results:
        for y, e in zip(result, expected, strict=True):
            assert type(y) is fg.Array and y.dtype == e.dtype and y.shape == e.shape
            assert y.flags.c_contiguous and y.flags.writeable
            np.testing.assert_allclose(y, e, rtol=1e-12, atol=1e-13)
    every = [y for result in results for y in result]
    assert not any(np.may_share_memory(y, m) for y in every for m in memory)
    assert not any(np.may_share_memory(y, z) for i, y in enumerate(every) for z in every[:i])
    for y in every:
        y[...] = 0
    assert [m.tobytes() for m in memory] == before


# -- threads


@pytest.mark.parametrize("n", [40, 4000])  # below and above the length from which on the GIL is released
@pytest.mark.parametrize("donate", [False, True])
def test_sixteen_threads_on_one_function(n: int, donate: bool) -> None:
    def f(p: Any, x: Any) -> Any:
        h = np.tanh(p["w"] * x) + np.flip(x) * np.sum(x * p["w"])
        return {"w": p["w"] - 0.1 * h, "s": np.sum(h / (1.0 + np.max(abs(h))))}

    jitted = fg.jit(f, donate_argnums=0 if donate else ())
    run = executable(jitted.trace({"w": np.ones(n)}, np.ones(n)))
    values = [np.random.default_rng(i).normal(size=n) for i in range(16)]
    start = np.linspace(0.5, 1.5, n)
    serial = [jitted({"w": start.copy()}, x) for x in values]
    wrong: list[int] = []
    barrier = threading.Barrier(16)

    def work(i: int) -> None:
        barrier.wait()
        for k in range(60):
            j = (i + k) % 16
            w = start.copy()
            result = jitted({"w": w}, values[j])
            s, w2 = run([start, values[j]])  # outputs in the order of the keys
            good = np.array_equal(result["w"], serial[j]["w"]) and result["s"] == serial[j]["s"]
            if not (
                good and np.array_equal(w2, serial[j]["w"]) and s == serial[j]["s"] and (result["w"] is w) == donate
            ):
                wrong.append(j)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and jitted.cache_info().hits >= 16 * 60
    for x, i in zip(values, range(16), strict=True):
        assert np.array_equal(x, np.random.default_rng(i).normal(size=n))


# -- size of the code


def test_the_code_grows_with_the_number_of_kernels() -> None:
    """No part of the driver is long, and there is one function per kernel."""

    def chain(x: Any, parts: Any) -> Any:
        total = np.sum(x)
        for part in parts:
            total = np.sum(part * total)
        return total

    for kernels in (100, 1000):
        program = simplify(fg.make_program(chain)(np.ones(2), [np.ones(n + 3) for n in range(kernels - 1)]))
        assert len(schedule(program).kernels) == kernels
        functions = emit(program, this_target()).text.split("\ndefine ")[1:]
        parts = [t for t in functions if t.startswith("internal i64 @part")]
        assert len([t for t in functions if "@k" in t.partition("(")[0]]) == kernels
        assert len(functions) <= kernels + len(parts) + 1 and len(parts) == -(-kernels // 64)
        assert max(t.count("\n") for t in functions) < 400


@pytest.mark.usefixtures("unrolled")
def test_equal_kernels_are_one_function() -> None:
    def steps(x: Any, count: int) -> Any:
        for _ in range(count):
            x = np.sum(x) * np.flip(x)
        return x

    sizes = []
    for count in (100, 1000):
        program = simplify(fg.make_program(lambda x, count=count: steps(x, count))(np.ones(5)))
        sizes.append(emit(program, this_target()).text.count("\ndefine internal void @k"))
    assert sizes[0] == sizes[1] <= 4
