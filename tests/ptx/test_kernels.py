"""Kernels of the kinds that arrays need, in LLVM text, executed from their PTX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx import ptxas
from tests.ptx.device import PtxDevice
from tests.ptx.errors import Race, Uninitialised
from tests.ptx.kernels import array, at, entry
from tests.ptx.static import Static

BARRIER = "  call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)\n"


def launch(ptx: str, args: list[Any], grid: Any, block: Any, **settings: Any) -> list[np.ndarray]:
    """Run `k` on arrays (dtype and size: one that is not initialised); the arrays after it."""
    device = PtxDevice()
    values, places = [], []
    for a in args:
        if isinstance(a, np.ndarray):
            p = device.alloc(a.nbytes)
            device.write(p, a)
            places.append((p, a.nbytes, a.dtype))
        elif isinstance(a, tuple):
            dtype = np.dtype(a[0])
            p = device.alloc(dtype.itemsize * a[1])
            places.append((p, dtype.itemsize * a[1], dtype))
        values.append(p if isinstance(a, np.ndarray | tuple) else a)
    device.launch(device.load(ptx), "k", grid, block, values, **settings)
    return [np.frombuffer(device.read(p, n), d) for p, n, d in places]


def block_sum(element: str = "float") -> str:
    """out[block] = the sum of x over a stride of the grid: registers, shuffles, one word a warp in shared memory."""
    zero, add = ("0.0", "fadd") if element == "float" else ("0", "add")
    fold = "".join(
        f"  %sb{{0}}{k} = bitcast {element} %v{{0}}{k} to i32\n"
        f"  %sr{{0}}{k} = call i32 @llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 %sb{{0}}{k}, i32 {16 >> k}, i32 31)\n"
        f"  %sf{{0}}{k} = bitcast i32 %sr{{0}}{k} to {element}\n"
        f"  %v{{0}}{k + 1} = {add} {element} %v{{0}}{k}, %sf{{0}}{k}\n"
        for k in range(5)
    )
    body = f"""  %grid = call i32 @llvm.nvvm.read.ptx.sreg.nctaid.x()
  %step = mul i32 %grid, %size
  %some = icmp slt i32 %i, %n
  br i1 %some, label %loop, label %warp
loop:
  %j = phi i32 [ %i, %entry ], [ %next, %loop ]
  %acc = phi {element} [ {zero}, %entry ], [ %sum, %loop ]
{at("%x", element, "%j", "%p")}  %v = load {element}, ptr addrspace(1) %p
  %sum = {add} {element} %acc, %v
  %next = add i32 %j, %step
  %more = icmp slt i32 %next, %n
  br i1 %more, label %loop, label %warp
warp:
  %va0 = phi {element} [ {zero}, %entry ], [ %sum, %loop ]
{fold.format("a")}  %lane = and i32 %t, 31
  %number = lshr i32 %t, 5
  %first = icmp eq i32 %lane, 0
  br i1 %first, label %put, label %meet
put:
{at("@parts", element, "%number", "%q", 3)}  store {element} %va5, ptr addrspace(3) %q
  br label %meet
meet:
{BARRIER}  %warps = lshr i32 %size, 5
  %low = icmp slt i32 %t, 32
  br i1 %low, label %last, label %done
last:
  %has = icmp slt i32 %t, %warps
  br i1 %has, label %get, label %all
get:
{at("@parts", element, "%t", "%r", 3)}  %part = load {element}, ptr addrspace(3) %r
  br label %all
all:
  %vb0 = phi {element} [ {zero}, %last ], [ %part, %get ]
{fold.format("b")}  br i1 %first, label %store, label %done
store:
{at("%out", element, "%block", "%s")}  store {element} %vb5, ptr addrspace(1) %s
  br label %done
