"""Small matrix products, emitted against BLAS: ``python benchmarks/products.py``.

Both are the kernels that `jit` would compile, called from a native loop, in turns; best of the rounds, in ns, and the
milliseconds that each takes to compile. Layouts: N as it is, T transposed, for x and y.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable

import numpy as np

from funcgrad.lowering import blas, tile
from funcgrad.lowering.kernels import Product
from funcgrad.lowering.layout import contiguous
from funcgrad.lowering.machine import compile_object, header, load
from funcgrad.lowering.stages import this_target
from funcgrad.lowering.values import Shared

SIZES = [
    *[(n, n, n) for n in (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32)],
    (1, 128, 10), (1, 128, 128), (1, 10, 128), (32, 128, 10), (10, 32, 10), (30, 30, 1), (569, 30, 1), (1, 569, 30),
    (1, 1000, 1), (100, 2, 2), (2, 100, 2), (2, 2, 100), (32, 1, 1), (128, 4, 8), (4, 128, 8),
    (1, 256, 256), (256, 256, 1), (2000, 30, 1), (1, 30, 2000), (1, 2000, 30), (2, 64, 64), (8, 100, 8),
]  # fmt: skip
LAYOUTS = ("NN", "TN", "NT", "TT")


def product(m: int, k: int, n: int, layout: str, dtype: np.dtype) -> Product:
    """Matrices (m, k) and (k, n), stored as `layout` says."""
    x = contiguous("x", (1, k, m)).permuted((0, 2, 1)) if layout[0] == "T" else contiguous("x", (1, m, k))
    y = contiguous("y", (1, n, k)).permuted((0, 2, 1)) if layout[1] == "T" else contiguous("y", (1, k, n))
    return Product(dtype, x, y, contiguous("out", (1, m, n)))


def compiled(kernel: str, shared: Shared, imports: tuple[str, ...]) -> tuple[Callable[..., None], float]:
    """A function (x, y, out, rounds) that calls the kernel, and the milliseconds that it took to make."""
    declares = [f"declare void @{name}({', '.join(['ptr'] * blas.ARGUMENTS[name])})\n" for name in imports]
    text = f"""{header()}{"".join(declares)}{shared.text()}{kernel}
define void @main(ptr %x, ptr %y, ptr %z, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  call void @KERNEL(ptr %x, ptr %y, ptr %z)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}}
attributes #0 = {{ noinline nounwind }}
"""
    start = time.process_time()
    code = compile_object(text, 1)
    spent = time.process_time() - start
    library = load([code], ["main"], {name: blas.address(name) for name in imports})
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(library["main"])
    function.alive = library  # type: ignore[attr-defined]
    return function, spent * 1e3


def measure(p: Product, rounds: int) -> tuple[float, float, float, float] | None:
    """(emitted, BLAS) in ns; (emitted, BLAS) in ms to compile; None where there is no emitted form."""
    if not tile.has_form(p):
        return None
    shared = Shared()
    ours, spent = compiled(tile.tile_text(p, this_target(), shared), shared, ())
    theirs, theirs_spent = compiled(blas.product_text(p), Shared(), (blas.routine(p),))
    rng = np.random.default_rng(0)
    (_, m, k), n = p.x.shape, p.y.shape[2]
    x, y, out = [rng.standard_normal(size).astype(p.dtype) for size in (m * k, k * n, m * n)]
    pointers = [a.ctypes.data for a in (x, y, out)]
    count = max(20, 200_000 // (m * k * n + 100))
    best = [np.inf, np.inf]
    for _ in range(rounds):
        for which, function in enumerate((ours, theirs)):
            start = time.perf_counter()
            function(*pointers, count)
            best[which] = min(best[which], (time.perf_counter() - start) / count)
    return best[0] * 1e9, best[1] * 1e9, spent, theirs_spent


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--layouts", nargs="*", default=LAYOUTS)
    options = parser.parse_args()
    for layout in options.layouts:
        for dtype in (np.float64, np.float32):
            print(
                f"\n{layout} {np.dtype(dtype)}\n{'m k n':>14}{'tile':>9}{'BLAS':>9}{'ratio':>7}  used{'ms':>7}{'ms':>7}"
            )
            for m, k, n in SIZES:
                p = product(m, k, n, layout, np.dtype(dtype))
                found = measure(p, options.rounds)
                if found is not None:
                    ours, theirs, spent, theirs_spent = found
                    used = "tile" if tile.fits(p) else "BLAS"
                    print(
                        f"{f'{m} {k} {n}':>14}{ours:9.1f}{theirs:9.1f}{theirs / ours:7.2f}"
                        f"  {used}{spent:7.1f}{theirs_spent:7.1f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
