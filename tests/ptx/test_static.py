"""What is read from the code of a kernel without running it."""

from __future__ import annotations

import pytest

from tests.ptx.kernels import array, at, entry
from tests.ptx.static import Static

LOOP = f"""  br label %outer
outer:
  %j = phi i32 [ 0, %entry ], [ %jn, %after ]
  br label %inner
inner:
  %k = phi i32 [ 0, %outer ], [ %kn, %inner ]
{at("%out", "i64", "%k", "%p")}  %v = load i64, ptr addrspace(1) %p
  %q = IN
  store i64 %q, ptr addrspace(1) %p
  %kn = add i32 %k, 1
  %c = icmp slt i32 %kn, %n
  br i1 %c, label %inner, label %after
after:
  %jn = add i32 %j, 2
  %d = icmp slt i32 %jn, %n
  br i1 %d, label %outer, label %done
done:
  %w = sext i32 %n to i64
  %r = AFTER
  store i64 %r, ptr addrspace(1) %out
  ret void"""
HELPER = """define internal i64 @helper(i64 %x, i64 %y) noinline {
  %z = sdiv i64 %x, %y
  ret i64 %z
}
"""


def loops(inside: str, behind: str = "add i64 %w, 1") -> Static:
    body = LOOP.replace("IN", inside, 1).replace("AFTER", behind)
    return Static(entry(f"{array('out')}, i32 %n", body, HELPER))


def test_loops() -> None:
    code = loops("add i64 %v, 7")
    assert len(code.loops) == 2
    inner, outer = sorted([loop.inside for loop in code.loops], key=len)
    assert inner < outer < frozenset(range(len(code.functions["k"].instructions)))
    assert not Static(entry("", "  ret void")).loops


def test_a_division_within_a_loop() -> None:
    assert not loops("add i64 %v, 7").opcodes("div")
    behind = loops("add i64 %v, 7", "sdiv i64 %w, 7777777")
    assert not behind.opcodes("div", within_loops=True)
    inside = loops("call i64 @helper(i64 %v, i64 9)")
    assert inside.opcodes("div.s64", within_loops=True).total() == 1
    after = loops("add i64 %v, 7", "call i64 @helper(i64 %w, i64 9)")
    assert after.opcodes("div.s64").total() == 1 and not after.opcodes("div", within_loops=True)
    assert set(after.functions) == {"k", "helper"} and set(loops("add i64 %v, 7").functions) == {"k"}


def test_code_that_jumps_back_without_a_loop() -> None:
    """A branch to an earlier line that nothing leads on to again is no loop."""
    text = entry("", "  ret void")
    twisted = text.replace("ret;", "bra.uni $B;\n$A:\n ret;\n$B:\n bra.uni $A;")
    assert twisted != text and not Static(twisted).loops
    circle = text.replace("ret;", "bra.uni $B;\n$A:\n bra.uni $B;\n$B:\n bra.uni $A;")
    assert len(Static(circle).loops) == 1


def test_opcodes_by_their_parts() -> None:
    body = at("%x", "<2 x float>", "%i", "%p") + "  %v = load <2 x float>, ptr addrspace(1) %p, align 8\n"
    body += "  %d = fpext <2 x float> %v to <2 x double>\n  %w = fmul <2 x double> %d, %d\n"
    body += "  %f = fptrunc <2 x double> %w to <2 x float>\n"
    body += "  %y = fadd <2 x float> %f, %v\n  store <2 x float> %y, ptr addrspace(1) %out\n  ret void"
    code = Static(entry(f"{array('x', readonly=True)}, {array('out')}", body))
    assert code.opcodes("ld.nc.v2") == {"ld.global.nc.v2.b32": 1} and code.opcodes("st.v2").total() == 1
    assert code.opcodes("f64") and code.opcodes("cvt.f64.f32").total() == 2
    assert code.opcodes("add.f32") and not code.opcodes("add.f64") and not code.opcodes("fma")
    assert code.registers["b64"] > 1 and code.registers["b32"] > 1 and code.guarded() == 0


def test_which_kernel() -> None:
    text = entry("", "  ret void")
    both = text + text[text.index(".visible") :].replace(" k(", " other(")
    with pytest.raises(ValueError, match="which kernel"):
        Static(both)
    assert set(Static(both, "other").functions) == {"other"}