done:
  ret void"""
    parts = f"@parts = internal addrspace(3) global [32 x {element}] poison, align 4\n"
    return entry(f"{array('x', readonly=True)}, {array('out')}, i32 %n", body, parts)


def test_sums_of_blocks() -> None:
    x = np.random.default_rng(0).integers(-1000, 1000, 5000)
    ptx = block_sum()
    for element, d in (("float", np.float32), ("i32", np.int32)):
        for n in (5000, 100, 1):
            out = launch(block_sum(element), [x[:n].astype(d), (d, 7), n], (7,), (192,))[1]
            assert out.dtype == d and out.sum() == x[:n].sum()
    code = Static(ptx)
    assert len(code.loops) == 1 and code.opcodes("shfl", within_loops=True).total() == 0
    assert code.opcodes("shfl") == {"shfl.sync.bfly.b32": 10} and not code.opcodes("f64")
    assert code.opcodes("ld.nc", within_loops=True) == {"ld.global.nc.b32": 1} and not code.opcodes("fma")
    with pytest.raises((Race, Uninitialised)):
        launch(ptx.replace("bar.sync \t0;", ""), [x.astype(np.float32), (np.float32, 7), 5000], (7,), (192,))


def matmul(size: int, tile: int = 16) -> str:
    """out = x @ y of square matrices, by tiles in shared memory; the sum runs in the order of the index."""
    steps = "".join(
        at("@xs", "float", f"%xk{k}", f"%xp{k}", 3).replace("  %xp", f"  %xk{k} = add i32 %xrow, {k}\n  %xp", 1)
        + at("@ys", "float", f"%yk{k}", f"%yp{k}", 3).replace("  %yp", f"  %yk{k} = add i32 %tx, {k * tile}\n  %yp", 1)
        + f"  %xv{k} = load float, ptr addrspace(3) %xp{k}\n  %yv{k} = load float, ptr addrspace(3) %yp{k}\n"
        + f"  %m{k} = fmul float %xv{k}, %yv{k}\n  %a{k + 1} = fadd float %a{k}, %m{k}\n"
        for k in range(tile)
    )
    body = f"""  %tx = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()
  %ty = call i32 @llvm.nvvm.read.ptx.sreg.tid.y()
  %by = call i32 @llvm.nvvm.read.ptx.sreg.ctaid.y()
  %row0 = mul i32 %by, {tile}
  %row = add i32 %row0, %ty
  %col0 = mul i32 %block, {tile}
  %col = add i32 %col0, %tx
  %xrow = mul i32 %ty, {tile}
  %own = add i32 %xrow, %tx
{at("@xs", "float", "%own", "%xo", 3)}{at("@ys", "float", "%own", "%yo", 3)}  %rowbase = mul i32 %row, {size}
  br label %loop
loop:
  %k = phi i32 [ 0, %entry ], [ %next, %loop ]
  %a0 = phi float [ 0.0, %entry ], [ %a{tile}, %loop ]
  %xi0 = add i32 %rowbase, %k
  %xi = add i32 %xi0, %tx
{at("%x", "float", "%xi", "%xg")}  %xv = load float, ptr addrspace(1) %xg
  store float %xv, ptr addrspace(3) %xo
  %yr = add i32 %k, %ty
  %yb = mul i32 %yr, {size}
  %yi = add i32 %yb, %col
{at("%y", "float", "%yi", "%yg")}  %yv = load float, ptr addrspace(1) %yg
  store float %yv, ptr addrspace(3) %yo
{BARRIER}{steps}{BARRIER}  %next = add i32 %k, {tile}
  %more = icmp slt i32 %next, {size}
  br i1 %more, label %loop, label %done
