"""Measure the errors of elementary functions and of sums; keep what was found, and write docs/numerics.md from it.

    python -m tests.numerics exp sin             the worst errors at 10 million arguments, for both dtypes
    python -m tests.numerics exp --every         at every float32 number
    python -m tests.numerics --samples 100000000 --dtype float64
    python -m tests.numerics --sums              errors of sums
    python -m tests.numerics --write             the page anew, from what is kept

What is found is printed. With ``--keep`` it is kept in tests/numerics/measured.json, in the place of what was there for
the same function and dtype, and the page is written.
Hours of processor time for everything: a minute or two for a function and 10**8 doubles, or all floats.
"""

from __future__ import annotations

import argparse
import difflib
import time

from tests.numerics import data, measure, page, sums
from tests.numerics.compiled import DTYPES, f32
from tests.numerics.oracles import BINARY


def main() -> None:
    parser = argparse.ArgumentParser("python -m tests.numerics", description=__doc__.splitlines()[0])
    parser.add_argument("functions", nargs="*", help="ops of the registry (or sums, by their names); none: all")
    parser.add_argument("--every", action="store_true", help="every float32 number")
    parser.add_argument("--samples", type=int, default=10**7, help="arguments for each function")
    parser.add_argument("--dtype", choices=["float32", "float64"], action="append", help="only this one")
    parser.add_argument("--sums", action="store_true", help="errors of sums instead")
    parser.add_argument("--write", action="store_true", help="only write the page")
    parser.add_argument("--keep", action="store_true", help="keep what is found, and write the page")
    options = parser.parse_args()
    known = list(sums.OPS) if options.sums else measure.functions()
    for name in options.functions:
        if name not in known:
            near = difflib.get_close_matches(name, known, 3)
            parser.error(f"no function {name!r}; {f'similar ones: {near}' if near else f'there are {known}'}")
    if options.sums:
        for op in options.functions or sums.OPS:
            found = sums.measure(op)
            print(op, found, flush=True)
            if options.keep:
                data.keep(sums=found)
    elif not options.write:
        for name in options.functions or measure.functions():
            for dtype in DTYPES:
                if (options.dtype and dtype.__name__ not in options.dtype) or (options.every and dtype is not f32):
                    continue
                if not (options.every and name in BINARY):
                    one(name, dtype, options.every, options.samples, options.keep)
    if options.keep or options.write:
        page.write()


def one(name: str, dtype: type, every: bool, samples: int, keep: bool) -> None:
    start = time.process_time()
    record = measure.sampled(name, dtype, samples)
    if every:
        record |= {"every": measure.exhaustive(name)}
    record["oracle"] = float(f"{measure.oracle_error(name, dtype, 2000):.1e}")
    if keep:
        data.keep(name, dtype, record)
    found = data.best(record)
    errors = ", ".join(f"{code} {found[code]['ulp']:.3f}" for code in measure.CODES)
    seconds = time.process_time() - start
    print(f"{name} {dtype.__name__}, {found['inputs']} inputs: {errors} ulp; {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
