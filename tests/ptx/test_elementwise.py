"""Every elementwise op of funcgrad as a kernel: executed from its PTX, against NumPy and the compiled CPU code."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

from funcgrad.core.ir import make_aval
from funcgrad.core.primitive import registry
from funcgrad.ops.op import Op
from tests.lowering.test_native_ops import DTYPES, edges, same_bits
from tests.ptx.codegen import to_ptx
from tests.ptx.device import PtxDevice
from tests.ptx.kernels import elementwise

OPS = [n for n, p in registry.items() if p.traits.kind == "elementwise" and p.emit is not None]
BLOCK = 128


def run(op: Op, args: list[np.ndarray], params: dict[str, Any]) -> np.ndarray:
    """An op, compiled to PTX, of arrays of one length."""
    (aval,) = op.abstract(*[make_aval((), a.dtype) for a in args], **params)
    device, n = PtxDevice(), len(args[0])
    module = device.load(to_ptx(elementwise(op, [a.dtype for a in args], aval.dtype, params)))
    pointers = [device.alloc(a.nbytes, f"x{k}", readonly=True) for k, a in enumerate(args)]
    for p, a in zip(pointers, args, strict=True):
        device.write(p, a)
    out = device.alloc(n * aval.dtype.itemsize, "out")
    device.launch(module, "k", (-(-n // BLOCK),), (BLOCK,), [*pointers, out, np.int32(n)])
    return np.frombuffer(device.read(out, n * aval.dtype.itemsize), aval.dtype)


@pytest.mark.parametrize("name", OPS)
def test_every_op_of_every_dtype(name: str) -> None:
    op = registry[name]
    arity = 1 if name == "convert" else len(inspect.signature(op.function).parameters)
    for d, to in itertools.product(DTYPES, DTYPES if name == "convert" else [None]):
        if np.dtype(d).kind not in op.dtypes:
            continue
        v = edges(d)
        if name == "select":
            args = [np.resize([True, False], len(v)), v, v[::-1].copy()]
        else:
            args = [np.ascontiguousarray(a).ravel() for a in np.meshgrid(*[v] * arity)] if arity > 1 else [v]
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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_remainders_of_any_floats(dtype: str) -> None:
    """LLVM would make a rounded quotient of `frem`: funcgrad divides the mantissas itself."""
    random, word = np.random.default_rng(4), np.dtype(f"u{np.dtype(dtype).itemsize}")
    x, y = (random.integers(0, np.iinfo(word).max, 997, word, endpoint=True).view(dtype) for _ in range(2))
    y[::2] = (y[::2].view(word) & 0x000F_FFFF).view(dtype)  # subnormal, or small
    x[::5] = (x[::5].view(word) & 0x0007_FFFF).view(dtype)
    with np.errstate(all="ignore"):
        assert same_bits(run(registry["fmod"], [x, y], {}), np.fmod(x, y))
