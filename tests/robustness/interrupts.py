"""KeyboardInterrupt at any moment: nothing stays open, locked or half made, and the same call then gives its result.

Systematically: work is done under `sys.settrace`, and broken off at one of the instructions before which CPython looks
for signals: after a call, at the start of a function, at the end of a round of a loop. And by real signals, at random
times, from another process.
"""

from __future__ import annotations

import collections
import dis
import faulthandler
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "CALL_FUNCTION_EX", "CALL_KW")


class Breaker:
    """Counts the instructions at which an interrupt could come, and raises at number `at`."""

    def __init__(self, at: int = -1) -> None:
        self.at = at
        self.count = 0
        self.place = ""
        self.blocks: list[int] = []  # numbers of the instructions that begin or end a block of ``with``
        self.last: dict[int, tuple[Any, int]] = {}

    def __enter__(self) -> Breaker:
        sys.settrace(self.called)
        return self

    def __exit__(self, *exc: object) -> None:
        sys.settrace(None)

    def called(self, frame: Any, event: str, arg: Any) -> Any:
        name = frame.f_code.co_filename
        if "/robustness/" in name or "importlib" in name or "linecache" in name:
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        self.look(frame)
        return self.inside

    def inside(self, frame: Any, event: str, arg: Any) -> Any:
        if event == "opcode":
            previous = self.last.get(id(frame))
            at = frame.f_lasti
            if previous is not None and previous[0] is frame.f_code and at != previous[1]:
                looks, ranges = _facts(frame.f_code)
                if looks.get(previous[1]) and _handler(ranges, previous[1]) == _handler(ranges, at):
                    self.look(frame)
            self.last[id(frame)] = (frame.f_code, at)
        elif event == "return":
            self.last.pop(id(frame), None)
        return self.inside

    def look(self, frame: Any) -> None:
        self.count += 1
        if frame.f_code.co_name in ("__enter__", "__exit__"):
            self.blocks.append(self.count)
        if self.count == self.at:
            self.place = f"{frame.f_code.co_filename.rsplit('/', 2)[-1]}:{frame.f_lineno} {frame.f_code.co_name}"
            raise KeyboardInterrupt


_known: dict[Any, Any] = {}


def _facts(code: Any) -> Any:
    """Where the interpreter looks for signals after an instruction, and the ranges of the handlers."""
    found = _known.get(code)
    if found is None:
        looks = {i.offset: i.opname in LOOKS for i in dis.get_instructions(code)}
        ranges = [(e.start, e.end, e.target) for e in dis._parse_exception_table(code)]  # type: ignore[attr-defined]
        found = _known[code] = looks, ranges
    return found


def _handler(ranges: list[tuple[int, int, int]], offset: int) -> int:
    return next((target for start, end, target in ranges if start <= offset < end), -1)


def left_behind() -> str:
    """What is still open or locked, or ''."""
    from funcgrad.api.rules import FRAMES
    from funcgrad.base.shelter import all_locks
    from funcgrad.core.array import native_switch
    from funcgrad.core.nans import _RUN
    from tests.robustness.arguments import state

    found = state()
    if FRAMES.get() != () or _RUN.get() is not None:
        found += f" frames {FRAMES.get()!r}, run {_RUN.get()!r}"
    held: list[Any] = []

    def look() -> None:
        for lock in all_locks():
            if lock.acquire(timeout=5.0):
                lock.release()
            else:
                held.append(lock)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found + (f" locks {held}" if held else "") + ("" if native_switch[0] in (0, 1) else " switch")


def settled(name: str, work: Any) -> None:
    """The same work, then the same work made anew, here and in another thread."""
    from tests.robustness.scenarios import made

    work()
    errors: list[BaseException] = []

    def again() -> None:
        try:
            work()
            made(name)()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=again)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "another thread waits for ever"
    if errors:
        raise errors[0]


def quiet_modes() -> None:
    """A switch of the user's own is theirs to turn off again: an interrupt may come before its block begins."""
    from funcgrad.core import array
    from funcgrad.core.array import hold_native
    from funcgrad.core.modes import disable_jit
    from funcgrad.core.nans import debug_nans

    disable_jit._variable.set(None)
    debug_nans._variable.set(None)
    array._holders[0] = 0
    hold_native(0)


