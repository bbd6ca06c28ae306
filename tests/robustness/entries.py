"""Odd arrays given to compiled functions, in every position, and arrays that another thread changes meanwhile.

The results are those of the function as Python runs it, or all calls are errors. A thread that writes into an argument
during a call changes which values are read, and nothing else. One that resizes it is refused by NumPy while a call
holds it; with ``refcheck=False`` NumPy frees the memory under whoever reads it, under its own functions as under ours,
so that is not done here.
"""

from __future__ import annotations

import faulthandler
import os
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad import errors
from tests.robustness.zoo import Hostile, Zoo

REPO = Path(__file__).resolve().parents[2]
ALLOWED = (errors.FuncgradError, TypeError, ValueError, IndexError, OverflowError, MemoryError, Hostile)

CHANGED = ("loop", "sums")  # of another dtype or last bit without jit


def functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """What is compiled, and how; group E, so that the bits are equal."""
    return {
        "first": (lambda x, y: x + x, {}),
        "second": (lambda x, y: y * y, {}),
        "tree": (lambda x, y: {"a": -x, "b": (y + y, None)}, {}),
        "donated": (lambda x, y: x + x, {"donate_argnums": 0}),
        "donated twice": (lambda x, y: (x + x, abs(y)), {"donate_argnums": (0, 1)}),
        "static": (lambda x, y: x * 2, {"static_argnums": 1}),
        "static donated": (lambda x, y: y + y, {"static_argnums": 0, "donate_argnums": 1}),
        "sums": (lambda x, y: (np.max(x, initial=0), np.where(y > 0, y, -y)), {}),
        "loop": (lambda x, y: fg.lax.fori_loop(0, 3, lambda i, c: c + x, x), {}),
    }


def outcome(f: Callable[..., Any], x: Any, y: Any) -> Any:
    """The bytes of the result, or the kind of error."""
    try:
        found = f(x, y)
    except ALLOWED:
        return "an error"
    leaves, structure = fg.tree.flatten(found)
    values = [np.asarray(v) for v in leaves]
    return structure, [(v.dtype, v.shape, bits(v)) for v in values]


def bits(v: Any) -> bytes:
    """The bytes of the numbers: not those between long doubles, nor the sign of a NaN."""
    return np.nan_to_num(v.astype(complex) if v.dtype.char in "gG" else v, nan=7.0).tobytes()


def copied(x: Any) -> Any:
    """The same array again, with the same flags, since calls may use what they are given."""
    if type(x) in (np.ndarray, fg.Array) and x.flags.c_contiguous and x.dtype.kind in "biufc" and x.nbytes < 2**20:
        out = x.copy()
        out.flags.writeable = x.flags.writeable
        return out
    return x


def odd(calls: int, seed: int) -> tuple[int, int]:
    """Calls made, and how many of them gave a result."""
    warnings.simplefilter("ignore")
    zoo, table = Zoo(random.Random(seed)), functions()
    compiled = {name: fg.jit(f, **options) for name, (f, options) in table.items()}
    results = 0
    for k in range(calls):
        draw: list[Callable[[], Any]] = [zoo.good, zoo.good, zoo.array, zoo.number, zoo.any]
        x, y = zoo.random.choice(draw)(), zoo.random.choice(draw)()
        name = zoo.random.choice(list(table))
        f, options = table[name]
        static = options.get("static_argnums", ())
        expected = outcome(fg.jit(f, static_argnums=static), copied(x), copied(y))  # traced anew
        arrays = all([isinstance(v, np.ndarray | np.generic) for v in (x, y)])  # Python's own bools add otherwise
        if expected != "an error" and name not in CHANGED and arrays:
            with fg.disable_jit():
                plain = outcome(fg.jit(f, static_argnums=static), copied(x), copied(y))
            assert plain == expected, f"call {k} of seed {seed}: {name} of {x!r:.200} and {y!r:.200}"
        for _ in range(3):
            found = outcome(compiled[name], copied(x), copied(y))
            assert found == expected, f"call {k} of seed {seed}: {name} of {x!r:.200} and {y!r:.200}"
        results += expected != "an error"
    return calls, results


def overwritten(seconds: float) -> int:
    """Calls of functions long enough to let other threads run, while these change an argument."""
    f = fg.jit(lambda x: x * 2.0 + 1.0)
    total = fg.jit(lambda x: np.sum(x))
    s = fg.jit(lambda x: fg.lax.scan(lambda c, v: (c + v, c), 0.0, x)[0])
    x = np.zeros(100_000)
    f(x), f(x), total(x), total(x), s(x), s(x)
    stop, refused = threading.Event(), [0, 0]

    def write() -> None:
        value = 0.0
        while not stop.is_set():
            value = 1.0 - value
            x[:] = value

    def resize() -> None:
        while not stop.is_set():
            try:
                x.resize(200_000)
                refused[1] += 1
                x.resize(100_000)
            except ValueError:
                refused[0] += 1

    threads = [threading.Thread(target=write), threading.Thread(target=resize)]
    for t in threads:
        t.start()
    calls, end = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            calls += 3
            y = f(x)
            assert bool(((y == 1.0) | (y == 3.0)).all())
            assert 0.0 <= total(x) <= 200_000.0 and 0.0 <= s(x) <= 200_000.0
    finally:
        stop.set()
        for t in threads:
            t.join()
    assert refused[0] > 0
    return calls


class Report:
    """What a run did."""

    def __init__(self, line: str, text: str, code: int) -> None:
        self.line = line
        self.faults = [text] if code else []

    def __str__(self) -> str:
        return "\n".join([f"{self.line}\n{len(self.faults)} faults", *self.faults])


def run(seed: int = 0, calls: int = 10**9, minutes: float = 1.0, *unused: Any) -> Report:
    """In a process of its own."""
    command = [sys.executable, "-m", "tests.robustness.entries", str(seed), str(calls), str(60 * minutes)]
    environment = {**os.environ, "FUNCGRAD_CACHE_DIR": ""}
    process = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    return Report(process.stdout.strip(), process.stderr[-3000:], process.returncode)


def main(seed: int, calls: int, seconds: float) -> None:
    faulthandler.enable()
    done = results = 0
    end = time.monotonic() + seconds / 2
    while done < calls and time.monotonic() < end:
        d, r = odd(min(200, calls - done), seed + done)
        done, results = done + d, results + r
    print(f"{done} odd pairs of arguments, {results} with a result")
    print(f"{overwritten(seconds / 4)} calls while another thread changes the argument")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
