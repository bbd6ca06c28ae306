"""The order of the instructions of a kernel: those that most others wait for come first.

A processor looks some hundred instructions ahead. Functions that are written one after the other, each a long chain,
fill that window with instructions that wait; mixed, they run side by side. So a basic block is sorted by the time
from each instruction to the end of the block, unless then more values are alive at once than there are registers.
Only the order changes: the bits of every result stay.

    >>> chain = ["  %a0 = fadd double %x, 1.0", *[f"  %a{i + 1} = fadd double %a{i}, 1.0" for i in range(40)]]
    >>> ordered([*chain, "  %b = fdiv double %x, %a0"], registers=16).index("  %b = fdiv double %x, %a0")
    37
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SHORT = 40
"""Blocks of fewer lines stay as they are: the processor sees them whole."""
CYCLES = {"fdiv": 13, "load": 7, "call": 4, "fadd": 3, "fsub": 3, "fmul": 3, "fcmp": 3}
"""Rough latencies; 1 for the rest."""
_names = re.compile(r"%[\w.]+")


def ordered(lines: Sequence[str], registers: int) -> list[str]:
    """The lines of a function body, each basic block in its better order."""
    out: list[str] = []
    block: list[str] = []
    for line in lines:
        if line.endswith(":") or line.startswith(("  br ", "  ret ")):
            out += _block(block, registers)
            out.append(line)
            block = []
        else:
            block.append(line)
    return out + _block(block, registers)


def _block(lines: list[str], registers: int) -> list[str]:
    head = 0
    while head < len(lines) and " = phi " in lines[head]:
        head += 1
    if len(lines) - head < SHORT:
        return lines
    body = [_parsed(line) for line in lines[head:]]
    order = _by_urgency(body)
    if _alive(body, order) > max(registers, _alive(body, range(len(body)))):
        return lines
    return lines[:head] + [lines[head + i] for i in order]


Parsed = tuple[str, str, list[str]]  # the operation, the name of its result or "", the names it uses


def _parsed(line: str) -> Parsed:
    names = _names.findall(line)
    if " = " not in line:
        return "store", "", names
    return line[line.index(" = ") + 3 :].split(" ", 1)[0], names[0], names[1:]


def _by_urgency(body: list[Parsed]) -> list[int]:
    """Positions by falling time to the end of the block; stores keep their places among loads and stores."""
    waiting: dict[str, int] = {}  # for each value the longest time from there on
    times = [0] * len(body)
    stores = memory = 0  # the same for the stores, and for all that touches memory, further down
    for i in reversed(range(len(body))):
        operation, result, used = body[i]
        time = CYCLES.get(operation, 1) + waiting.get(result, 0)
        if operation == "load":
            time = max(time, stores + 1)
            memory = max(memory, time)
        elif operation == "store":
            time = stores = memory = max(time, memory + 1)
        times[i] = time
        for name in used:
            if waiting.get(name, 0) < time:
                waiting[name] = time
    return sorted(range(len(body)), key=lambda i: -times[i])


def _alive(body: list[Parsed], order: Sequence[int]) -> int:
    """The largest number of values of the block that wait to be used, addresses and conditions apart."""
    counted = {result for operation, result, _ in body if operation not in ("getelementptr", "icmp", "fcmp")}
    alive: set[str] = set()
    most = 0
    for i in reversed(order):
        _, result, used = body[i]
        alive.discard(result)
        alive.update(counted.intersection(used))
        most = max(most, len(alive))
    return most
