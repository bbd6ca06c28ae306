"""The order of instructions: every value before its uses, memory in its order, and no more values than registers."""

from __future__ import annotations

import random
import re

import pytest

from funcgrad.lowering.ordering import SHORT, ordered


def straight_line(seed: int, length: int) -> list[str]:
    """Random instructions on two inputs, with loads and stores among them."""
    rng = random.Random(seed)
    lines, values = [], ["%x", "%y"]
    for i in range(length):
        kind = rng.choice(["fadd", "fdiv", "fmul", "load", "store"])
        a, b = rng.choice(values), rng.choice(values[-8:])
        if kind == "store":
            lines.append(f"  store double {a}, ptr %p, align 8 ; {i}")
            continue
        lines.append(f"  %v{i} = " + ("load double, ptr %p, align 8" if kind == "load" else f"{kind} double {a}, {b}"))
        values.append(f"%v{i}")
    return lines


@pytest.mark.parametrize("seed", range(20))
def test_values_come_before_their_uses_and_stores_stay_in_place(seed: int) -> None:
    lines = straight_line(seed, 120)
    found = ordered(lines, registers=1000)
    assert sorted(found) == sorted(lines)
    defined = {"%x", "%y", "%p"}
    for line in found:
        names = re.findall(r"%\w+", line)
        is_store = line.startswith("  store")
        assert set(names if is_store else names[1:]) <= defined, line
        defined |= set(names)
    for n, line in enumerate(lines):
        if line.startswith("  store"):
            at = found.index(line)
            for k, other in enumerate(lines):
                if " load " in other:
                    assert (found.index(other) < at) == (k < n), "a load has passed a store"
    stores = [line for line in lines if line.startswith("  store")]
    assert [line for line in found if line.startswith("  store")] == stores


def test_blocks_and_phis_keep_their_places() -> None:
    chains = [f"  %{c}{i + 1} = fadd double %{c}{i}, %x" for c in "ab" for i in range(SHORT)]
    lines = ["  br label %head", "head:", "  %a0 = phi double [ %x, %entry ]", "  %b0 = phi double [ %x, %entry ]"]
    found = ordered([*lines, *chains, "  br label %head", "done:", "  ret void"], registers=16)
    assert found[:4] == lines
    assert found[-3:] == ["  br label %head", "done:", "  ret void"]
    assert found[4:8] == [chains[0], chains[SHORT], chains[1], chains[SHORT + 1]]


def test_order_stays_if_registers_would_not_do() -> None:
    chains = [f"  %{c}{i + 1} = fadd double %{c}{i}, %x" for c in "abcdef" for i in range(SHORT)]
    starts = [f"  %{c}0 = load double, ptr %{c}, align 8" for c in "abcdef"]
    lines = [line for n, start in enumerate(starts) for line in (start, *chains[n * SHORT : (n + 1) * SHORT])]
    assert ordered(lines, registers=4) == lines
    assert ordered(lines, registers=16) != lines
    assert ordered(lines[:20], registers=16) == lines[:20]
