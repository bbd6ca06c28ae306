"""Every public function with odd arguments, eagerly and under transforms: a result or an honest error, never a crash.

A child process makes the calls and notes in a shared page which one it is at; this module's `run` starts it, looks
for calls that do not end, and starts it anew behind a call that killed it. Call number k of a seed is always the same.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import inspect
import io
import json
import mmap
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
PACKAGE = f"{REPO / 'funcgrad'}/"
LONG, HANGS = 5.0, 60.0
MEMORY = 3 * 2**30
ALLOWED: tuple[type[BaseException], ...] = (
    TypeError, ValueError, IndexError, OverflowError, MemoryError, ZeroDivisionError, NotImplementedError,
    FloatingPointError, StopIteration,
)  # fmt: skip
KEYWORDS = ["axis", "dtype", "out", "where", "keepdims", "mode", "nonsense"]
MODES = ("plain", "plain", "plain", "jit", "grad", "vmap", "program", "jvp")


CALLED = re.compile(r"positional argument|unexpected keyword|multiple values|required keyword")
"""What Python says of a call that does not fit the signature."""


class Call:
    """Call number `k` of `seed`."""

    def __init__(self, seed: int, k: int, table: dict[str, Callable[..., Any]], names: list[str]) -> None:
        from tests.robustness.zoo import Zoo

        self.random = random.Random(f"{seed}:{k}")
        self.zoo = Zoo(self.random)
        self.name = self.random.choice(names)
        self.function = table[self.name]
        self.mode = self.random.choice(MODES[3:] if self.name.startswith("np.") else MODES)
        self.args, self.kwargs = self.arguments()

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        r, zoo = self.random, self.zoo
        names, keywords = parameters(self.function)
        count = r.randrange(5) if r.random() < 0.3 or not names else min(len(names), 1 + r.randrange(3))
        odd = r.choice([0.1, 0.3, 0.8])
        draw = lambda name: zoo.any() if r.random() < odd else zoo.named(name)
        args = [draw(names[i] if i < len(names) else "x") for i in range(count)]
        if self.name.split(".")[0] in ("Array", "at") and args:
            args[0] = zoo.good() if r.random() < 0.8 else zoo.array()
            args[0] = args[0].view(_array_type()) if type(args[0]).__name__ == "ndarray" else args[0]
        if self.name.startswith("at.") and len(args) > 1:
            args[1] = zoo.index()
        given = keywords[count:] if r.random() < 0.8 else KEYWORDS
        chosen = [k for k in given if r.random() < 0.25]
        return args, {k: draw(k) for k in chosen}

    def traced(self) -> list[int]:
        """Positions of arguments that a transform can take."""
        import numpy as np

        def fits(x: Any) -> bool:
            good = type(x) is np.ndarray or isinstance(x, np.generic)
            return type(x) in (float, int) or (
                good and x.dtype.kind in ("f" if self.mode in ("grad", "jvp") else "biufc")
            )

        found = [i for i, x in enumerate(self.args) if fits(x)]
        return [i for i in found if self.random.random() < 0.7]

    def __call__(self) -> Any:
        import funcgrad as fg

        positions = self.traced() if self.mode != "plain" else []
        if not positions and self.name.startswith("np."):  # without a tracer it is NumPy alone
            positions, self.args[:1] = [0], [self.zoo.good(dtype=float)]
        if not positions:
            self.mode = "plain"
            return self.function(*self.args, **self.kwargs)
        values = [self.args[i] for i in positions]

        def f(*given: Any) -> Any:
            args = list(self.args)
            for i, x in zip(positions, given, strict=True):
                args[i] = x
            return self.function(*args, **self.kwargs)

        if self.mode == "grad":
            return fg.grad(lambda *xs: total(f(*xs)))(*[float(v) if type(v) is int else v for v in values])
        if self.mode == "jvp":
            values = [float(v) if type(v) is int else v for v in values]
            return fg.jvp(f, tuple(values), tuple(values))
        if self.mode == "program":
            return fg.make_program(f)(*values)
        if self.mode == "vmap":
            import numpy as np

            return fg.vmap(f)(*[np.stack([np.asarray(v)] * 2) for v in values])
        return fg.jit(f)(*values)

    def __str__(self) -> str:
        parts = [shown(a) for a in self.args] + [f"{k}={shown(v)}" for k, v in self.kwargs.items()]
        return f"[{self.mode}] {self.name}({', '.join(parts)})"


def _array_type() -> Any:
    import funcgrad as fg

    return fg.Array


def total(out: Any) -> Any:
    """A number that depends on a result."""
    import numpy as np

    import funcgrad as fg

    leaves = [x for x in fg.tree.leaves(out) if hasattr(x, "dtype") and x.dtype.kind == "f"]
    return np.sum(leaves[0]) if leaves else out


def shown(x: Any) -> str:
    try:
        text = f"{type(x).__name__} {x!r}"
    except BaseException:
        text = f"{type(x).__name__} (no repr)"
    return text[:90].replace("\n", " ")


_parameters: dict[Any, tuple[list[str], list[str]]] = {}


def parameters(f: Any) -> tuple[list[str], list[str]]:
    """Names of positional parameters, and of those that can be given by name."""
    found = _parameters.get(id(f))
    if found is None:
        try:
            items = list(inspect.signature(f).parameters.values())
        except (TypeError, ValueError):
            items = []
        positional = [p.name for p in items if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        keyword = [p.name for p in items if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        found = _parameters[id(f)] = positional, keyword
    return found


def place(error: BaseException) -> tuple[str, str] | None:
    """Where in funcgrad an error came from: file and line; None if it is the objects' own, or NumPy's alone."""
    frames = traceback.extract_tb(error.__traceback__)
    while frames and "/optree/" in frames[-1].filename:
        frames.pop()
    if frames and frames[-1].filename.endswith("robustness/zoo.py"):
        return None
    users = [i for i, f in enumerate(frames) if "/robustness/" in f.filename]
    ours = [f for f in frames[users[-1] if users else 0 :] if f.filename.startswith(PACKAGE)]
    if not ours:
        return None
    last = ours[-1]
    return f"{last.filename.removeprefix(PACKAGE)}:{last.lineno}", last.line or ""


def judged(error: BaseException) -> str | None:
    """A short name of a fault, or None if the error is allowed."""
    from funcgrad import errors
    from tests.robustness.zoo import Hostile

    if isinstance(error, Hostile | KeyboardInterrupt):
        return None
    if isinstance(error, errors.ProgramError):
        where = place(error)
        return f"ProgramError {error.message[:60]} {where[0] if where else ''}"
    if isinstance(error, (errors.FuncgradError, *ALLOWED)):
        return None
    if isinstance(error, RecursionError | SystemError) and place(error):
        return f"{type(error).__name__} {(place(error) or ('',))[0]}"
    where = place(error)
    return None if where is None else f"{type(error).__name__} {where[0]} | {where[1]}"


def state() -> str:
    """What an earlier call has left behind, or ''."""
    import numpy as np

    from funcgrad.base.errors import _doing
    from funcgrad.core.trace import TRACE

    if TRACE.get() is not None:
        return f"an open trace: {TRACE.get()!r}"
    if _doing.get() is not None:
        return f"still doing: {_doing.get()}"
    if np.geterr() != {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}:
        return f"errstate {np.geterr()}"
    return ""


def known_good() -> str:
    """What goes wrong in calls that always went right, or ''."""
    import numpy as np

    import funcgrad as fg

    x = np.array([0.5, 1.0, 2.0])
    found = fg.grad(lambda x: np.sum(x**3))(x)
    if type(found) is not fg.Array or found.tolist() != (3 * x**2).tolist():
        return f"grad gives {found!r}"
    for _ in range(2):
        found = _step(x)
        if type(found) is not fg.Array or found.tolist() != [1.25, 2.0, 5.0]:
            return f"jit gives {found!r}"
    found = fg.vmap(lambda a: a + 1.0)(x)
    return "" if found.tolist() == [1.5, 2.0, 3.0] else f"vmap gives {found!r}"


_step: Any = None


def child(seed: int, first: int, count: int, page: str, report: str, pattern: str) -> None:
    """Make calls first ... first + count - 1."""
    global _step
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    import funcgrad as fg
    from tests.robustness.public import SLOW, functions
    from tests.robustness.zoo import ESCAPED_TYPES

    _step = fg.jit(lambda x: x * x + 1.0)
    table = functions()
    rare = [k for k in table if k.startswith(SLOW)]
    often = [k for k in table if k not in rare]
    names = [k for k in table if k.startswith(pattern)] if pattern else often * 6 + rare
    with open(page, "r+b") as file, open(report, "a") as out:
        shared = mmap.mmap(file.fileno(), 32)
        write = lambda kind, k, **more: (out.write(json.dumps({"kind": kind, "call": k, **more}) + "\n"), out.flush())
        for k in range(first, first + count):
            struct.pack_into("qd", shared, 0, k, time.monotonic())
            outcome, made = "", None
            try:
                made = Call(seed, k, table, names)
                with contextlib.redirect_stdout(io.StringIO()):
                    result = made()
                outcome = "result"
                leaves = fg.tree.leaves(result) if type(result) in (list, tuple, dict) else [result]
                if made.mode != "plain" and any(type(x) in ESCAPED_TYPES for x in leaves):
                    write("fault", k, name="a tracer came out", text=str(made))
                del result
            except BaseException as error:
                outcome = "long" if isinstance(error, KeyboardInterrupt) else type(error).__name__
                own = isinstance(error, fg.errors.FuncgradError)
                fault = judged(error)
                if fault:
                    write("fault", k, name=fault, text=str(made), trace=shown(error))
                elif (not own and place(error) and not CALLED.search(str(error))) or outcome == "long":
                    name = f"{type(error).__name__} {' | '.join(place(error) or ())}"
                    write("plain", k, name=name, text=str(made), trace=shown(error))
            struct.pack_into("d", shared, 8, 0.0)  # what follows is not interrupted, unless that is on its way
            try:
                left = state() or (known_good() if k % 20 == 0 or outcome == "MemoryError" else "")
            except BaseException as error:
                left = f"known calls raise {error!r}" if not isinstance(error, KeyboardInterrupt) else ""
            if left:
                write("fault", k, name=f"left behind: {left[:80]}", text=str(made))
                os._exit(3)
            struct.pack_into("q", shared, 16, struct.unpack_from("q", shared, 16)[0] + 1)
            write("done", k, name=outcome) if k % 1000 == 0 else None


class Report:
    """What a run found."""

    def __init__(self) -> None:
        self.calls = self.processes = self.interrupts = self.killed = self.others = 0
        self.faults: dict[str, list[Any]] = {}
        self.plain: collections.Counter[str] = collections.Counter()
        self.examples: dict[str, Any] = {}

    def add(self, line: dict[str, Any]) -> None:
        if line["kind"] == "fault":
            self.faults.setdefault(line["name"], []).append(line)
        elif line["kind"] == "plain":
            self.plain[line["name"]] += 1
            self.examples.setdefault(line["name"], line)

    def __str__(self) -> str:
        head = (
            f"{self.calls} calls in {self.processes} processes, {self.interrupts} interrupted because they took long, "
            f"{self.killed} processes died ({self.others} of them inside NumPy or Python alone), "
            f"{len(self.faults)} kinds of faults"
        )
        return "\n".join([head, *[f"{len(v):6} × {k}\n{_example(v[0])}" for k, v in self.faults.items()]])

    def full(self) -> str:
        """With the errors of Python's own that came from lines of funcgrad, and what took long."""
        rows = [f"{n:6} × {k}\n{_example(self.examples[k])}" for k, n in self.plain.most_common()]
        return "\n".join([str(self), "", "errors of Python", *rows])


