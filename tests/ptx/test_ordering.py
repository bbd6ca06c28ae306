"""What atomic operations and fences order between blocks: the usual patterns, and each without one of its parts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx import errors
from tests.ptx.kernels import array, at, entry
from tests.ptx.test_memory_faults import BARRIER, INT, caught, launch

FENCE = '  fence syncscope("device") acq_rel\n'
GRID, BLOCK = 5, 64


def last_block(before: str = FENCE, behind: str = FENCE, barrier: str = BARRIER, first: str = BARRIER) -> str:
    """Every thread writes x[i]; the block that counts last adds everything up, a column for each of its threads."""
    body = at("%x", "i32", "%i", "%p") + "  store i32 %i, ptr addrspace(1) %p\n" + first
    body += f"""  %zero = icmp eq i32 %t, 0
  br i1 %zero, label %count, label %meet
count:
{before}  %old = atomicrmw add ptr addrspace(1) %counter, i32 1 monotonic
{behind}  store i32 %old, ptr addrspace(3) @ticket
  br label %meet
meet:
{barrier}  %mine = load i32, ptr addrspace(3) @ticket
  %last = icmp eq i32 %mine, {GRID - 1}
  br i1 %last, label %loop, label %done
loop:
  %k = phi i32 [ 0, %meet ], [ %kn, %loop ]
  %s = phi i32 [ 0, %meet ], [ %sn, %loop ]
  %row = mul i32 %k, {BLOCK}
  %j = add i32 %row, %t
{at("%x", "i32", "%j", "%q")}  %v = load i32, ptr addrspace(1) %q
  %sn = add i32 %s, %v
  %kn = add i32 %k, 1
  %more = icmp slt i32 %kn, {GRID}
  br i1 %more, label %loop, label %store
store:
{at("%out", "i32", "%t", "%r")}  store i32 %sn, ptr addrspace(1) %r
  br label %done
done:
  ret void"""
    ticket = "@ticket = internal addrspace(3) global i32 poison, align 4\n"
    return entry(f"{array('x')}, {array('counter')}, {array('out')}", body, ticket)


def arguments() -> list[np.ndarray | None]:
    return [None, np.zeros(1, INT), np.full(BLOCK, -1, INT)]


def test_the_last_block_reads_what_all_wrote() -> None:
    out = launch(last_block(), arguments(), grid=GRID, block=BLOCK)[2]
    assert np.array_equal(out, np.arange(GRID * BLOCK).reshape(GRID, BLOCK).sum(axis=0))


@pytest.mark.parametrize("part", ["before", "behind", "first"])
def test_the_last_block_without_a_part(part: str) -> None:
    e = caught(errors.Race, last_block(**{part: ""}), arguments(), grid=GRID, block=BLOCK)
    assert "a read, and a write by block" in str(e) and "of x0" in e.buffer


def test_the_barrier_hands_on_what_a_thread_knows() -> None:
    caught(errors.Race, last_block(barrier=""), arguments(), grid=GRID, block=BLOCK)


def message(store: str, load: str) -> str:
    """The last block writes x[0], and says so by a flag on which the others wait before they read it."""
    body = f"""  %x0 = getelementptr i32, ptr addrspace(1) %x, i32 0
  %teller = icmp eq i32 %block, {GRID - 1}
  br i1 %teller, label %tell, label %wait
tell:
  store i32 42, ptr addrspace(1) %x0
{store}  br label %done
wait:
{load}  %no = icmp eq i32 %f, 0
  br i1 %no, label %wait, label %read
read:
  %v = load i32, ptr addrspace(1) %x0
{at("%out", "i32", "%block", "%r")}  store i32 %v, ptr addrspace(1) %r
  br label %done
done:
  ret void"""
    return entry(f"{array('x')}, {array('flag')}, {array('out')}", body)


RELEASE = "  store atomic i32 1, ptr addrspace(1) %flag release, align 4\n"
ACQUIRE = "  %f = load atomic i32, ptr addrspace(1) %flag acquire, align 4\n"


def relaxed(text: str) -> str:
    return text.replace("release", "monotonic").replace("acquire", "monotonic")


def test_release_and_acquire() -> None:
    args = [None, np.zeros(1, INT), np.full(GRID, -1, INT)]
    for store, load in ((RELEASE, ACQUIRE), (FENCE + relaxed(RELEASE), relaxed(ACQUIRE) + FENCE)):
        assert launch(message(store, load), args, grid=GRID, block=1)[2].tolist() == [42] * (GRID - 1) + [-1]
    for store, load in ((relaxed(RELEASE), ACQUIRE), (RELEASE, relaxed(ACQUIRE)), (relaxed(RELEASE) + FENCE, ACQUIRE)):
        caught(errors.Race, message(store, load), args, grid=GRID, block=1)
    late = RELEASE + "  store i32 43, ptr addrspace(1) %x0\n"  # what comes after is not released
    caught(errors.Race, message(late, ACQUIRE), args, grid=GRID, block=1)
