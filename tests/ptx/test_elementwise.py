"""Every elementwise op of funcgrad as a kernel: executed from its PTX, against NumPy and the compiled CPU code."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.ir import make_aval
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.stages import this_target
from funcgrad.ops.op import Op
from tests.lowering.test_native_ops import DTYPES, edges, same_bits
from tests.ptx import ptxas
from tests.ptx.codegen import to_ptx
from tests.ptx.device import PtxDevice
from tests.ptx.kernels import elementwise
from tests.ptx.static import Static

OPS = [n for n, p in registry.items() if p.traits.kind == "elementwise" and p.emit is not None]
BLOCK = 128


def run(op: Op, args: list[np.ndarray], params: dict[str, Any], lanes: int = 1) -> np.ndarray:
    """An op, compiled to PTX, of arrays of one length, `lanes` elements in each thread."""
    (aval,) = op.abstract(*[make_aval((), a.dtype) for a in args], **params)
    device, n = PtxDevice(), len(args[0])
    module = device.load(to_ptx(elementwise(op, [a.dtype for a in args], aval.dtype, params, lanes)))
    pointers = [device.alloc(a.nbytes, f"x{k}", readonly=True) for k, a in enumerate(args)]
    for p, a in zip(pointers, args, strict=True):
        device.write(p, a)
    out = device.alloc(n * aval.dtype.itemsize, "out")
    threads = n // lanes
    device.launch(module, "k", (-(-threads // BLOCK),), (BLOCK,), [*pointers, out, np.int32(threads)])
    return np.frombuffer(device.read(out, n * aval.dtype.itemsize), aval.dtype)


def on_this_processor(op: Op, args: list[np.ndarray], params: dict[str, Any]) -> np.ndarray:
    """The same with the code for this processor."""
    program = fg.make_program(lambda *a: bind1(op, *a, **params))(*args)
    with eagerly():
        found: np.ndarray = Executable(program)(args)[0]
    return found


def values(name: str, d: str) -> list[np.ndarray]:
    """Edge values of a dtype, each with each, as many as fill threads of four elements."""
    arity = 1 if name == "convert" else len(inspect.signature(registry[name].function).parameters)
    v = edges(d)
    if name == "select":
        args = [np.resize([True, False], len(v)), v, v[::-1].copy()]
    else:
        args = [np.ascontiguousarray(a).ravel() for a in np.meshgrid(*[v] * arity)] if arity > 1 else [v]
    return [np.resize(a, -(-len(a) // 4) * 4) for a in args]


@pytest.mark.parametrize("name", OPS)
def test_every_op_of_every_dtype(name: str) -> None:
    op = registry[name]
    for d, to in itertools.product(DTYPES, DTYPES if name == "convert" else [None]):
        if np.dtype(d).kind not in op.dtypes:
            continue
        args = values(name, d)
        params = {"dtype": np.dtype(to), "weak": False} if to else {}
        found = run(op, args, params)
        with np.errstate(all="ignore"):
            expected = op.evaluate(*args, **params)[0]
        if op.traits.exact:
            assert same_bits(found, expected), (d, to)
        else:
            assert found.dtype == expected.dtype
            eps = np.finfo(found.dtype).eps if found.dtype.kind == "f" else 0
            np.testing.assert_allclose(found, expected, 8 * eps, 0, err_msg=d)


@pytest.mark.parametrize("name", [n for n in OPS if n != "convert"])
def test_four_elements_in_a_thread(name: str) -> None:
    op = registry[name]
    for d in ("bool", "int16", "float32"):
        if np.dtype(d).kind in op.dtypes:
            args = values(name, d)
            assert same_bits(run(op, args, {}, lanes=4), run(op, args, {})), d


@pytest.mark.slow
@pytest.mark.skipif(ptxas.FOUND is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
@pytest.mark.parametrize("name", OPS)
def test_the_assembler_takes_every_op(name: str, arch: str) -> None:
    op = registry[name]
    arity = 1 if name == "convert" else len(inspect.signature(op.function).parameters)
    for d, to in itertools.product(DTYPES, DTYPES if name == "convert" else [None]):
        if np.dtype(d).kind not in op.dtypes:
            continue
        dtypes = [np.dtype("bool" if name == "select" and k == 0 else d) for k in range(arity)]
        params = {"dtype": np.dtype(to), "weak": False} if to else {}
        (aval,) = op.abstract(*[make_aval((), t) for t in dtypes], **params)
        report = ptxas.assemble(to_ptx(elementwise(op, dtypes, aval.dtype, params), cpu=arch), arch)["k"]
        assert report.spilled == report.stack == 0 and report.registers <= 64, (d, to)


NOT_EXACT = [n for n in OPS if not registry[n].traits.exact]


@pytest.mark.skipif(not this_target().fma, reason="this processor multiplies and adds with two roundings")
@pytest.mark.parametrize("name", NOT_EXACT)
def test_elementary_functions_have_the_bits_of_the_processor(name: str) -> None:
    op, random = registry[name], np.random.default_rng(5)
    arity = len(inspect.signature(op.function).parameters)
    for d in ("float32", "float64"):
        if np.dtype(d).kind in op.dtypes:
            usual = [random.uniform(*op.domain.interval(i), 600).astype(d) for i in range(arity)]
            wide = [
                (random.choice([-1, 1], 400) * np.exp(random.uniform(-40, 40, 400))).astype(d) for _ in range(arity)
            ]
            args = [np.concatenate([u, w, np.resize(edges(d), 40)]) for u, w in zip(usual, wide, strict=True)]
            args[1:] = [a[::-1].copy() for a in args[1:]]
            assert same_bits(run(op, args, {}), on_this_processor(op, args, {})), d


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_any_floats(dtype: str) -> None:
    """LLVM would make a rounded quotient of `frem`: funcgrad divides the mantissas itself."""
    random, word = np.random.default_rng(4), np.dtype(f"u{np.dtype(dtype).itemsize}")
    x, y = (random.integers(0, np.iinfo(word).max, 997, word, endpoint=True).view(dtype) for _ in range(2))
    y[::2] = (y[::2].view(word) & 0x000F_FFFF).view(dtype)  # subnormal, or small
    x[::5] = (x[::5].view(word) & 0x0007_FFFF).view(dtype)
    with np.errstate(all="ignore"):
        assert same_bits(run(registry["fmod"], [x, y], {}), np.fmod(x, y))
    ptx = to_ptx(elementwise(registry["fmod"], [np.dtype(dtype)] * 2, np.dtype(dtype), {}))
    assert len(Static(ptx).loops) == 1 and not Static(ptx).opcodes("div", "rem", within_loops=True)