done:
  %place = add i32 %rowbase, %col
{at("%out", "float", "%place", "%o")}  store float %a{tile}, ptr addrspace(1) %o
  ret void"""
    tiles = "".join(
        f"@{n} = internal addrspace(3) global [{tile * tile} x float] poison, align 16\n" for n in ("xs", "ys")
    )
    return entry(f"{array('x', True)}, {array('y', True)}, {array('out')}", body, tiles)


def test_matrix_product_by_tiles() -> None:
    size = 48
    random = np.random.default_rng(1)
    x, y = (random.normal(size=(size, size)).astype(np.float32) for _ in range(2))
    ptx = matmul(size)
    found = launch(ptx, [x, y, ("f4", size * size)], (3, 3), (16, 16))[2].reshape(size, size)
    expected = np.zeros((size, size), np.float32)
    for k in range(size):
        expected += x[:, k : k + 1] * y[k]
    assert np.array_equal(found, expected)
    first, _, rest = ptx.partition("bar.sync")
    for broken in (first + rest.partition(";")[2], first + "bar.sync" + rest.replace("bar.sync \t0;", "", 1)):
        with pytest.raises((Race, Uninitialised)):
            launch(broken, [x, y, ("f4", size * size)], (3, 3), (16, 16))


def test_atomic_operations() -> None:
    """A histogram in shared memory, joined in global memory; sums of floats; a maximum of their bits."""
    body = f"""  %mine = icmp slt i32 %t, 8
  br i1 %mine, label %clear, label %begin
clear:
{at("@bins", "i32", "%t", "%c", 3)}  store i32 0, ptr addrspace(3) %c
  br label %begin
begin:
{BARRIER}{at("%x", "float", "%i", "%p")}  %v = load float, ptr addrspace(1) %p
  %n = fptoui float %v to i32
{at("@bins", "i32", "%n", "%b", 3)}  %o1 = atomicrmw add ptr addrspace(3) %b, i32 1 monotonic
  %o2 = atomicrmw fadd ptr addrspace(1) %sum, float %v monotonic
  %w = fpext float %v to double
  %o3 = atomicrmw fadd ptr addrspace(1) %wide, double %w monotonic
  %bits = bitcast float %v to i32
  %o4 = atomicrmw max ptr addrspace(1) %top, i32 %bits monotonic
  %o5 = atomicrmw umin ptr addrspace(1) %least, i32 %n monotonic
{BARRIER}  br i1 %mine, label %add, label %done
add:
  %s = load i32, ptr addrspace(3) %c0
{at("%out", "i32", "%t", "%q")}  %o6 = atomicrmw add ptr addrspace(1) %q, i32 %s monotonic
  br label %done
done:
  ret void"""
    body = at("@bins", "i32", "%t", "%c0", 3) + body
    parameters = ", ".join([array(n) for n in ("x", "out", "sum", "wide", "top", "least")])
    ptx = entry(parameters, body, "@bins = internal addrspace(3) global [8 x i32] poison, align 4\n")
    x = np.random.default_rng(2).uniform(1, 8, 512).astype(np.float32)
    args = [x, np.zeros(8, "i4"), np.zeros(1, "f4"), np.zeros(1, "f8"), np.zeros(1, "f4"), np.full(1, 99, "u4")]
    _, bins, total, wide, top, least = launch(ptx, args, (4,), (128,))
    assert np.array_equal(bins, np.bincount(x.astype(int), minlength=8)) and least == 1 and top == x.max()
    assert wide[0] == pytest.approx(x.sum(dtype="f8"), 1e-14) and total[0] == pytest.approx(wide[0], 1e-5)


def test_tables_functions_and_switches() -> None:
    """Constants of the module, a function with two results, a table of branches, local memory, 128-bit integers."""
    rest = """@table = internal addrspace(4) constant [4 x double] [double 1.0, double -2.5, double 3.0, double 4.0]
@words = internal constant [4 x i16] [i16 1, i16 -2, i16 3, i16 4]
@where = internal addrspace(1) global [2 x ptr addrspace(1)] [
  ptr addrspace(1) @word, ptr addrspace(1) getelementptr (i32, ptr addrspace(1) @word, i64 1)]
