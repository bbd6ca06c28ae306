"""The cost of a Program, kernel by kernel: counted (`lowering.cost`), and if wanted measured.

Kernels are timed one at a time, in machine code of their own: the functions that the Program is made of, each behind
a loop that calls it any number of times, on buffers that hold the values which the kernel meets in the Program. So
neither Python nor the call is in the figure; and what the kernel touches is in the cache, as far as it fits.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from funcgrad.core.ir import Equation, Program, Stack
from funcgrad.core.trace import eagerly
from funcgrad.lowering.buffers import ALIGNMENT, buffer_bytes
from funcgrad.lowering.cache import cached
from funcgrad.lowering.cost import Cost, KernelCost, accesses, flops, kind_of, lines_of
from funcgrad.lowering.emit import ATTRIBUTES, functions_of
from funcgrad.lowering.executable import address_of, executable, foreign_addresses
from funcgrad.lowering.kernels import Kernel, Library, Schedule
from funcgrad.lowering.machine import compile_object, header, load
from funcgrad.lowering.nests import STATUS
from funcgrad.lowering.registers.stacks import DESCRIPTION, OWNED
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stack_values import lent
from funcgrad.lowering.stages import Stage, is_native, stages, this_target
from funcgrad.lowering.thunks import Target

ROUNDS = 11  # the median of so many is taken
LEAST = 3e-4  # seconds that a round lasts at least


def cost(program: Program, args: Sequence[Any] | None) -> Cost:
    """Operations and bytes of each kernel of a Program; their times too, if there are `args` to run it on."""
    flat = simplify(program)
    times = iter(_times(program, args)) if args is not None else None
    rows: list[KernelCost] = []
    for stage in _stages(flat):
        s = _schedule(stage)
        source = stage.program.equations if stage.program is not None else (stage.equation,)
        made_by = {v: e for e in source if isinstance(e, Equation) for v in e.outputs}
        who = "kernel" if stage.program is not None else "numpy"
        for kernel in s.kernels:
            seconds = next(times) if times is not None else None
            rows.append(_row(f"{who} {len(rows)}", kernel, s, made_by, seconds))
    return Cost(tuple(rows))


def _row(name: str, kernel: Kernel, s: Schedule, made_by: dict[Any, Equation], seconds: float | None) -> KernelCost:
    touched = accesses(kernel, s)
    return KernelCost(
        name,
        kind_of(kernel),
        lines_of(kernel, made_by),
        flops(kernel),
        sum([a.bytes for a in touched if not a.written]),
        sum([a.bytes for a in touched if a.written]),
        None if seconds is None else 1e6 * seconds,
    )


def _stages(flat: Program) -> list[Stage]:
    return [Stage(flat.inputs, (), flat, None)] if is_native(flat) else stages(flat)


def _schedule(stage: Stage) -> Schedule:
    if stage.program is not None:
        return schedule(stage.program, again=True)
    assert stage.equation is not None
    return Schedule([Library(stage.equation)], {}, {}, [])


# -- time


def _times(program: Program, args: Sequence[Any]) -> Iterator[float]:
    """Seconds of each kernel in turn."""
    executable(program)(args)  # what raises, raises here
    flat = simplify(program)
    env = dict(zip(flat.inputs, args, strict=True))
    with eagerly():
        for stage in _stages(flat):
            if stage.program is not None:
                yield from _kernel_times(stage, env)
            else:
                stage.run(env)
                yield _seconds(_evaluation(stage, env))


def _evaluation(stage: Stage, env: dict[Any, Any]) -> Callable[[int], None]:
    e, values = stage.equation, stage.operands(env)
    assert e is not None

    def run(count: int) -> None:
        for _ in range(count):
            e.primitive.evaluate(*values, **e.params)

    return run


def _kernel_times(stage: Stage, env: dict[Any, Any]) -> list[float]:
    """Seconds of the kernels of a native stage; its outputs are put into `env`."""
    program = stage.program
    assert program is not None
    s = schedule(program, again=True)
    f = functions_of(s, this_target())
    number = {STATUS: 0}
    for v in (*program.inputs, *[root for _, roots in f.calls for root in roots], *s.outputs):
        number.setdefault(v, len(number))
    runners = [_runner(i, name, [number[r] for r in roots]) for i, (name, roots) in enumerate(f.calls)]
    text = header() + "\n".join([f.text, *runners, ATTRIBUTES, ""])
    code = cached(text, f.level, lambda: compile_object(text, f.level))
    names = [f"run{i}" for i in range(len(runners))]
    targets = [Target(e) for e in f.foreign]
    library = load([code], names, {name: address_of(name) for name in f.imports} | foreign_addresses(targets))
    memory = {STATUS: np.zeros(8, np.int64)}
    held = []
    for v in program.inputs:
        if isinstance(v.aval, Stack):
            memory[v], rows = lent(env[v])
            held.append(rows)
        else:
            memory[v] = np.require(env[v], v.aval.dtype, ["C", "A"])
    for v in number:
        if v not in memory:
            memory[v] = _aligned(buffer_bytes(s, v))
    table = np.array([memory[v].ctypes.data for v in number], np.uint64)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    functions = [prototype(library[name]) for name in names]
    seconds = [_seconds(lambda count, g=g: g(table.ctypes.data, count)) for g in functions]
    free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address_of("free"))
    for r in f.growing:
        for address in memory[r].view(np.uint64)[OWNED::DESCRIPTION].tolist():
            free(address)
    if stage.outputs:
        env.update(zip(stage.outputs, executable(program)([env[v] for v in program.inputs]), strict=True))
    return seconds


def _aligned(size: int) -> Any:
    """Bytes for a buffer."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size] if size else raw


def _runner(i: int, name: str, slots: Sequence[int]) -> str:
    """``void run(table, count)``: the kernel, `count` times, on the buffers that stand in the table."""
    lines = [f"define void @run{i}(ptr %table, i64 %count) #0 {{", "entry:"]
    for k, slot in enumerate(slots):
        lines += [f"  %a{k} = getelementptr ptr, ptr %table, i64 {slot}", f"  %p{k} = load ptr, ptr %a{k}"]
    call = ", ".join([f"ptr %p{k}" for k in range(len(slots))])
    lines += ["  br label %loop", "loop:", "  %i = phi i64 [ 0, %entry ], [ %next, %loop ]"]
    lines += [f"  call void @{name}({call})", "  %next = add i64 %i, 1"]
    lines += ["  %more = icmp ult i64 %next, %count", "  br i1 %more, label %loop, label %done", "done:", "  ret void"]
    return "\n".join([*lines, "}", ""])


def _seconds(run: Callable[[int], None]) -> float:
    """Seconds of one of the `count` runs that ``run(count)`` makes: the median of `ROUNDS` rounds."""
    run(1)
    count = 1
    while (elapsed := _clock(run, count)) < LEAST:
        count *= max(2, min(100, int(1.2 * LEAST / max(elapsed, 1e-7))))
    return float(np.median([_clock(run, count) / count for _ in range(ROUNDS)]))


def _clock(run: Callable[[int], None], count: int) -> float:
    start = time.perf_counter()
    run(count)
    return time.perf_counter() - start
