"""Matrix products in registers: every layout, sizes around those of vectors and tiles, and nothing read outside."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import sys
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering import tile
from funcgrad.lowering.emit import emit
from funcgrad.lowering.kernels import Product
from funcgrad.lowering.layout import View, contiguous
from funcgrad.lowering.machine import compile_object, header, load
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import this_target
from funcgrad.lowering.values import Shared, Target

HOST = this_target()
TARGETS = [
    t for t in (Target(16, False, True), Target(32, HOST.fma, True), HOST) if t.vector_bytes <= HOST.vector_bytes
]
SIZES = [
    *itertools.product((1, 2, 3, 9), (1, 3, 8, 21), (1, 2, 5, 8, 19)),
    (8, 16, 16), (17, 4, 24), (5, 7, 50), (1, 70, 77), (77, 33, 1), (1, 300, 3), (1, 1, 1000), (11, 11, 33), (64, 8, 8),
    (1, 1303, 3), (1, 1024, 4),
]  # fmt: skip
LAYOUTS = ("NN", "TN", "NT", "TT")


def make_product(m: int, k: int, n: int, layout: str, dtype: Any, batch: int = 1, gap: int = 0) -> Product:
    """Matrices stored as `layout` says, with rows that lie `gap` elements apart, in the middle of their buffers."""

    def stored(root: str, rows: int, columns: int, turned: bool) -> View:
        lead = columns + gap
        v = View(root, (batch, rows, columns), 3 * bool(gap), (rows * lead, lead if rows > 1 else 0, int(columns > 1)))
        return v.permuted((0, 2, 1)) if turned else v

    x = stored("x", k, m, True) if layout[0] == "T" else stored("x", m, k, False)
    y = stored("y", n, k, True) if layout[1] == "T" else stored("y", k, n, False)
    return Product(np.dtype(dtype), x, y, contiguous("out", (batch, m, n)))


def compiled(products: list[Product], target: Target) -> list[Any]:
    """The kernels as functions of three addresses."""
    shared = Shared()
    texts = [
        tile.tile_text(p, target, shared).replace("internal void @KERNEL", f"void @f{i}")
        for i, p in enumerate(products)
    ]
    text = header() + shared.text() + "\n".join(texts) + "attributes #0 = { noinline nounwind }\n"
    names = [f"f{i}" for i in range(len(products))]
    library = load([compile_object(text, 1)], names)
    functions = [ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(library[name]) for name in names]
    for f in functions:
        f.alive = library
    return functions


def elements(v: View, buffer: Any) -> Any:
    """The array that a view shows."""
    size = buffer.itemsize
    return np.lib.stride_tricks.as_strided(buffer[v.offset :], v.shape, [s * size for s in v.strides])


def reach(v: View) -> int:
    """The elements of a buffer up to the last one that a view shows."""
    return v.offset + sum((n - 1) * s for n, s in zip(v.shape, v.strides, strict=True)) + 1


def halves(x: Any) -> tuple[Any, Any]:
    """Two float64 of half the bits each that add up to x (Veltkamp): their products are exact."""
    x = x.astype(float)
    scaled = x * (2.0**27 + 1)
    high = scaled - (scaled - x)
    return high, x - high


def exact(x: Any, y: Any) -> Any:
    """The product of matrices, rounded once."""
    terms = [a[:, None, :] * b.T[None, :, :] for a in halves(x) for b in halves(y)]
    return np.array([[math.fsum(row) for row in plane] for plane in np.concatenate(terms, -1).tolist()])


def assert_close(found: Any, x: Any, y: Any) -> None:
    """Within the error bound of a sum of k products in any order."""
    bound = x.shape[1] * np.finfo(x.dtype).eps * (abs(x.astype(float)) @ abs(y.astype(float)))
    assert np.all(abs(found.astype(float) - exact(x, y)) <= bound)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: str(t.vector_bytes))
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_are_within_the_error_bound(dtype: str, layout: str, target: Target) -> None:
    rng = np.random.default_rng(0)
    for batch, gap in ((1, 0), (2, 3)):
        sizes = SIZES if batch == 1 and target is HOST else SIZES[::3]
        products = [p for s in sizes if tile.has_form(p := make_product(*s, layout, dtype, batch, gap))]
        assert layout == "TT" or gap or len(products) == len(sizes)
        for p, f in zip(products, compiled(products, target), strict=True):
            x, y = (np.full(reach(v) + 9, np.nan, dtype) for v in (p.x, p.y))
            for v, buffer in ((p.x, x), (p.y, y)):
                elements(v, buffer)[...] = rng.normal(size=v.shape) * 10.0 ** rng.integers(-3, 3, v.shape)
            out = np.full(reach(p.out) + 9, 7.25, dtype)
            f(x.ctypes.data, y.ctypes.data, out.ctypes.data)
            for i in range(batch):
                assert_close(elements(p.out, out)[i], elements(p.x, x)[i], elements(p.y, y)[i])
            assert np.all(out[-9:] == 7.25)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected with mprotect")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_outside_is_touched(layout: str) -> None:
    libc, page, dtype = ctypes.CDLL(None), mmap.PAGESIZE, np.dtype(np.float32)
    kept = []

    def fenced(size: int, at_end: bool) -> Any:
        """An array that begins or ends where the next byte cannot be touched."""
        need = -(-size * dtype.itemsize // page) * page
        pages = mmap.mmap(-1, need + 2 * page)
        kept.append(pages)
        start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        for p in (start, start + page + need):
            assert libc.mprotect(ctypes.c_void_p(p), ctypes.c_size_t(page), 0) == 0
        at = page + (need - size * dtype.itemsize if at_end else 0)
        return np.frombuffer(pages, dtype, size, at)

    for target in TARGETS:
        products = [p for s in SIZES if tile.has_form(p := make_product(*s, layout, dtype))]
        for (p, f), at_end in itertools.product(zip(products, compiled(products, target), strict=True), (False, True)):
            x, y, out = (fenced(reach(v), at_end) for v in (p.x, p.y, p.out))
            x[:], y[:] = 2, 3
            f(x.ctypes.data, y.ctypes.data, out.ctypes.data)
            assert np.all(out == 6 * p.x.shape[2])
            kept.clear()


@pytest.mark.parametrize("k", [3, 8, 11, 16, 37])
def test_beyond_the_finite(k: int) -> None:
    f = fg.jit(lambda a, b: (a @ b.T, a @ b[0], b @ a[0]))
    a, b = np.ones((3, k)), np.ones((4, k))
    a[0, k // 2], a[1, k - 1], b[3, 0] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        expected = (a @ b.T, a @ b[0], b @ a[0])
    for found, wanted in zip(f(a, b), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_which_products_are_tiles() -> None:
    fits = lambda m, k, n, layout="NN": tile.fits(make_product(m, k, n, layout, "float64"))
    assert fits(1, 1, 1) and fits(16, 16, 16) and not fits(16, 16, 17)
    assert fits(1, 569, 30) and fits(569, 30, 1) and not fits(300, 300, 1)
    assert not fits(4, 4, 4, "TT")


@pytest.mark.parametrize("m", [0, 1, 5, 70])
@pytest.mark.parametrize("n", [0, 1, 5, 70])
def test_products_without_terms_are_zero(m: int, n: int) -> None:
    f = fg.jit(lambda x, y: (x @ y, x @ y[:, :1], 2.0 * (x[0:1] @ y)))
    for k in (0, 1):
        x, y = np.full((m, k), 2.0), np.full((k, n), 3.0)
        for found, shape, each in zip(f(x, y), ((m, n), (m, min(n, 1)), (min(m, 1), n)), (6, 6, 12), strict=True):
            assert np.array_equal(found, np.full(shape, each * k))


def test_programs_of_small_products_need_no_blas() -> None:
    def f(w: Any, x: Any) -> Any:
        return np.sum(np.square(x @ w) @ w[0])

    rng = np.random.default_rng(3)
    w, x = rng.normal(size=(5, 4)), rng.normal(size=(7, 5))
    program = simplify(fg.make_program(fg.value_and_grad(f))(w, x))
    assert emit(program, HOST).imports == ()
    value, gradient = fg.jit(fg.value_and_grad(f))(w, x)
    z = x @ w
    np.testing.assert_allclose(value, np.sum(z**2 @ w[0]), rtol=1e-13)
    expected = x.T @ (2 * z * w[0])
    expected[0] += np.sum(z**2, 0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


def test_batches_and_operands_that_are_views() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(6, 8, 10)), rng.normal(size=(6, 10, 7))
    for f in (
        lambda x, y: x @ y,
        lambda x, y: x[:, ::2, 1:7] @ y[:, 2:8, ::-1],
        lambda x, y: x[:, ::-1] @ y[0],
        lambda x, y: x[2] @ y,
        lambda x, y: np.einsum("bij,bjk->kbi", x, y),
        lambda x, y: np.einsum("bij,cjk->bc", x, y),
        lambda x, y: fg.vmap(fg.vmap(np.dot, (0, None)), (0, 0))(x, y[:, :, 0]),
    ):
        found, expected = fg.jit(f)(x, y), np.asarray(f(x, y))
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("left", "right"),
    [((10_000,), (10_000, 4)), ((10_000,), (10_000, 5)), ((4, 10_000), (10_000,)), ((30_000,), (30_000,))],
)
def test_errors_of_long_sums_do_not_pile_up(left: Any, right: Any, dtype: str) -> None:
    for value in (0.1, 0.7, 1 / 3):  # equal terms are rounded to one side, many times in a row
        x, y = np.full(left, value, dtype), np.ones(right, dtype)
        true = float(x.flat[0]) * left[-1]
        error = np.max(np.abs(fg.jit(np.matmul)(x, y).astype(float) - true))
        assert error <= 32 * np.finfo(dtype).eps / 2 * true