@word = internal addrspace(1) global [2 x i32] [i32 70, i32 80]
define internal { i64, i64 } @divide(i64 %x, i64 %y) noinline {
  %q = sdiv i64 %x, %y
  %m = mul i64 %q, %y
  %r = sub i64 %x, %m
  %a = insertvalue { i64, i64 } poison, i64 %q, 0
  %b = insertvalue { i64, i64 } %a, i64 %r, 1
  ret { i64, i64 } %b
}
"""
    cases = "".join(f" i32 {k}, label %case{k}" for k in range(6))
    labels = "".join(f"case{k}:\n  br label %join\n" for k in range(6))
    phis = ", ".join(f"[ {k * k + 5}, %case{k} ]" for k in range(6))
    body = f"""  %m = and i32 %t, 3
{at("@table", "double", "%m", "%p", 4)}  %v = load double, ptr addrspace(4) %p
  %wp = getelementptr i16, ptr @words, i32 %m
  %w = load i16, ptr %wp
  %w32 = sext i16 %w to i32
  %h = and i32 %t, 1
{at("@where", "ptr addrspace(1)", "%h", "%pp")}  %pw = load ptr addrspace(1), ptr addrspace(1) %pp
  %word = load i32, ptr addrspace(1) %pw
  %t64 = sext i32 %t to i64
  %x = sub i64 %big, %t64
  %y = add i64 %t64, 3
  %qr = call {{ i64, i64 }} @divide(i64 %x, i64 %y)
  %q = extractvalue {{ i64, i64 }} %qr, 0
  %r = extractvalue {{ i64, i64 }} %qr, 1
  %qr2 = call {{ i64, i64 }} @divide(i64 %q, i64 %y)
  %q2 = extractvalue {{ i64, i64 }} %qr2, 0
  %wide = sext i64 %x to i128
  %square = mul i128 %wide, %wide
  %high = lshr i128 %square, 64
  %h64 = trunc i128 %high to i64
  %sum = add i64 %q2, %r
  %sum2 = add i64 %sum, %h64
  switch i32 %t, label %other [{cases} ]
{labels}other:
  br label %join