def systematic(name: str, seed: int, count: int, minutes: float) -> tuple[int, int]:
    """Break a scenario off at `count` places; how many there are, and how often it was broken off."""
    from tests.robustness.scenarios import made

    made(name)()
    with Breaker() as whole:
        made(name)()
    r, end, broken = random.Random(seed), time.monotonic() + 60 * minutes, 0
    places = list(range(1, whole.count + 1))
    if count < whole.count:
        places = r.sample(whole.blocks, min(count // 2, len(whole.blocks))) + r.sample(places, count // 2)
    r.shuffle(places)
    for at in places:
        if time.monotonic() > end:
            break
        work = made(name)
        breaker = Breaker(at)
        try:
            with breaker:
                work()
        except KeyboardInterrupt:
            broken += 1
        sys.settrace(None)
        try:
            quiet_modes()
            found = left_behind()
            assert not found, found
            settled(name, work) if at % 8 == 0 else work()
        except BaseException as error:
            raise AssertionError(f"{name}, interrupted at {at} of {whole.count}: {breaker.place}") from error
    return whole.count, broken


def by_signals(name: str, seed: int, minutes: float) -> int:
    """Work while another process sends SIGINT; the number of interrupts that came through."""
    from funcgrad.lowering import cache
    from tests.robustness.scenarios import made

    armed, broken = [False], 0

    def handler(number: int, frame: Any) -> None:
        if armed[0]:
            armed[0] = False
            raise KeyboardInterrupt

    made(name)()
    signal.signal(signal.SIGINT, handler)
    print("ready", flush=True)
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        work = made(name)
        try:
            armed[0] = True
            work()
            armed[0] = False
        except KeyboardInterrupt:
            broken += 1
        armed[0] = False
        quiet_modes()
        found = left_behind()
        assert not found, found
        work()
        if broken % 20 == 0:
            settled(name, work)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process may not have noticed that it is over
    root = cache.folder()
    entries = [p for p in root.glob("??/*") if not p.name.startswith("tmp")] if root is not None else []
    assert all([cache._read(p) is not None for p in entries])
    return broken


def child(kind: str, name: str, seed: int, count: int, minutes: float) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(60 * minutes + 280, exit=True)
    if kind == "systematic":
        places, broken = systematic(name, seed, count, minutes)
        print(f"{name}: broken off {broken} times at {places} places")
    else:
        print(f"{name}: {by_signals(name, seed, minutes)} interrupts by signals")


def _started(kind: str, name: str, seed: int, count: int, minutes: float, folder: str) -> Any:
    command = [sys.executable, "-m", "tests.robustness.interrupts", kind, name, str(seed), str(count)]
    environment = {**os.environ, "FUNCGRAD_CACHE_DIR": folder, "FUNCGRAD_CHECK": "0"}
    pipe = subprocess.PIPE
    return subprocess.Popen([*command, str(minutes)], cwd=REPO, env=environment, stdout=pipe, stderr=pipe, text=True)


class Report:
    """What a run found."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.faults: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def __str__(self) -> str:
        return "\n".join([f"{dict(self.counts)}, {len(self.faults)} faults", *self.lines, *self.faults])


def run(seed: int, calls: int = 10**9, minutes: float = 1.0, *unused: Any, names: tuple[str, ...] = ()) -> Report:
    """Break every scenario off at up to `calls` places each, and by signals, for `minutes` in all."""
    from tests.robustness.scenarios import SCENARIOS

    report = Report()
    chosen = names or tuple(SCENARIOS)
    share = minutes / len(chosen) / 2
    for name in chosen:
        for kind in ("systematic", "signals"):
            with tempfile.TemporaryDirectory() as folder:
                process = _started(kind, name, seed, calls, share, folder)
                if kind == "signals":
                    process.stdout.readline()
                    _pester(process, random.Random(seed), share)
                out, err = process.communicate(timeout=60 * share + 300)
                report.lines.append(out.strip())
                report.counts["interrupts"] += sum([int(w) for w in out.replace("broken off", "").split()[1:2]])
                if process.returncode:
                    report.faults.append(
                        f"{kind} {name} ends with {process.returncode}:\n{err[err.rfind('Traceback') :]}"
                    )
    return report


def _pester(process: Any, source: random.Random, minutes: float) -> None:
    end = time.monotonic() + 60 * minutes
    while process.poll() is None and time.monotonic() < end:
        time.sleep(source.random() ** 3 * 0.05)
        process.send_signal(signal.SIGINT)


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
