"""What representative kernels take of a GPU (registers, spills, stack, shared memory), against a golden table.

A difference is either a fault or an improvement; after reading it, ``FUNCGRAD_UPDATE_GOLDEN=1 pytest -m cuda -n 0
tests/cuda/test_resources.py`` writes the table anew, here and in docs/cuda.md.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

import funcgrad as fg
from funcgrad.core.trace import eagerly
from funcgrad.lowering.cuda.executable import cuda_module, ptx_of
from funcgrad.lowering.cuda.ptx import find_ptxas, resources
from funcgrad.lowering.simplify import simplify
from tests.cuda.against_cpu import ARCHS
from tests.cuda.representative import FUSED, KERNELS
from tests.ops.samples import SAMPLES
from tests.ptx.static import Static

GOLDEN = Path(__file__).resolve().parent / "golden" / "resources.txt"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cuda.md"
UPDATE = os.environ.get("FUNCGRAD_UPDATE_GOLDEN", "0") not in ("", "0")
HEAD = "| kernels of | registers: sm_75 | sm_80 | sm_90 | spills B | stack B | shared B |\n" + "|---" * 7 + "|\n"
ALL_THREADS = (64, 32, 32)
"""Registers with which all threads fit: of sm_75 1024 on each multiprocessor, of sm_80 and sm_90 2048."""
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="NVIDIA's assembler is not installed")


def texts(name: str) -> dict[str, str]:
    """The PTX of a program for each architecture."""
    f, args = KERNELS[name]
    with eagerly():
        module = cuda_module(simplify(fg.make_program(f)(*args)))
    return {arch: ptx_of(module, arch) for arch in ARCHS}


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


@needs_ptxas
@pytest.mark.cuda
def test_the_table_of_resources() -> None:
    table = HEAD + "".join([line for name in KERNELS for line in rows(name)])
    if UPDATE:
        GOLDEN.write_text(table)
        page = PAGE.read_text("utf-8")
        PAGE.write_text(re.sub(re.escape(HEAD) + r"(\|.*\n)*", lambda _: table, page), "utf-8")
    expected = GOLDEN.read_text()
    assert table == expected, "".join(difflib.unified_diff(expected.splitlines(True), table.splitlines(True)))


def golden() -> list[tuple[str, list[int]]]:
    """The table: names, and the numbers of a kernel."""
    lines = [line.strip("|\n ").split(" | ") for line in GOLDEN.read_text().splitlines()[2:]]
    return [(name, [max(map(int, c.split())) for c in cells]) for name, *cells in lines]


def test_the_table_is_within_its_bounds() -> None:
    """Nothing spills or has a stack; fused elementwise kernels let as many threads run as a GPU has room for."""
    assert GOLDEN.read_text() in PAGE.read_text("utf-8"), "docs/cuda.md shows another table"
    table = golden()
    assert {name.split(": ")[0] for name, _ in table} == set(KERNELS) and len(table) >= 25
    for name, (*registers, spills, stack, shared) in table:
        assert spills == stack == 0 and shared <= 48 * 1024, name
        assert max(registers) <= 96, name
        if name in FUSED:
            assert all([r <= most for r, most in zip(registers, ALL_THREADS, strict=True)]), name


@pytest.mark.parametrize("name", FUSED)
def test_fused_kernels_load_16_bytes_through_the_read_only_cache(name: str) -> None:
    for arch, text in texts(name).items():
        code = Static(text, "k0")
        loads = code.opcodes("ld.global")
        assert loads and set(loads) <= {"ld.global.nc.v2.b64", "ld.global.nc.v4.b32"}, (arch, loads)
        assert not code.opcodes("st.global") - code.opcodes("st.global.v2.b64", "st.global.v4.b32"), arch
        assert not code.opcodes("local", "div.s64", "div.u64", "rem.s64", "rem.u64"), arch


@needs_ptxas
@pytest.mark.cuda
@pytest.mark.parametrize("name", SAMPLES)
def test_no_kernel_of_a_sample_spills(name: str) -> None:
    """For one architecture; those of control flow may have a stack."""
    for s in SAMPLES[name][::4]:
        try:
            module = cuda_module(simplify(fg.make_program(s.function)(*s.args)))
        except fg.errors.UnsupportedError:
            continue
        for r in resources(ptx_of(module, "sm_80"), "sm_80").values():
            assert r.spills == r.stack == 0 and r.registers <= 128, s