join:
  %s = phi i32 {phis}, [ 1, %other ]
  %space = alloca [4 x i32], align 4
  %l0 = getelementptr i32, ptr %space, i32 %m
  store i32 %s, ptr %l0
  %back = load i32, ptr %l0
  %z0 = add i32 %back, %w32
  %z = add i32 %z0, %word
{at("%out", "i64", "%i", "%o")}  store i64 %sum2, ptr addrspace(1) %o
{at("%ints", "i32", "%i", "%o2")}  store i32 %z, ptr addrspace(1) %o2
{at("%floats", "double", "%i", "%o3")}  store double %v, ptr addrspace(1) %o3
  ret void"""
    big = -(10**18)
    ptx = entry(f"{array('out')}, {array('ints')}, {array('floats')}, i64 %big", body, rest)
    assert "brx.idx" in ptx and "call.uni" in ptx
    out, ints, floats = launch(ptx, [("i8", 40), ("i4", 40), ("f8", 40), big], (1,), (40,))
    for t in range(40):
        x, y = big - t, t + 3
        q = -(-x // y)
        assert out[t] == -(-q // y) + (x - q * y) + (x * x >> 64)
        assert ints[t] == (t * t + 5 if t < 6 else 1) + [1, -2, 3, 4][t & 3] + [70, 80][t & 1]
        assert floats[t] == [1.0, -2.5, 3.0, 4.0][t & 3]


def test_vectors_of_four() -> None:
    body = at("%x", "<4 x float>", "%i", "%p") + "  %v = load <4 x float>, ptr addrspace(1) %p, align 16\n"
    body += "  %y = fmul <4 x float> %v, %v\n" + at("%out", "<4 x float>", "%i", "%q")
    body += "  store <4 x float> %y, ptr addrspace(1) %q, align 16\n  ret void"
    ptx = entry(f"{array('x', True)}, {array('out')}", body)
    code = Static(ptx)
    assert code.opcodes("ld.v4") == {"ld.global.nc.v4.b32": 1} and code.opcodes("st.v4") == {"st.global.v4.b32": 1}
    x = np.arange(1024, dtype=np.float32)
    assert np.array_equal(launch(ptx, [x, ("f4", 1024)], (2,), (128,))[1], x * x)


def test_many_blocks_run_in_batches() -> None:
    body = at("%out", "i32", "%i", "%q") + "  store i32 %i, ptr addrspace(1) %q\n"
    body += "  %h = lshr i32 %i, 17\n" + at("%seen", "i32", "%h", "%c")
    body += "  %a = atomicrmw add ptr addrspace(1) %c, i32 1 monotonic\n  ret void"
    n = 1 << 18
    out, seen = launch(
        entry(f"{array('out')}, {array('seen')}", body), [("i4", n), np.zeros(2, "i4")], (n // 256,), (256,)
    )
    assert np.array_equal(out, np.arange(n)) and seen.tolist() == [n // 2, n // 2]


def test_warp_instructions() -> None:
    calls = {
        "up": "call i32 @llvm.nvvm.shfl.sync.up.i32(i32 -1, i32 %i, i32 3, i32 0)",
        "down": "call i32 @llvm.nvvm.shfl.sync.down.i32(i32 -1, i32 %i, i32 5, i32 4127)",
        "idx": "call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 %i, i32 %r, i32 31)",
        "ballot": "call i32 @llvm.nvvm.vote.ballot.sync(i32 -1, i1 %c)",
        "match": "call i32 @llvm.nvvm.match.any.sync.i32(i32 -1, i32 %m)",
        "add": "call i32 @llvm.nvvm.redux.sync.add(i32 %i, i32 -1)",
        "active": "call i32 @llvm.nvvm.activemask()",
    }
    body = "  %m = urem i32 %i, 3\n  %c = icmp eq i32 %m, 0\n  %r = sub i32 31, %t\n"
    for k, (name, text) in enumerate(calls.items()):
        body += f"  %v{name} = {text}\n  %k{k} = add i32 %i, {k * 64}\n" + at("%out", "i32", f"%k{k}", f"%p{k}")
        body += f"  store i32 %v{name}, ptr addrspace(1) %p{k}\n"
    out = launch(entry(array("out"), body + "  ret void"), [("u4", 64 * len(calls))], (1,), (64,))[0].reshape(-1, 64)
    i = np.arange(64)
    lane = i % 32
    assert np.array_equal(out[0], np.where(lane >= 3, i - 3, i))
    assert np.array_equal(out[1], np.where(lane % 16 + 5 <= 15, i + 5, i))
    assert np.array_equal(out[2], i - lane + ((31 - i) & 31))
    for warp in (0, 32):
        members = [[j for j in range(32) if (warp + j) % 3 == m] for m in range(3)]
        masks = [sum(1 << j for j in lanes) for lanes in members]
        assert set(out[3, warp : warp + 32]) == {masks[0]}
        assert out[4, warp : warp + 32].tolist() == [masks[(warp + j) % 3] for j in range(32)]
    assert np.array_equal(out[5], np.where(i < 32, sum(range(32)), sum(range(32, 64))))
    assert set(out[6]) == {2**32 - 1}


def test_barriers_that_count() -> None:
    declares = "".join(f"declare i32 @llvm.nvvm.barrier0.{n}(i32)\n" for n in ("popc", "and", "or"))
    body = "  %c = icmp ult i32 %i, %n\n  %w = zext i1 %c to i32\n"
    for k, name in enumerate(("popc", "and", "or")):
        body += f"  %v{k} = call i32 @llvm.nvvm.barrier0.{name}(i32 %w)\n  %k{k} = add i32 %i, {k * 192}\n"
        body += at("%out", "i32", f"%k{k}", f"%p{k}") + f"  store i32 %v{k}, ptr addrspace(1) %p{k}\n"
    out = launch(entry(f"{array('out')}, i32 %n", body + "  ret void", declares), [("i4", 576), 100], (3,), (64,))[0]
    blocks = out.reshape(3, 3, 64)
    assert (blocks == blocks[:, :, :1]).all()
    assert blocks[:, :, 0].tolist() == [[64, 36, 0], [1, 0, 0], [1, 1, 0]]


@pytest.mark.skipif(ptxas.FOUND is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90"])
def test_the_assembler_takes_them(arch: str) -> None:
    for ptx in (block_sum(), matmul(64)):
        report = ptxas.assemble(ptx.replace("sm_80", arch), arch)["k"]
        assert report.spilled == report.stack == 0 and report.registers <= 64 and report.shared > 0