def _example(line: dict[str, Any]) -> str:
    return f"         #{line['call']} {line['text'][:400]}\n         {line.get('trace', '')}"


def run(seed: int, calls: int, minutes: float = 1e9, first: int = 0, pattern: str = "", path: str = "") -> Report:
    """Make calls of `seed` from number `first` on, until there were `calls` of them or time is up."""
    report, end = Report(), time.monotonic() + 60 * minutes
    k, last = first, first + calls
    with tempfile.TemporaryDirectory() as folder:
        page, lines = f"{folder}/page", f"{folder}/lines"
        while k < last and time.monotonic() < end:
            Path(page).write_bytes(bytes(32))
            Path(lines).write_text("")
            k = _supervised(report, seed, k, min(last - k, 4000), page, lines, pattern, end)
            if path:
                Path(path).write_text(report.full())
    return report


def _supervised(report: Report, seed: int, k: int, count: int, page: str, lines: str, pattern: str, end: float) -> int:
    """One child; the number of the next call."""
    command = [sys.executable, "-m", "tests.robustness.arguments", str(seed), str(k), str(count), page, lines, pattern]
    environment = {**os.environ, "FUNCGRAD_CACHE_DIR": "", "PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1",
                   "FUNCGRAD_TRACEBACK": "full"}  # fmt: skip
    report.processes += 1
    with (
        open(lines + ".err", "w+") as errors,
        subprocess.Popen(command, cwd=REPO, env=environment, stderr=errors, stdin=subprocess.DEVNULL) as process,
    ):
        at, sent, hung = k, 0.0, False
        while process.poll() is None:
            time.sleep(0.05)
            at, since = struct.unpack_from("qd", Path(page).read_bytes(), 0)
            spent = time.monotonic() - since if since else 0.0
            if time.monotonic() > end + 5:
                process.kill()
                report.calls += max(at - k, 0)
                return at + 1
            if spent > HANGS:
                hung = True
                process.send_signal(signal.SIGABRT)
                time.sleep(0.5)
                process.kill()
            elif spent > LONG and time.monotonic() > sent + LONG:
                sent = time.monotonic()
                report.interrupts += 1
                process.send_signal(signal.SIGINT)
        at = struct.unpack_from("q", Path(page).read_bytes(), 0)[0]
        for line in Path(lines).read_text().splitlines():
            report.add(json.loads(line))
        code = process.returncode
        if code == 0:
            report.calls += count
            return k + count
        report.calls += at - k + 1
        report.killed += code != 3
        errors.seek(0)
        text = errors.read()  # of a crash: the stack, innermost frame first
        alone = "/robustness/" in text and PACKAGE not in text.split("/robustness/")[0]
        if code != 3 and alone:
            report.others += 1
        elif code != 3:
            what = "hangs" if hung else f"dies with {code}"
            report.add({"kind": "fault", "call": at, "name": f"{what} in call {at}", "text": text[-1500:]})
        return at + 1


if __name__ == "__main__":
    child(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5], sys.argv[6])
