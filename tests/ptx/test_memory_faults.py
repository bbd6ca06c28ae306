"""Each fault of memory and each race that the interpreter detects, planted in a kernel, beside the same without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import errors
from tests.ptx.device import PtxDevice
from tests.ptx.kernels import array, at, entry

BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n"
WARP_BARRIER = "  call void @llvm.nvvm.bar.warp.sync(i32 -1)\n"
TILE = "@tile = internal addrspace(3) global [{} x i32] poison, align 16\n"
INT = np.int32


def launch(ptx: str, args: list[Any], grid: int = 1, block: int = 64, **settings: Any) -> list[np.ndarray]:
    """Run `k` on arrays of int32 (None: an array of grid · block that is not initialised); the arrays after it."""
    dynamic = settings.pop("dynamic_shared", 0)
    device = PtxDevice(**settings)
    places, values = [], []
    for k, a in enumerate(args):
        if a is None or isinstance(a, np.ndarray):
            n = grid * block if a is None else a.size
            places.append((device.alloc(4 * n, f"x{k}"), 4 * n))
            if a is not None:
                device.write(places[-1][0], a)
            values.append(places[-1][0])
        else:
            values.append(a)
    device.launch(device.load(ptx), "k", (grid,), (block,), values, dynamic)
    return [np.frombuffer(device.read(p, n, initialised=False), INT) for p, n in places]


def caught(kind: type[errors.PtxError], ptx: str, *args: Any, **settings: Any) -> errors.PtxError:
    with pytest.raises(kind) as info:
        launch(ptx, *args, **settings)
    assert type(info.value) is kind
    assert info.value.kernel == "k" and f"line {info.value.line}:" in str(info.value) and info.value.threads
    return info.value


def copy(index: str = "%i", prepare: str = "", size: int = 4) -> str:
    """out[i] = x[index]."""
    element = f"i{8 * size}"
    return entry(
        f"{array('x')}, {array('out')}, i32 %n",
        prepare
        + at("%x", "i8" if "byte" in index else element, index, "%p")
        + f"  %v = load {element}, ptr addrspace(1) %p, align {size}\n"
        + at("%out", element, "%i", "%q")
        + f"  store {element} %v, ptr addrspace(1) %q\n  ret void",
    )


def test_a_copy() -> None:
    x = np.arange(128, dtype=INT)
    assert np.array_equal(launch(copy(), [x, None, 0], grid=2)[1], x)


def test_read_behind_the_end() -> None:
    e = caught(errors.OutOfBounds, copy("%j", "  %j = add i32 %i, 1\n"), [np.zeros(64, INT), None, 0])
    assert "256 bytes from the start of x0, which has 256" in e.buffer and e.threads == ((0, 63),)


def test_write_before_the_start() -> None:
    body = "  %j = add i32 %i, -1\n" + at("%out", "i32", "%j", "%p") + "  store i32 1, ptr addrspace(1) %p\n  ret void"
    e = caught(errors.OutOfBounds, entry(array("out"), body), [None])
    assert e.threads == ((0, 0),) and e.address is not None and e.address % 256 == 252


def test_the_last_bytes_of_a_vector() -> None:
    body = (
        at("%x", "<4 x i32>", "%i", "%p")
        + "  store <4 x i32> zeroinitializer, ptr addrspace(1) %p, align 16\n  ret void"
    )
    launch(entry(array("x"), body), [np.zeros(256, INT)])
    assert caught(errors.OutOfBounds, entry(array("x"), body), [np.zeros(255, INT)]).threads == ((0, 63),)


def test_a_freed_buffer() -> None:
    device = PtxDevice()
    x, out = device.alloc(256, "x"), device.alloc(256, "out")
    module = device.load(copy())
    device.fill(x, 0, 256)
    device.free(x)
    with pytest.raises(errors.OutOfBounds, match="in x, which was freed"):
        device.launch(module, "k", (1,), (64,), [x, out, 0])


def test_misaligned_access() -> None:
    byte = copy("%byte", "  %byte = mul i32 %i, 2\n")
    assert caught(errors.Misaligned, byte, [np.zeros(64, INT), None, 0]).threads[0] == (0, 1)
    body = at("%x", "i32", "%i", "%p") + "  %v = load <2 x i32>, ptr addrspace(1) %p, align 8\n"
    body += at("%out", "<2 x i32>", "%i", "%q") + "  store <2 x i32> %v, ptr addrspace(1) %q\n  ret void"
    caught(errors.Misaligned, entry(f"{array('x')}, {array('out')}", body), [np.zeros(65, INT), np.zeros(128, INT)])


def test_write_to_what_may_only_be_read() -> None:
    device = PtxDevice()
    x = device.alloc(256, "x", readonly=True)
    module = device.load(
        entry(array("x"), at("%x", "i32", "%i", "%p") + "  store i32 1, ptr addrspace(1) %p\n  ret void")
    )
    with pytest.raises(errors.ReadOnly, match="byte 0 of x"):
        device.launch(module, "k", (1,), (64,), [x])


def test_read_of_memory_that_was_never_written() -> None:
    e = caught(errors.Uninitialised, copy(), [None, None, 0])
    assert "byte 0 of x0" in str(e)
    device = PtxDevice()
    x = device.alloc(256, "x")
    device.fill(x, 0, 252)
    with pytest.raises(errors.Uninitialised, match="byte 252 of x"):
        device.read(x, 256)
    with pytest.raises(errors.Uninitialised, match="thread 63"):
        device.launch(device.load(copy()), "k", (1,), (64,), [x, device.alloc(256, "out"), 0])


def shared(first: str, between: str, second: str) -> str:
    """tile[first] = i, something, out[i] = tile[second]."""
    body = at("@tile", "i32", first, "%p", 3) + "  store i32 %i, ptr addrspace(3) %p\n" + between
    body += at("@tile", "i32", second, "%q", 3) + "  %v = load i32, ptr addrspace(3) %q\n"
    body += at("%out", "i32", "%i", "%r") + "  store i32 %v, ptr addrspace(1) %r\n  ret void"
    return entry(array("out"), "  %u = xor i32 %t, 33\n  %w = xor i32 %t, 1\n" + body, TILE.format(64))


def test_shared_memory_and_its_barrier() -> None:
    out = launch(shared("%t", BARRIER, "%u"), [None], grid=2)[0]
    assert np.array_equal(out, np.concatenate([np.arange(64) ^ 33, 64 + (np.arange(64) ^ 33)]))
    e = caught(errors.Race, shared("%t", "", "%u"), [None])
    assert "a read, and a write by block 0 thread 33" in str(e) and "of tile" in e.buffer
    caught(errors.Race, shared("%t", WARP_BARRIER, "%u"), [None])


def test_the_barrier_of_a_warp_orders_the_warp() -> None:
    assert np.array_equal(launch(shared("%t", WARP_BARRIER, "%w"), [None])[0], np.arange(64) ^ 1)
    caught(errors.Race, shared("%t", "", "%w"), [None])


def test_a_shuffle_orders_nothing() -> None:
    between = "  %s = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %t, i32 1, i32 31)\n"
    caught(errors.Race, shared("%t", between, "%s"), [None])


def test_a_write_after_reads() -> None:
    def ptx(barrier: str) -> str:
        body = at("@tile", "i32", "%t", "%p", 3) + "  store i32 %i, ptr addrspace(3) %p\n" + BARRIER
        body += at("@tile", "i32", "%u", "%q", 3) + "  %v = load i32, ptr addrspace(3) %q\n" + barrier
        body += "  store i32 %v, ptr addrspace(3) %p\n  ret void"
        return entry("", "  %u = xor i32 %t, 33\n" + body, TILE.format(64))

    launch(ptx(BARRIER), [])
    e = caught(errors.Race, ptx(""), [])
    assert "a write, and a read by" in str(e)


def test_shared_memory_that_was_never_written() -> None:
    half = entry(
        array("out"),
        "  %first = icmp slt i32 %t, 32\n  br i1 %first, label %a, label %b\na:\n"
        + at("@tile", "i32", "%t", "%p", 3)
        + "  store i32 %i, ptr addrspace(3) %p\n  br label %b\nb:\n"
        + BARRIER
        + at("@tile", "i32", "%t", "%q", 3)
        + "  %v = load i32, ptr addrspace(3) %q\n"
        + at("%out", "i32", "%i", "%r")
        + "  store i32 %v, ptr addrspace(1) %r\n  ret void",
        TILE.format(64),
    )
    e = caught(errors.Uninitialised, half, [None])
    assert e.threads[0] == (0, 32) and "byte 128 of tile" in e.buffer


def test_bounds_of_shared_memory() -> None:
    e = caught(errors.OutOfBounds, shared("%t", BARRIER, "%u").replace("tile[256]", "tile[252]"), [None])
    assert "which has 252" in str(e)
    dynamic = entry(
        "",
        at("@dyn", "i32", "%t", "%p", 3) + "  store i32 %i, ptr addrspace(3) %p\n  ret void",
        "@dyn = external addrspace(3) global [0 x i32], align 16\n",
    )
    launch(dynamic, [], dynamic_shared=256)
    assert caught(errors.OutOfBounds, dynamic, [], dynamic_shared=252).threads == ((0, 63),)


LOCAL = (
    (
        "  %space = alloca [8 x i32], align 4\n  %j = and i32 %t, 7\n  %k = and i32 %n, 15\n"
        "  %p = getelementptr [8 x i32], ptr %space, i32 0, i32 %j\n  store i32 %t, ptr %p\n"
        "  %q = getelementptr [8 x i32], ptr %space, i32 0, i32 %k\n  %v = load i32, ptr %q\n"
    )
    + at("%out", "i32", "%i", "%r")
    + "  store i32 %v, ptr addrspace(1) %r\n  ret void"
)


def test_local_memory() -> None:
    ptx = entry(f"{array('out')}, i32 %n", LOCAL)
    assert "st.local" in ptx
    e = caught(errors.Uninitialised, ptx, [None, 3])
    assert e.threads[0] == (0, 0) and "byte 12 of" in e.buffer
    assert "which has 32" in str(caught(errors.OutOfBounds, ptx, [None, 8]))
    assert (
        launch(entry(f"{array('out')}, i32 %n", LOCAL.replace("and i32 %t, 7", "and i32 %n, 7")), [None, 3])[0][5] == 5
    )


def test_a_register_that_was_never_written() -> None:
    good = copy()
    bad = good.replace("mov.u32 \t%r1, %tid.x;", "")
    assert bad != good
    e = caught(errors.Uninitialised, bad, [np.zeros(64, INT), None, 0])
    assert "register %r1 of k" in str(e)


def test_a_register_that_some_threads_never_wrote() -> None:
    text = copy()
    bad = text.replace(
        "mov.u32 \t%r1, %tid.x;", "mov.u32 %r2, %tid.x;\n setp.lt.u32 %p0, %r2, 8;\n@%p0 mov.u32 %r1, 1;"
    )
    bad = bad.replace(".reg .b32", ".reg .pred %p<1>;\n.reg .b32")
    assert caught(errors.Uninitialised, bad, [np.zeros(64, INT), None, 0]).threads[0] == (0, 8)


def test_two_threads_write_the_same_bytes() -> None:
    def ptx(index: str) -> str:
        body = (
            "  %h = lshr i32 %i, 1\n"
            + at("%out", "i32", index, "%p")
            + "  store i32 %i, ptr addrspace(1) %p\n  ret void"
        )
        return entry(array("out"), body)

    launch(ptx("%i"), [None], grid=2)
    e = caught(errors.Race, ptx("%h"), [None], grid=2)
    assert "a write, and a write by" in str(e) and "of x0" in e.buffer
    assert launch(ptx("%h"), [None], grid=2, races=False)[0][0] in (0, 1)


def test_overlapping_accesses_of_different_sizes() -> None:
    body = at("%x", "i8", "%t", "%p") + "  store i8 0, ptr addrspace(1) %p\n"
    body += at("%x", "i32", "%t", "%q") + "  %v = load i32, ptr addrspace(1) %q\n"
    body += at("%out", "i32", "%t", "%r") + "  store i32 %v, ptr addrspace(1) %r\n  ret void"
    args = [np.zeros(64, INT), None]
    caught(errors.Race, entry(f"{array('x')}, {array('out')}", body), args)
    assert launch(entry(f"{array('x')}, {array('out')}", body), args, block=1)[0][0] == 0


def test_blocks_are_never_ordered() -> None:
    def ptx(index: str) -> str:
        body = at("%x", "i32", "%i", "%p") + "  store i32 %i, ptr addrspace(1) %p\n" + BARRIER
        body += at("%x", "i32", index, "%q") + "  %v = load i32, ptr addrspace(1) %q\n"
        body += at("%out", "i32", "%i", "%r") + "  store i32 %v, ptr addrspace(1) %r\n  ret void"
        return entry(f"{array('x')}, {array('out')}", "  %same = xor i32 %i, 1\n  %other = xor i32 %i, 64\n" + body)

    assert np.array_equal(launch(ptx("%same"), [None, None], grid=2)[1], np.arange(128) ^ 1)
    e = caught(errors.Race, ptx("%other"), [None, None], grid=2)
    assert "by block 1 thread 0" in str(e) or "by block 0 thread" in str(e)


def test_blocks_that_do_not_run_at_one_time() -> None:
    body = (
        "  %j = and i32 %i, 16383\n" + at("%out", "i32", "%j", "%p") + "  store i32 %i, ptr addrspace(1) %p\n  ret void"
    )
    launch(entry(array("out"), body), [None], grid=64, block=256)
    e = caught(errors.Race, entry(array("out"), body), [None], grid=65, block=256)
    assert e.threads[0] == (64, 0) and "by block 0 thread 0" in str(e)


def test_atomic_operations_do_not_race() -> None:
    add = "  %a = atomicrmw add ptr addrspace(1) %x, i32 %i monotonic\n"
    assert launch(entry(array("x"), add + "  ret void"), [np.zeros(1, INT)], grid=3)[0][0] == sum(range(192))
    plain = (
        "  %v = load i32, ptr addrspace(1) %x\n  %s = add i32 %v, 1\n  store i32 %s, ptr addrspace(1) %x\n  ret void"
    )
    caught(errors.Race, entry(array("x"), add + plain), [np.zeros(1, INT)])
    caught(errors.Race, entry(array("x"), plain), [np.zeros(1, INT)])
    caught(errors.Uninitialised, entry(array("x"), add + "  ret void"), [None])


def test_a_part_of_a_word_is_swapped() -> None:
    """Other bytes of the word need not be written, and are not afterwards."""

    def swapped(byte: int) -> np.ndarray:
        body = f"""  %old = load atomic i32, ptr addrspace(1) %x monotonic, align 4
  %new = xor i32 %old, {7 << 8 * byte}
  %pair = cmpxchg ptr addrspace(1) %x, i32 %old, i32 %new monotonic monotonic
  ret void"""
        device = PtxDevice()
        x = device.alloc(4, "x")
        device.write(x, np.array([1, 2], np.uint8))
        device.launch(device.load(entry(array("x"), body)), "k", (1,), (1,), [x])
        with pytest.raises(errors.Uninitialised, match="2 of 4 bytes"):
            device.read(x, 4)
        return np.frombuffer(device.read(x, 2), np.uint8)

    assert swapped(1).tolist() == [1, 2 ^ 7] and swapped(0).tolist() == [1 ^ 7, 2]
    with pytest.raises(errors.Uninitialised, match="byte 0 of x"):
        swapped(2)


def test_reads_through_the_read_only_cache() -> None:
    body = at("%x", "i32", "%i", "%p") + "  %v = load i32, ptr addrspace(1) %p\n"
    body += at("%out", "i32", "%i", "%q") + "  store i32 %v, ptr addrspace(1) %q\n  ret void"
    ptx = entry(f"{array('x', readonly=True)}, {array('out')}", body)
    assert "ld.global.nc" in ptx
    device = PtxDevice()
    x = device.alloc(256, "x")
    device.fill(x, 1, 256)
    module = device.load(ptx)
    device.launch(module, "k", (1,), (64,), [x, device.alloc(256)])
    with pytest.raises(errors.Race, match="read-only cache"):
        device.launch(module, "k", (1,), (64,), [x, x])


def test_a_new_launch_begins_anew() -> None:
    device = PtxDevice()
    out = device.alloc(256, "out")
    module = device.load(
        entry(array("out"), at("%out", "i32", "%i", "%p") + "  store i32 %i, ptr addrspace(1) %p\n  ret void")
    )
    for block in (64, 32):
        device.launch(module, "k", (64 // block,), (block,), [out])
    assert np.frombuffer(device.read(out, 256), INT)[63] == 63


def test_atomic_reads_and_writes() -> None:
    """Volatile, acquiring and releasing accesses go with one another, and with reads; not with plain writes."""
    atomic = "  store atomic i32 1, ptr addrspace(1) %x release, align 4\n"
    for text, others in (
        ("  %v = load atomic i32, ptr addrspace(1) %x acquire, align 4\n", True),
        ("  %v = load volatile i32, ptr addrspace(1) %x\n", True),
        ("  %v = load i32, ptr addrspace(1) %x\n", False),
    ):
        ptx = entry(array("x"), atomic + text + at("%x", "i32", "%i", "%p") + "  ret void")
        assert "st.release" in ptx
        if others or "ld." not in ptx:
            launch(ptx, [np.zeros(64, INT)])
    plain = "  store i32 1, ptr addrspace(1) %x\n  ret void"
    caught(errors.Race, entry(array("x"), atomic + plain), [np.zeros(1, INT)])
    launch(entry(array("x"), atomic + plain), [None], block=1)


def test_generic_addresses() -> None:
    """A pointer that is one of shared, local or global memory, as the thread says; faults in each."""
    body = (
        """  %space = alloca [4 x i32], align 4
  store i32 %t, ptr %space
  %s = getelementptr i32, ptr addrspace(3) @tile, i32 %t
  store i32 %t, ptr addrspace(3) %s
  %sg = addrspacecast ptr addrspace(3) %s to ptr
  %x0 = getelementptr i32, ptr addrspace(1) %x, i32 %t
  %xg = addrspacecast ptr addrspace(1) %x0 to ptr
  %m = urem i32 %t, 3
  %is0 = icmp eq i32 %m, 0
  %is1 = icmp eq i32 %m, 1
  %p0 = select i1 %is0, ptr %sg, ptr %xg
  %p1 = select i1 %is1, ptr %space, ptr %p0
  %p = getelementptr i8, ptr %p1, i32 %by
  %v = load i32, ptr %p
  %w = add i32 %v, 1000
  store i32 %w, ptr %p
  %again = load i32, ptr %p
"""
        + at("%out", "i32", "%i", "%q")
        + "  store i32 %again, ptr addrspace(1) %q\n  ret void"
    )
    ptx = entry(f"{array('x')}, {array('out')}, i32 %by", body, TILE.format(64))
    assert "\tld.b32" in ptx and "\tst.b32" in ptx
    x = np.arange(64, dtype=INT) + 500
    found = launch(ptx, [x, None, 0])[1]
    assert np.array_equal(found, np.where(np.arange(64) % 3 == 2, x, np.arange(64)) + 1000)
    assert caught(errors.OutOfBounds, ptx, [x, None, -(1 << 25)]).threads[0] == (0, 2)
    assert "tile" in caught(errors.OutOfBounds, ptx, [x, None, 400]).buffer
    assert caught(errors.Misaligned, ptx, [x, None, 2]).threads[0] == (0, 0)
