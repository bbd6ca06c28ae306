"""What representative kernels take of a GPU (registers, spills, stack, shared memory), as a table.

    python -m tests.cuda.resources                 all of them
    python -m tests.cuda.resources adam softmax    those of some programs

It needs NVIDIA's assembler ptxas, and no GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import funcgrad as fg
from funcgrad.core.trace import eagerly
from funcgrad.lowering.cuda.executable import cuda_module, ptx_of
from funcgrad.lowering.cuda.ptx import resources
from funcgrad.lowering.simplify import simplify
from tests.cuda.against_cpu import ARCHS
from tests.cuda.representative import KERNELS

GOLDEN = Path(__file__).resolve().parent / "golden" / "resources.txt"
HEAD = "| kernels of | registers: sm_75 | sm_80 | sm_90 | spills B | stack B | shared B |\n" + "|---" * 7 + "|\n"


def compiled_for_all(f: Callable[..., Any], args: Iterable[Any]) -> dict[str, str]:
    """The PTX of a function for each architecture."""
    with eagerly():
        module = cuda_module(simplify(fg.make_program(f)(*args)))
    return {arch: ptx_of(module, arch) for arch in ARCHS}


def texts(name: str) -> dict[str, str]:
    """The PTX of a program for each architecture."""
    return compiled_for_all(*KERNELS[name])


def rows(name: str) -> list[str]:
    """The lines of a program: one for each kernel."""
    taken = {arch: resources(text, arch) for arch, text in texts(name).items()}
    kernels = sorted(taken["sm_80"], key=lambda k: (len(k), k))
    out = []
    for number, k in enumerate(kernels, 1):
        of = [taken[arch][k] for arch in ARCHS]
        cells, parts = [str(r.registers) for r in of], [(r.spills, r.stack, r.shared) for r in of]
        cells += [" ".join(dict.fromkeys(map(str, part))) for part in zip(*parts, strict=True)]
        title = name if len(kernels) == 1 else f"{name}: {number}"
        out.append(f"| {title} | {' | '.join(cells)} |\n")
    return out


def table(names: Iterable[str] = KERNELS) -> str:
    """The table of some programs."""
    return HEAD + "".join([line for name in names for line in rows(name)])


def title(line: str) -> str:
    """The kernel of a line."""
    return line.strip("|\n ").split(" | ")[0]


def main(argv: list[str] | None = None) -> int:
    """Print the table: the exit status."""
    parser = argparse.ArgumentParser("python -m tests.cuda.resources", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("programs", nargs="*", help=f"of {', '.join(map(repr, KERNELS))}; by default all")
    given = parser.parse_args(argv)
    for name in given.programs:
        if name not in KERNELS:
            parser.error(f"there is no program {name!r}; they are {', '.join(map(repr, KERNELS))}")
    try:
        print(table(given.programs or KERNELS), end="")
    except fg.errors.DeviceError as error:
        print(f"{error.message}\n  {error.hint}\n  {GOLDEN} is the table as it was last kept", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
