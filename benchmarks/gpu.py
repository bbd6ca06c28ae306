"""What a GPU makes of funcgrad: ``python benchmarks/gpu.py``; without a GPU ``python benchmarks/gpu.py --dry-run``.

One script for a machine with a GPU, for about eight minutes. Its sections stand alone: what fails in one is written
down, and the next begins.

* environment: the GPU, the packages;
* registry: every elementwise operation against NumPy in float64, with results in memory full of NaN;
* programs: gradients, `vmap`, loops and branches against the CPU;
* digits: steps of the demo's network, next to those of the CPU;
* bandwidth: what fused kernels, sums and softmax take, and the share of the speed of a copy;
* launches: what a call costs that does next to nothing;
* anchors: the same with JAX, PyTorch and CuPy, where they are installed.

The results are written as ``gpu.json`` and ``gpu.md``. ``--small`` takes sizes that are done in seconds; the times
then mean nothing, and the report says so. ``--dry-run`` is that in the interpreter of PTX of the tests, and takes less
than a minute. The status is 0 if all is right, 1 if something is wrong, and 2 if nothing ran: no GPU, or odd arguments.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import inspect
import json
import platform
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad import lax
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1

Row = dict[str, Any]
SECONDS = 0.5  # of repeated calls for a time
LIMIT = 420  # seconds after which no section begins


class Bench:
    """What the sections share.

    Parameters
    ----------
    device
        The name of the GPU.
    small
        Small sizes.
    """

    def __init__(self, device: str, small: bool) -> None:
        self.device, self.small = device, small
        self.rng = np.random.default_rng(0)

    def size(self, large: int, small: int) -> int:
        """One of two sizes."""
        return small if self.small else large

    def put(self, x: Any) -> Any:
        """Arrays on the GPU."""
        return fg.device_put(x, self.device)

    def jit(self, f: Callable[..., Any], **options: Any) -> Any:
        """A function compiled for the GPU."""
        return fg.jit(f, device=self.device, **options)

    def seconds(self, call: Callable[[], Any], wait: Callable[[Any], Any]) -> float:
        """The time of a call, from many one after the other, all of them done."""
        wait(call())
        if self.small:
            return float("nan")
        count, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            for _ in range(10):
                out = call()
            wait(out)
            count += 10
        return (time.perf_counter() - start) / count


def wait(x: Any) -> None:
    """Until all arrays are computed."""
    for leaf in fg.tree.leaves(x):
        leaf.block_until_ready()


# -- what is right


def environment(b: Bench) -> list[Row]:
    """The machine and the packages."""
    found = [d for d in fg.devices() if d.name.partition(":")[0] == b.device.partition(":")[0]]
    rows = [{"what": d.name, "is": f"{d.title}, {d.arch}, {d.memory / 2**30:.0f} GiB"} for d in found]
    for name in ("funcgrad", "numpy", "llvmlite", "cupy", "jax", "torch"):
        if importlib.util.find_spec(name) is not None:
            module = importlib.import_module(name)
            rows.append({"what": name, "is": str(getattr(module, "__version__", "?"))})
    return [*rows, {"what": "python", "is": f"{platform.python_version()}, {platform.platform()}"}]


def registry_rows(b: Bench) -> list[Row]:
    """Every elementwise operation on float32 and float64."""
    poison(b)
    rows = []
    for name, op in sorted(registry.items()):
        traits = op.traits
        if traits.kind != "elementwise" or op.emit is None:
            continue
        for dtype in (np.float32, np.float64):
            found = _one(b, op, dtype)
            if found is not None:
                rows.append({"op": name, "dtype": np.dtype(dtype).name, **found})
    return rows


def poison(b: Bench) -> None:
    """From here on new memory of the GPU is full of NaN."""
    from funcgrad.lowering.cuda.device import device_named

    device: Any = device_named(b.device if ":" in b.device else f"{b.device}:0")
    allocate = device.allocate

    def poisoned(size: int) -> Any:
        memory = allocate(size)
        device.write(memory.address, b"\xff" * (-(-max(size, 1) // 16) * 16))
        return memory

    device.allocate = poisoned


def _one(b: Bench, op: Any, dtype: Any) -> Row | None:
    """The largest error of an operation, in ulps of its largest result; None if it has no form for these numbers."""
    n = b.size(1 << 16, 300)
    count = len(inspect.signature(op.function).parameters)
    args = [b.rng.uniform(*op.domain.interval(i), n).astype(dtype) for i in range(count)]
    f = lambda *args: bind1(op, *args)
    try:
        found = fg.device_get(b.jit(f)(*args))
    except (fg.errors.FuncgradError, TypeError):  # of other dtypes, or with parameters: the tests have them all
        return None
    if op.traits.exact or found.dtype.kind != "f":
        return {"ulps": "exact", "ok": np.array_equal(found, f(*args), equal_nan=found.dtype.kind == "f")}
    exact = np.asarray(f(*[a.astype(float) for a in args]), float)
    largest = max(float(np.max(np.abs(exact), where=np.isfinite(exact), initial=0.0)), 1e-30)
    ulps = float(np.max(np.abs(found - exact), where=np.isfinite(exact), initial=0.0))
    ulps /= float(np.finfo(found.dtype).eps) * largest
    return {"ulps": round(ulps, 3), "ok": ulps < 8}


def programs(b: Bench) -> list[Row]:
    """Derivatives, batches and loops, against the CPU."""
    n = b.size(2000, 40)
    x, y = b.rng.normal(size=(n, 8)), b.rng.normal(size=8)
    decay = lambda r: lax.while_loop(lambda c: c[0] > 0.1, lambda c: (c[0] * r, c[1] + c[0]), (1.0, 0.0))[1]
    cases: dict[str, tuple[Any, Sequence[Any]]] = {
        "gradient": (fg.grad(lambda w, x: np.mean(np.logaddexp(0.0, x @ w))), (y, x)),
        "hessian": (fg.hessian(lambda w, x: np.mean(np.logaddexp(0.0, x @ w))), (y, x)),
        "vmap of gradients": (fg.vmap(fg.grad(lambda x: np.sum(np.sin(x) * x))), (x,)),
        "scan": (lambda x: lax.scan(lambda c, r: (np.tanh(c + r), np.sum(c)), np.zeros(8), x[:50]), (x,)),
        "gradient of scan": (
            fg.grad(lambda x: np.sum(lax.scan(lambda c, r: (np.tanh(c + r), c), np.zeros(8), x[:20])[0])),
            (x,),
        ),
        "while, a row a thread": (fg.vmap(decay), (b.rng.uniform(0.2, 0.9, n),)),
        "gradient of while": (fg.vmap(fg.grad(decay)), (b.rng.uniform(0.2, 0.9, n),)),
        "updates": (lambda x, i: x.at[i].add(1.0).at[i[:3]].set(0.0), (x, b.rng.integers(0, n, n))),
        "sums": (lambda x: (np.sum(x), np.sum(x, axis=0), np.max(x, axis=1), np.cumsum(x, axis=0)), (x,)),
    }
    rows = []
    for name, (f, args) in cases.items():
        found, expected = fg.device_get(b.jit(f)(*args)), fg.jit(f)(*args)
        pairs = zip(fg.tree.leaves(found), fg.tree.leaves(expected), strict=True)
        error = max([float(np.max(np.abs(p - q)) / max(float(np.max(np.abs(q))), 1e-30)) for p, q in pairs])
        rows.append({"program": name, "error": error, "ok": error < 1e-12})
    return rows


def digits(b: Bench) -> list[Row]:
    """The training step of the demo: its losses on both sides."""
    if importlib.util.find_spec("sklearn") is None:
        return [{"steps": "not run: it needs scikit-learn"}]
    from sklearn.datasets import load_digits

    from funcgrad.demo import mlp

    images, labels = load_digits(return_X_y=True)
    batch = b.size(128, 16)
    optimizer = fg.optim.adam(1e-3)
    step = mlp.train_step(optimizer).__wrapped__
    sides = {}
    for name, run in (("cpu", fg.jit(step)), (b.device, b.jit(step))):
        p = mlp.init(np.random.default_rng(0), images.shape[1])
        state, losses = optimizer.init(p), []
        for k in range(b.size(50, 2)):
            rows = slice(k * batch % 1024, k * batch % 1024 + batch)
            p, state, value = run(p, state, images[rows] / 16, labels[rows])
            losses.append(float(value))
        sides[name] = losses
    ours, theirs = (np.array(v) for v in sides.values())
    error = float(np.max(np.abs(ours - theirs)))
    return [{"steps": len(ours), "last loss": float(theirs[-1]), "error": error, "ok": error < 1e-6}]


# -- how fast


def _cases(b: Bench) -> dict[str, tuple[Callable[[Any, Any], Any], Callable[[], Any], int]]:
    """Functions of (x, namespace), their argument, and the bytes that they have to move."""
    n, rows, columns = b.size(1 << 28, 1 << 10), b.size(65536, 32), b.size(4096, 64)
    vector = lambda: b.rng.random(n, dtype=np.float32)
    matrix = lambda: b.rng.random((rows, columns), dtype=np.float32)

    def softmax(x: Any, xp: Any) -> Any:
        e = xp.exp(x - xp.max(x, axis=1, keepdims=True))
        return e / xp.sum(e, axis=1, keepdims=True)

    return {
        "copy": (lambda x, xp: x + np.float32(1), vector, 8 * n),
        "exp, tanh, log fused": (lambda x, xp: xp.log(xp.tanh(xp.exp(x)) + np.float32(1)), vector, 8 * n),
        "sum": (lambda x, xp: xp.sum(x), vector, 4 * n),
        "sum over rows": (lambda x, xp: xp.sum(x, axis=0), matrix, 4 * rows * columns),
        "softmax": (softmax, matrix, 8 * rows * columns),
    }


def bandwidth(b: Bench) -> list[Row]:
    """Times, and bytes in a second next to those of the copy."""
    rows: list[Row] = []
    for name, (f, make, moved) in _cases(b).items():
        x = b.put(make())
        compiled = b.jit(partial(f, xp=np))
        seconds = b.seconds(partial(compiled, x), wait)
        rows.append({"kernel": name, "ms": seconds * 1e3, "GB/s": moved / seconds / 1e9})
    for row in rows:
        row["of the copy"] = row["GB/s"] / rows[0]["GB/s"]
    return rows


def launches(b: Bench) -> list[Row]:
    """Calls that do next to nothing."""
    x = b.put(np.ones(8))
    one, chain = b.jit(lambda x: x + 1.0), b.jit(lambda x: np.cumsum(np.cumsum(np.cumsum(x))))
    return [
        {"call": "x + 1", "µs": b.seconds(lambda: one(x), wait) * 1e6},
        {"call": "three kernels", "µs": b.seconds(lambda: chain(x), wait) * 1e6},
    ]


def anchors(b: Bench) -> list[Row]:
    """The kernels of `bandwidth` with other libraries."""
    rows = []
    for library, prepare in (("jax", _jax), ("torch", _torch), ("cupy", _cupy)):
        if importlib.util.find_spec(library) is None:
            rows.append({"library": library, "kernel": "not installed", "ms": float("nan")})
            continue
        for name, (f, make, _) in _cases(b).items():
            try:
                call, done = prepare(f, make())
                rows.append({"library": library, "kernel": name, "ms": b.seconds(call, done) * 1e3})
            except Exception as error:
                rows.append({"library": library, "kernel": f"{name}: {type(error).__name__}", "ms": float("nan")})
    return rows


def _jax(f: Any, x: Any) -> tuple[Any, Any]:
    import jax

    g, y = jax.jit(lambda x: f(x, jax.numpy)), jax.device_put(x)
    return lambda: g(y), lambda out: out.block_until_ready()


def _torch(f: Any, x: Any) -> tuple[Any, Any]:
    import torch

    class Names:
        exp, tanh, log = torch.exp, torch.tanh, torch.log
        sum = staticmethod(lambda x, axis=None, keepdims=False: x.sum() if axis is None else x.sum(axis, keepdims))
        max = staticmethod(lambda x, axis, keepdims: x.amax(axis, keepdims))

    g, y = torch.compile(lambda x: f(x, Names)), torch.as_tensor(x, device="cuda")
    return lambda: g(y), lambda out: torch.cuda.synchronize()


def _cupy(f: Any, x: Any) -> tuple[Any, Any]:
    import cupy

    y = cupy.asarray(x)
    return lambda: f(y, cupy), lambda out: cupy.cuda.Stream.null.synchronize()


SECTIONS: dict[str, Callable[[Bench], list[Row]]] = {
    "environment": environment,
    "programs": programs,
    "digits": digits,
    "bandwidth": bandwidth,
    "launches": launches,
    "anchors": anchors,
    "registry": registry_rows,  # the last: memory is poisoned from there on
}


# -- the report


def run(b: Bench, names: Sequence[str]) -> dict[str, Any]:
    """The rows of every section, or the error that ended it."""
    start, found = time.perf_counter(), {}
    for name in names:
        if time.perf_counter() - start > LIMIT:
            found[name] = {"error": f"not begun: {LIMIT} s are over"}
            continue
        began = time.perf_counter()
        try:
            found[name] = {"rows": SECTIONS[name](b)}
        except Exception:
            found[name] = {"error": traceback.format_exc()}
        found[name]["seconds"] = round(time.perf_counter() - began, 1)
        print(f"{name}: {found[name]['seconds']} s{', FAILED' if 'error' in found[name] else ''}", flush=True)
    return found


def markdown(found: dict[str, Any], small: bool) -> str:
    """The report for readers."""
    lines = ["# GPU", ""]
    if small:
        lines += ["Small sizes, for a dry run: the times mean nothing.", ""]
    for name, section in found.items():
        lines += [f"## {name}", ""]
        if "error" in section:
            lines += ["```text", section["error"].rstrip(), "```", ""]
            continue
        rows = section["rows"]
        heads = list(rows[0]) if rows else []
        lines += [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"] if heads else []
        lines += [f"| {' | '.join([_cell(row.get(h)) for h in heads])} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _cell(x: Any) -> str:
    return f"{x:.3g}" if isinstance(x, float) else str(x)


def wrong(found: dict[str, Any]) -> list[str]:
    """What is not right."""
    bad = [name for name, section in found.items() if "error" in section]
    for name, section in found.items():
        bad += [f"{name}: {row}" for row in section.get("rows", ()) if row.get("ok") is False]
    return bad


# -- the command


@contextmanager
def interpreter(device: str) -> Iterator[None]:
    """An interpreter of PTX is the GPU of that name."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from funcgrad.lowering.cuda.device import forget, register
    from tests.cuda.interpreted import Interpreted

    gpu = Interpreted(int(device.partition(":")[2] or 0))
    register(gpu)
    try:
        yield
    finally:
        forget(gpu.name)
        sys.path.pop(0)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for; odd arguments end the script with a message."""
    lines = [f"  {name:13}{inspect.getdoc(f)}" for name, f in SECTIONS.items()]
    parser = argparse.ArgumentParser(
        description="What a GPU makes of funcgrad: is it right, and how fast. At most eight minutes.",
        epilog="\n".join(["sections:", *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda", help="the GPU: cuda (the first, by default), cuda:1 …")
    parser.add_argument(
        "--out", type=Path, default=Path(), metavar="FOLDER", help="where gpu.json and gpu.md go; by default here"
    )
    parser.add_argument("--small", action="store_true", help="small sizes: seconds, but the times mean nothing")
    parser.add_argument(
        "--dry-run", action="store_true", help="small sizes in an interpreter of PTX: needs no GPU, driver or CuPy"
    )
    parser.add_argument("sections", nargs="*", metavar="section", help="those to run; by default all, see below")
    given = parser.parse_args(argv)
    if not re.fullmatch(r"cuda(:[0-9]{1,9})?", given.device):
        parser.error(
            f"--device is a GPU, cuda or cuda:1 …, got {given.device!r}; what it does is compared with the CPU"
        )
    for name in given.sections:
        if name not in SECTIONS:
            near = difflib.get_close_matches(name, SECTIONS, 1)
            meant = f"did you mean {near[0]}? " if near else ""
            parser.error(f"there is no section {name!r}; {meant}sections are {', '.join(SECTIONS)}")
    if given.out.exists() and not given.out.is_dir():
        parser.error(f"--out {given.out}: File exists")
    return given


def main(argv: Sequence[str] | None = None) -> int:
    """Run, write, and say what was wrong: the exit status."""
    given = arguments(argv)
    small = given.small or given.dry_run
    with interpreter(given.device) if given.dry_run else nullcontext():
        try:
            fg.device_put(0.0, given.device)
        except fg.errors.DeviceError as error:
            print(
                f"nothing was run: {error.message}\n  {error.hint}\n"
                "  --dry-run runs all of this without a GPU, in an interpreter",
                file=sys.stderr,
            )
            return 2
        try:
            given.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            print(f"nothing was run: --out {given.out}: {error.strerror}", file=sys.stderr)
            return 2
        found = run(Bench(given.device, small), given.sections or list(SECTIONS))
    (given.out / "gpu.json").write_text(json.dumps(found, indent=1, default=str))
    (given.out / "gpu.md").write_text(markdown(found, small))
    bad = wrong(found)
    compared = sum(["ok" in row for section in found.values() for row in section.get("rows", ())])
    right = f"all of {compared} comparisons are right" if compared else "nothing was compared"
    print("\n".join([f"wrong, of {compared} comparisons:" if bad else right, *bad]))
    print(f"see {given.out / 'gpu.md'}")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
