"""Each fault that the interpreter detects at barriers, in warps, and without end; and what it does not know."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx import errors
from tests.ptx.device import PtxDevice
from tests.ptx.kernels import array, at, entry
from tests.ptx.test_memory_faults import BARRIER, INT, caught, copy, launch


def branch(condition: str, inside: str, after: str = "", otherwise: str = "  br label %join\n") -> str:
    """Something that only those threads do for which a condition holds."""
    text = (
        f"  %c = {condition}\n  br i1 %c, label %then, label %else\nthen:\n{inside}  br label %join\nelse:\n{otherwise}"
    )
    return f"{text}join:\n{after}"


def test_divergent_barrier() -> None:
    store = at("%out", "i32", "%i", "%p") + "  store i32 %i, ptr addrspace(1) %p\n  ret void"
    condition = "icmp ult i32 %t, 40"
    launch(entry(array("out"), branch(condition, "", BARRIER + store)), [None])
    e = caught(errors.DivergentBarrier, entry(array("out"), branch(condition, BARRIER, BARRIER + store)), [None])
    assert "threads wait at line" in str(e)
    # one barrier on each side of a branch: two places
    sides = branch(
        condition,
        BARRIER + at("%out", "i32", "%i", "%p") + "  store i32 1, ptr addrspace(1) %p\n",
        store.replace("%p", "%q"),
        BARRIER + "  br label %join\n",
    )
    caught(errors.DivergentBarrier, entry(array("out"), sides), [None])
    # whole blocks may go their own way
    launch(entry(array("out"), branch("icmp eq i32 %block, 0", BARRIER, store)), [None], grid=2)


def test_a_barrier_does_not_wait_for_threads_that_are_at_their_end() -> None:
    store = at("%out", "i32", "%i", "%p") + "  store i32 %i, ptr addrspace(1) %p\n  ret void"
    early = branch("icmp ult i32 %t, 40", "", BARRIER + store, "  ret void\n")
    assert launch(entry(array("out"), early), [np.full(64, -1, INT)])[0].tolist() == [*range(40), *[-1] * 24]


SUM = "".join(
    f"  %s{k} = call i32 @llvm.nvvm.shfl.sync.down.i32(i32 {{}}, i32 %v{k}, i32 {16 >> k}, i32 31)\n"
    f"  %v{k + 1} = add i32 %v{k}, %s{k}\n"
    for k in range(5)
)


def warp_sum(mask: str = "-1", condition: str = "icmp ult i32 %t, 64") -> str:
    body = SUM.replace("{}", mask) + at("%out", "i32", "%i", "%p") + "  store i32 %v5, ptr addrspace(1) %p\n"
    return entry(array("out"), "  %v0 = add i32 %t, 0\n" + branch(condition, body, "  ret void"))


def test_a_sum_of_a_warp() -> None:
    out = launch(warp_sum(), [np.zeros(64, INT)])[0]
    assert out[0] == sum(range(32)) and out[32] == sum(range(32, 64))
    assert launch(warp_sum(condition="icmp ult i32 %t, 32"), [np.zeros(64, INT)])[0][32] == 0


def test_inactive_lanes() -> None:
    e = caught(errors.InactiveLane, warp_sum(condition="icmp ult i32 %t, 40"), [np.zeros(64, INT)])
    assert e.threads[0] == (0, 32)
    half = warp_sum(mask="65535", condition="icmp ult i32 %t, 16")
    e = caught(errors.InactiveLane, half, [np.zeros(64, INT)])
    assert "reads from lane 16" in str(e)
    e = caught(errors.InactiveLane, warp_sum(mask="65535"), [np.zeros(64, INT)])
    assert "does not name the lane itself" in str(e) and e.threads[0] == (0, 16)
    e = caught(errors.InactiveLane, warp_sum(), [np.zeros(48, INT)], block=48)
    assert "were never there" in str(e) and e.threads[0] == (0, 32)


def test_lanes_that_wait_elsewhere() -> None:
    vote = "  %b = call i32 @llvm.nvvm.vote.ballot.sync(i32 -1, i1 true)\n"
    store = at("%out", "i32", "%i", "%p") + "  store i32 %b, ptr addrspace(1) %p\n"
    e = caught(
        errors.InactiveLane,
        entry(array("out"), branch("icmp ult i32 %t, 40", vote + store, BARRIER + "  ret void")),
        [None],
    )
    assert "do not come" in str(e) and "56 threads wait at line" in str(e)


def test_no_end() -> None:
    body = "  br label %loop\nloop:\n  %a = atomicrmw or ptr addrspace(1) %x, i32 0 monotonic\n"
    body += "  %c = icmp eq i32 %a, 0\n  br i1 %c, label %loop, label %done\ndone:\n  ret void"
    launch(entry(array("x"), body), [np.ones(1, INT)])
    caught(errors.NoEnd, entry(array("x"), body), [np.zeros(1, INT)], budget=2_000)


def test_who_waits_for_another_lets_it_pass() -> None:
    """Thread 0 sets what the others wait for, after a branch that they take first."""
    body = branch(
        "icmp eq i32 %t, 0", "  %s = atomicrmw xchg ptr addrspace(1) %x, i32 1 monotonic\n", "  ret void",
        "  br label %loop\nloop:\n  %a = atomicrmw or ptr addrspace(1) %x, i32 0 monotonic\n"
        "  %w = icmp eq i32 %a, 0\n  br i1 %w, label %loop, label %join\n",
    )  # fmt: skip
    assert launch(entry(array("x"), body), [np.zeros(1, INT)])[0][0] == 1


def test_trap_and_division_by_zero() -> None:
    body = branch("icmp eq i32 %t, 5", "  call void @llvm.trap()\n", "  ret void")
    assert caught(errors.Trap, entry("", body), []).threads == ((0, 5),)
    body = (
        "  %q = udiv i32 %t, %n\n" + at("%out", "i32", "%i", "%p") + "  store i32 %q, ptr addrspace(1) %p\n  ret void"
    )
    caught(errors.Trap, entry(f"{array('out')}, i32 %n", body), [None, 0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("ld.global.b32", "ld.global.b33"), ("ld.global.b32", "ld.global.weird.b32"), ("add.s64", "add.sat.s64"),
        ("ret;", "wgmma.fence;"), ("%tid.x", "%clock"), (".reg .b32", ".reg .b128"), ("ret;", "ret"),
        (".address_size 64", ".address_size 32"), ("st.global.b32", "st.const.b32"), ("%rd1", "%other"),
        (".visible .entry k(", ".visible .entry .blocksareclusters k("), ("mov.u32", "mov.u32.uni"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_an_error(old: str, new: str) -> None:
    good = copy()
    assert old in good
    PtxDevice().load(good)
    with pytest.raises(errors.UnknownPtx):
        PtxDevice().load(good.replace(old, new))
