"""The device that executes PTX: its memory, arguments, limits and counts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.device import PtxDevice
from tests.ptx.errors import UnknownPtx
from tests.ptx.kernels import array, at, entry

STORE = at("%out", "i32", "%i", "%p") + "  store i32 %v, ptr addrspace(1) %p\n  ret void"


def test_memory() -> None:
    device = PtxDevice()
    a, b = device.alloc(10, "a"), device.alloc(100, "b")
    assert a % 256 == b % 256 == 0
    device.write(a, b"0123456789")
    device.write(b + 8, np.arange(3, dtype=np.int16))
    device.fill(b, 7, 8)
    assert device.read(a + 2, 3) == b"234" and device.read(b, 14) == bytes([7] * 8 + [0, 0, 1, 0, 2, 0])
    assert device.read(b, 16, initialised=False)[14:] == b"\xa5\xa5"
    device.poison(a, 4)
    assert device.read(a, 10, initialised=False) == b"\xa5" * 4 + b"456789"
    for address, n in ((a + 5, 6), (a - 1, 1), (b, 101), (0, 1)):
        with pytest.raises(ValueError, match="not inside of a buffer"):
            device.read(address, n)
    device.free(a)
    with pytest.raises(ValueError, match="in a, which was freed"):
        device.write(a, b"0")
    with pytest.raises(ValueError, match="no buffer begins"):
        device.free(a)
    assert device.alloc(10) not in (a, b)


def test_arguments() -> None:
    types = {
        "i8": np.int8(-3),
        "i16": np.uint16(65535),
        "i32": -7,
        "i64": 1 << 40,
        "float": 1.5,
        "double": np.float64(2.5),
    }
    body = "".join(
        f"  %c{k} = {'fptosi' if t in ('float', 'double') else 'sext' if t in ('i8', 'i16', 'i32') else 'add'} "
        + (f"{t} %a{k} to i64\n" if t != "i64" else f"i64 %a{k}, 0\n")
        + f"  %p{k} = getelementptr i64, ptr addrspace(1) %out, i64 {k}\n  store i64 %c{k}, ptr addrspace(1) %p{k}\n"
        for k, t in enumerate(types)
    )
    ptx = entry(", ".join([array("out"), *[f"{t} %a{k}" for k, t in enumerate(types)]]), body + "  ret void")
    device = PtxDevice()
    out = device.alloc(48)
    module = device.load(ptx)
    device.launch(module, "k", (1,), (1,), [out, *types.values()])
    assert np.frombuffer(device.read(out, 48), np.int64).tolist() == [-3, -1, -7, 1 << 40, 1, 2]
    with pytest.raises(ValueError, match="takes 7 arguments, not 1"):
        device.launch(module, "k", (1,), (1,), [out])
    with pytest.raises(ValueError, match="has 1 bytes, not 2"):
        device.launch(module, "k", (1,), (1,), [out, np.int16(1), *list(types.values())[1:]])
    with pytest.raises(ValueError, match="no kernel other"):
        device.launch(module, "other", (1,), (1,), [out])


def test_limits() -> None:
    device = PtxDevice()
    module = device.load(entry("", "  ret void"))
    for grid, block in (((1,), (1025,)), ((0,), (1,)), ((1, 70_000), (1,)), ((1,), (32, 0))):
        with pytest.raises(ValueError, match="can run"):
            device.launch(module, "k", grid, block)
    with pytest.raises(ValueError, match="shared memory"):
        device.launch(module, "k", (1,), (1,), dynamic_shared=1 << 18)
    bounded = entry("", "  ret void").replace(")\n{", ")\n.maxntid 64, 1, 1\n{")
    with pytest.raises(ValueError, match="at most"):
        device.launch(device.load(bounded), "k", (1,), (65,))


def test_counts() -> None:
    device = PtxDevice()
    out = device.alloc(4 * 96)
    module = device.load(entry(array("out"), "  %v = mul i32 %t, 3\n" + STORE))
    device.launch(module, "k", (3, 1, 1), (32, 1, 1), [out])
    assert device.stats.threads == 96 and device.stats.opcodes["st.global.b32"] == 96
    assert device.stats.steps == len(module.functions["k"].instructions)


def test_threads_in_three_dimensions() -> None:
    declares = "declare i32 @llvm.nvvm.read.ptx.sreg.tid.z()\ndeclare i32 @llvm.nvvm.read.ptx.sreg.ctaid.z()\n"
    body = "  %s0 = add i32 0, 0\n  %n0 = add i32 0, 0\n"
    digits = ("tid.x", "tid.y", "tid.z", "ctaid.x", "ctaid.y", "ctaid.z")
    for k, name in enumerate(digits):  # their values as the digits of a number
        body += f"  %r{k} = call i32 @llvm.nvvm.read.ptx.sreg.{name}()\n  %m{k} = mul i32 %s{k}, 10\n"
        body += f"  %s{k + 1} = add i32 %m{k}, %r{k}\n"
    for k, (number, size) in enumerate(((5, 1), (4, 2), (3, 2), (2, 4), (1, 3), (0, 2))):  # the number of the thread
        body += f"  %l{k} = mul i32 %n{k}, {size}\n  %n{k + 1} = add i32 %l{k}, %r{number}\n"
    body += at("%out", "i32", "%n6", "%p") + "  store i32 %s6, ptr addrspace(1) %p\n  ret void"
    device = PtxDevice()
    out = device.alloc(4 * 24 * 12)
    device.launch(device.load(entry(array("out"), body, declares)), "k", (2, 2, 3), (2, 3, 4), [out])
    found = np.frombuffer(device.read(out, 4 * 24 * 12), np.int32).tolist()
    digit = lambda *d: int("".join(map(str, d)))
    blocks = [(x, y, z) for z in range(3) for y in range(2) for x in range(2)]
    threads = [(x, y, z) for z in range(4) for y in range(3) for x in range(2)]
    assert found == [digit(*t, *b) for b in blocks for t in threads]


def test_a_function_that_calls_itself_is_refused() -> None:
    text = entry("", "  ret void")
    recursive = ".func f()\n{\n call.uni f;\n ret;\n}\n"
    with pytest.raises(UnknownPtx, match="calls itself"):
        PtxDevice().load(text.replace(".visible", recursive + ".visible"))
